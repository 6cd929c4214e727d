"""Marks exercise 2."""
import math

import torch
from expected import expect, expect_true, expect_unchanged


def example(B=2, L=5, V=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(B, L, V, generator=generator)
    return logits, torch.randint(V, (B, L), generator=generator)


def by_hand(logits, ids, P, temperature, back=1):
    """Two loops and the definition of a softmax. back: how far before its token a position is."""
    rows = []
    for row, tokens in zip(logits.tolist(), ids.tolist()):
        rows.append([])
        for i in range(P, len(tokens)):
            e = [math.exp(x / temperature) for x in row[i - back]]
            rows[-1].append(math.log(e[tokens[i]] / sum(e)))
    return torch.tensor(rows)


def test_each_token_is_scored_by_the_position_before_it(attempt):
    """A position has read its own token already. What it predicts is the next one, so the logits of
    the completion's first token stand at the prompt's last position, P - 1."""
    logits, ids = example()
    for P in (2, 1, 4):
        expect(attempt(logits.clone(), ids.clone(), P), by_hand(logits, ids, P, 1.0), mistakes={
            "each token is scored by its own position": by_hand(logits, ids, P, 1.0, back=0),
            "the sign is turned: this is the loss of cross_entropy": -by_hand(logits, ids, P, 1.0),
            "these are probabilities, without the log": by_hand(logits, ids, P, 1.0).exp()})


def test_the_temperature_divides_the_logits(attempt):
    """Below 1 it makes the policy surer, as the sampler was. It acts inside the softmax, for the
    probabilities must still sum to 1."""
    logits, ids = example()
    for T in (0.7, 1.3):
        expect(attempt(logits.clone(), ids.clone(), 2, T), by_hand(logits, ids, 2, T), mistakes={
            "the temperature is not used": by_hand(logits, ids, 2, 1.0),
            "the logits are multiplied by the temperature": by_hand(logits, ids, 2, 1 / T),
            "log-probabilities, not logits, are divided": by_hand(logits, ids, 2, 1.0) / T})


def test_large_logits_do_not_overflow(attempt):
    """exp(1000) is infinite and exp(-1000) is 0, so log(softmax) gives -inf or NaN. log_softmax
    subtracts the largest logit of each position first and gives -1000. The largest of all would
    make the next position's 0 and 0 underflow."""
    logits = torch.tensor([[[1000.0, 0.0], [0.0, 0.0], [0.0, 0.0]]])
    expect(attempt(logits, torch.tensor([[0, 1, 0]]), 1), [[-1000.0, -math.log(2)]])


def test_the_gradient_flows_and_the_last_position_has_none(attempt):
    """The loss is made of these numbers, so they stay in the graph: no detach, no no_grad. The last
    position predicts a token that is not there, and those of the prompt do not count."""
    logits, ids = example()
    right, before = by_hand(logits, ids, 2, 1.0), (logits.clone(), ids.clone())
    logits.requires_grad_()
    yours = attempt(logits, ids, 2)
    expect(yours, right)
    expect_unchanged(logits, before[0], "logits")  # or the gradient is that of other numbers
    expect_unchanged(ids, before[1], "ids")
    expect_true(yours.requires_grad, "Your result has no gradient: it left the graph on the way.")
    yours.sum().backward()
    expect_true(logits.grad is not None, "Your result's gradient does not reach the logits.")
    expect((logits.grad.abs().sum(-1) > 0).int(), [[0, 1, 1, 1, 0]] * 2, tolerance=0,
           about="1 where a position gets a gradient, 0 where it does not")


def test_any_size_and_nothing_is_changed(attempt):
    """The model's logits and ids are needed again afterwards, so nothing is divided or written in
    place; and it works for one row and for one token."""
    sizes = [(1, 2, 2, 1, 1.0), (3, 9, 11, 4, 0.6), (4, 6, 5, 5, 1.5), (2, 7, 3, 1, 1.0)]
    for B, L, V, P, T in sizes:
        logits, ids = example(B, L, V, seed=L)
        before = logits.clone(), ids.clone()
        right = by_hand(logits, ids, P, T)
        expect(attempt(logits, ids, P, T), right)
        expect_unchanged(logits, before[0], "logits")
        expect_unchanged(ids, before[1], "ids")


if __name__ == "__main__":
    raise SystemExit("Mark it with: python -m pytest exercises -k ex02")
