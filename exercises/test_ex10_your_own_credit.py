"""Marks exercise 10: the rules. Whether it is any good is for leaderboard.py to say."""
import torch
from expected import Wrong, expect, expect_true, expect_unchanged
from toy import forward_of


def test_finite_weights_without_gradient(attempt):
    """One weight a token, (b, T). A negative one would turn the advantage round, NaN would end the
    run, and a gradient left in the weights would train the credit instead of the policy."""
    _, forward = forward_of(range(6))
    weights = attempt(forward)
    expect_true(torch.is_tensor(weights), f"Your weights are a {type(weights).__name__}.")
    expect_true(weights.shape == forward.logprobs.shape,
                f"Your weights have shape {tuple(weights.shape)} and must have "
                f"{tuple(forward.logprobs.shape)}.")
    expect_true(not weights.requires_grad,
                "Your weights are still in the graph: detach them, or what they are made of.")
    on = forward.completion_mask
    expect_true(torch.isfinite(weights[on]).all(), "Some of your weights are NaN or infinite.")
    expect_true(torch.isfinite(weights).all(), "On padding your weights are NaN or infinite.")
    expect_true((weights >= 0).all(), f"Your smallest weight is {weights.min().item():.3g}.")
    expect_true(weights.sum() > 0, "All your weights are 0.")


def test_a_row_s_weights_depend_on_no_other_row(attempt):
    """Rows come in micro-batches, which are a matter of memory (--tokens-per-microbatch). A mean,
    a maximum or a softmax over the batch would make them change the update, and so does chance.
    Padding is part of the batch too: it is as long as the longest row. So take a row's statistics
    over its own tokens, forward.completion_mask[i]."""
    _, forward = forward_of(range(6))
    mask = forward.completion_mask.clone()
    together = attempt(forward)
    expect_true(torch.is_tensor(together), "Your weights are no tensor.")
    for rows in ([0, 1], [5, 4], [3], [2]):
        _, part = forward_of(rows)
        on = part.completion_mask.clone()
        apart = attempt(part)
        for i, row in enumerate(rows):
            alone, among = apart[i][on[i]], together[row][mask[row]]
            scale = among.abs().max().clamp(min=1e-30)
            expect(alone / scale, among / scale, tolerance=0.01,
                   about=f"row {row} alone and among others, over its largest weight")


def test_the_policy_s_gradient_is_left_alone(attempt):
    """The loss is still to be derived from this forward: no backward(), retain_graph=True for
    torch.autograd.grad, and nothing of it is changed in place."""
    model, forward = forward_of(range(6))
    before = {name: value.detach().clone() for name, value in vars(forward).items()
              if torch.is_tensor(value)}
    expect_true(torch.is_tensor(attempt(forward)), "Your weights are no tensor.")
    for name, then in before.items():
        expect_unchanged(getattr(forward, name), then, f"forward.{name}")
    expect_true(all(p.grad is None for p in model.parameters()),
                "A parameter's .grad was written, by backward() as it seems.")
    try:
        forward.logprobs.sum().backward()
    except RuntimeError as error:
        raise Wrong(f"No loss can be derived from the forward any more: {error}") from None
    expect_true(any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters()),
                "The policy loss has no gradient any more.")


if __name__ == "__main__":
    raise SystemExit("Mark it with: python -m pytest exercises -k ex10")
