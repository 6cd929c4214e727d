"""Marks exercise 3."""
import torch

RATIO = torch.tensor([[1.5, 0.5, 1.5, 0.5, 1.0]])
A = torch.tensor([[1.0, 1.0, -1.0, -1.0, -1.0]])


def test_the_table(attempt):
    """A bad token whose ratio rose costs its full 1.5; one that already fell earns no more."""
    torch.testing.assert_close(attempt(RATIO, A, 0.2, 0.2),
                               torch.tensor([[1.2, 0.5, -1.5, -0.8, -1.0]]))


def test_low_and_high_are_two_numbers(attempt):
    """DAPO clips at 1 - 0.2 and 1 + 0.28: rare good tokens get a little more room."""
    ratio = torch.tensor([[1.25, 1.4, 0.75, 0.9]])
    A = torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    torch.testing.assert_close(attempt(ratio, A, 0.2, 0.28),
                               torch.tensor([[1.25, 1.28, -0.8, -0.9]]))


def test_where_the_gradient_stops(attempt):
    """It stops where the update went too far already, and only there."""
    ratio = RATIO.clone().requires_grad_()
    attempt(ratio, A, 0.2, 0.2).sum().backward()
    assert ratio.grad.tolist() == [[0.0, 1.0, -1.0, 0.0, -1.0]]


def test_one_advantage_a_row_is_enough(attempt):
    torch.testing.assert_close(attempt(torch.tensor([[2.0, 1.0]]), torch.tensor([[1.0]]), 0.2, 0.2),
                               torch.tensor([[1.2, 1.0]]))
