"""Marks exercise 3."""
import torch
from expected import expect, expect_true, expect_unchanged

RATIO = torch.tensor([[1.5, 0.5, 1.5, 0.5, 1.0]])
A = torch.tensor([[1.0, 1.0, -1.0, -1.0, -1.0]])


def by_cases(ratio, A, low, high):
    """(surrogate, its slope in the ratio), a number at a time and without min or clip."""
    rows, slopes = [], []
    for r_row, a_row in zip(ratio.tolist(), A.expand_as(ratio).tolist()):
        used = [1 + high if a > 0 and r > 1 + high else 1 - low if a < 0 and r < 1 - low else r
                for r, a in zip(r_row, a_row)]
        rows.append([u * a for u, a in zip(used, a_row)])
        slopes.append([a if u == r else 0.0 for u, r, a in zip(used, r_row, a_row)])
    return torch.tensor(rows), torch.tensor(slopes)


def test_the_table(attempt):
    """The pessimist takes the smaller number for both signs. A bad token whose ratio rose costs its
    full 1.5; one that already fell to 0.5 earns no more than at 0.8."""
    clipped = RATIO.clamp(0.8, 1.2)
    expect(attempt(RATIO.clone(), A.clone(), 0.2, 0.2), [[1.2, 0.5, -1.5, -0.8, -1.0]], mistakes={
        "nothing is clipped": RATIO * A,
        "the clipped ratio is always taken": clipped * A,
        "the larger of the two numbers is taken": torch.max(RATIO * A, clipped * A),
        "where A < 0 the larger one is taken, as when min is asked of the ratios and A comes later":
            torch.min(RATIO, clipped) * A,
        "this is the loss, which has the other sign": -torch.min(RATIO * A, clipped * A)})


def test_low_and_high_are_two_numbers(attempt):
    """DAPO clips at 1 - 0.2 and 1 + 0.28: rare good tokens get a little more room."""
    ratio = torch.tensor([[1.25, 1.4, 0.75, 0.9]])
    sign = torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    expect(attempt(ratio, sign, 0.2, 0.28), [[1.25, 1.28, -0.8, -0.9]], mistakes={
        "low and high are exchanged": [[1.2, 1.2, -0.75, -0.9]],
        "high is used on both sides": [[1.25, 1.28, -0.75, -0.9]],
        "low is used on both sides": [[1.2, 1.2, -0.8, -0.9]]})


def test_where_the_gradient_stops(attempt):
    """It stops where the update went too far already, and only there: a good token above 1 + high,
    a bad one below 1 - low. On the wrong side of 1 the gradient must still push back."""
    ratio, advantages = RATIO.clone().requires_grad_(), A.clone()
    yours = attempt(ratio, advantages, 0.2, 0.2)
    expect(yours, by_cases(RATIO, A, 0.2, 0.2)[0])
    expect_unchanged(ratio, RATIO, "ratio")  # or the gradient is that of other numbers
    expect_unchanged(advantages, A, "A")
    expect_true(yours.requires_grad, "Your result has no gradient: it left the graph on the way.")
    yours.sum().backward()
    expect(ratio.grad, [[0.0, 1.0, -1.0, 0.0, -1.0]], about="gradient of your result's sum")


def test_one_advantage_a_row_is_enough(attempt):
    """A completion has one advantage, (B, 1), which every token of its row shares."""
    expect(attempt(torch.tensor([[2.0, 1.0]]), torch.tensor([[1.0]]), 0.2, 0.2), [[1.2, 1.0]])


def test_any_advantage_and_nothing_is_changed(attempt):
    """A may be any number, 0 too, and it stretches the value and the gradient. Nothing is clipped
    or multiplied in place: the ratio is logged afterwards."""
    generator = torch.Generator().manual_seed(2)
    sizes = [(1, 9, 9, 0.2, 0.2), (4, 30, 1, 0.2, 0.28), (3, 40, 40, 0.4, 0.1)]
    for B, T, width, low, high in sizes:
        ratio = torch.randn(B, T, generator=generator).exp().requires_grad_()
        advantages = 2 * torch.randn(B, width, generator=generator)
        advantages[0, 0] = 0.0
        before = ratio.detach().clone(), advantages.clone()
        value, slope = by_cases(before[0], advantages, low, high)
        yours = attempt(ratio, advantages, low, high)
        expect(yours, value)
        expect_unchanged(ratio, before[0], "ratio")
        expect_unchanged(advantages, before[1], "A")
        yours.sum().backward()
        expect(ratio.grad, slope, about="gradient of your result's sum")


if __name__ == "__main__":
    raise SystemExit("Mark it with: python -m pytest exercises -k ex03")
