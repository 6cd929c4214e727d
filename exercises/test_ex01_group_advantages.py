"""Marks exercise 1."""
import torch


def close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected), atol=1e-3, rtol=0)


def test_above_and_below_the_mean_of_its_own_group(attempt):
    """A mean over the whole batch would punish every completion of a hard problem."""
    rewards = torch.tensor([[1.0, 0, 0, 0], [1, 1, 0, 1]])
    close(attempt(rewards), [[.75, -.25, -.25, -.25], [.25, .25, -.75, .25]])


def test_divided_by_the_population_std(attempt):
    """std of 1, 0, 0, 0 is sqrt(3)/4 = 0.433 over G; torch.std divides by G - 1: 0.5."""
    root = 3 ** 0.5
    close(attempt(torch.tensor([[1.0, 0, 0, 0]]), scale_by_std=True),
          [[root, -1 / root, -1 / root, -1 / root]])


def test_a_group_of_equal_rewards_gets_exactly_zero(attempt):
    """The mean of seven times 0.1 is not 0.1 in fp32; divided by a tiny std, the rest is large."""
    rewards = torch.tensor([[0.1] * 7, [0.0] * 7, [1.0] * 7])
    for scale_by_std in (False, True):
        assert torch.equal(attempt(rewards, scale_by_std), torch.zeros(3, 7))


def test_the_rewards_are_left_as_they_were(attempt):
    """They are logged after the advantages are made."""
    rewards = torch.tensor([[1.0, 0.0]])
    attempt(rewards)
    assert rewards.tolist() == [[1.0, 0.0]]
