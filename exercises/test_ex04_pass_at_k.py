"""Marks exercise 4."""
import itertools

import pytest
import torch


def by_enumeration(c, n, k):
    draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
    return sum(map(any, draws)) / len(draws)


def test_it_is_the_share_of_all_draws_that_hold_a_right_one(attempt):
    for n in (1, 2, 5, 8):
        for k in range(1, n + 1):
            expected = torch.tensor([by_enumeration(c, n, k) for c in range(n + 1)],
                                    dtype=torch.float64)
            torch.testing.assert_close(attempt(torch.arange(n + 1), n, k), expected,
                                       atol=1e-9, rtol=0)


def test_its_mean_is_the_truth(attempt):
    """p = 0.2, n = 8, k = 4: the truth is 1 - 0.8^4 = 0.5904, the plug-in formula expects 0.517."""
    c = torch.arange(9)
    chance = torch.distributions.Binomial(8, torch.tensor(0.2).double()).log_prob(c.double()).exp()
    assert abs((chance * attempt(c, 8, 4)).sum().item() - (1 - 0.8 ** 4)) < 1e-6


def test_many_samples(attempt):
    """C(2000, 1000) has 600 digits: more than a float holds. Here 1 - (1/2 - a bit)."""
    assert abs(attempt(torch.tensor([1]), 2000, 1000).item() - 0.5) < 1e-9


def test_k_beyond_n_is_refused(attempt):
    """Two samples cannot tell what eight would do."""
    attempt(torch.tensor([1]), 2, 2)
    for k in (0, 3):
        with pytest.raises(ValueError):
            attempt(torch.tensor([1]), 2, k)
