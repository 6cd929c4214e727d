"""Marks exercise 4."""
import itertools

import torch
from expected import expect, expect_refused, expect_unchanged


def by_enumeration(c, n, k):
    """Draw k of the n samples in every possible way, and count."""
    draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
    return sum(map(any, draws)) / len(draws)


def test_a_problem_with_two_right_of_four(attempt):
    """Of the six ways to draw 2 of 4 samples only one holds both wrong ones: 1 - 1/6 = 0.8333.
    Putting samples back would give 1 - (1/2)^2 = 0.75."""
    expect(attempt(torch.tensor([2]), 4, 2), [5 / 6], mistakes={
        "1 - (1 - c/n)^k, which puts each sample back": [0.75],
        "the chance that all k are right": [1 / 6],
        "the chance that none of the k is right, not yet taken from 1": [1 / 6],
        "Pass@1, whatever k is": [0.5]})


def test_it_is_the_share_of_all_draws_that_hold_a_right_one(attempt):
    """For small n every draw can be listed. With fewer than k wrong samples every draw holds a
    right one: exactly 1, for c = n as well; and with no right one exactly 0."""
    for n in (1, 2, 5, 8):
        for k in range(1, n + 1):
            wanted = torch.tensor([by_enumeration(c, n, k) for c in range(n + 1)],
                                  dtype=torch.float64)
            c, correct = torch.arange(n + 1), torch.arange(n + 1)
            expect(attempt(correct, n, k), wanted, tolerance=1e-6, mistakes={
                "1 - (1 - c/n)^k, which puts each sample back": 1 - (1 - c / n) ** k})
            expect_unchanged(correct, c, "correct")


def test_it_is_float64(attempt):
    """Benchmarks average thousands of these and compare the third digit of two averages, and in
    float32 the products of many fractions are off by more. torch.tensor makes float32 of Python's
    numbers unless it is told dtype=torch.float64."""
    expect(attempt(torch.tensor([0, 1, 3]), 8, 2), [0, 0.25, 9 / 14], dtype=torch.float64)
    expect(attempt(torch.tensor([3]), 50, 7), [1 - 1763 / 2800], tolerance=1e-9)


def test_its_mean_is_the_truth(attempt):
    """p = 0.2, n = 8, k = 4: the truth is 1 - 0.8^4 = 0.5904. The plug-in formula expects 0.517."""
    c = torch.arange(9)
    chance = torch.distributions.Binomial(8, torch.tensor(0.2).double()).log_prob(c.double()).exp()
    expect((chance * attempt(c.clone(), 8, 4)).sum(), 1 - 0.8 ** 4, tolerance=1e-5,
           about="mean over c = 0..8, weighted by chance")


def test_many_samples(attempt):
    """C(2000, 1000) has 600 digits, more than a float holds: divide before you multiply, or use
    Python's whole numbers. One right sample of 2000 is among the 1000 drawn with chance 1/2."""
    expect(attempt(torch.tensor([1]), 2000, 1000), [0.5], tolerance=1e-9)
    expect(attempt(torch.tensor([2]), 2000, 1000), [1 - 999 / 3998], tolerance=1e-9)


def test_k_beyond_n_is_refused(attempt):
    """Two samples cannot tell what eight would do, and a draw of none means nothing: ValueError
    unless 1 <= k <= n. k = n is fine, and so is k above the number of right ones."""
    expect(attempt(torch.tensor([1, 0]), 2, 2), [1.0, 0.0])
    for k in (3, 0, -1):
        expect_refused(lambda k=k: attempt(torch.tensor([1, 2]), 2, k), f"k = {k} of 2 samples")


if __name__ == "__main__":
    raise SystemExit("Mark it with: python -m pytest exercises -k ex04")
