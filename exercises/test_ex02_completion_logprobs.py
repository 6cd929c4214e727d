"""Marks exercise 2."""
import math

import torch


def example(B=2, L=5, V=3):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(B, L, V, generator=generator)
    return logits, torch.randint(V, (B, L), generator=generator)


def by_hand(logits, ids, P, temperature):
    """Two loops and the definition of a softmax."""
    rows = []
    for row, tokens in zip(logits.tolist(), ids.tolist()):
        rows.append([])
        for i in range(P, len(tokens)):
            e = [math.exp(x / temperature) for x in row[i - 1]]
            rows[-1].append(math.log(e[tokens[i]] / sum(e)))
    return torch.tensor(rows)


def test_each_token_is_scored_by_the_position_before_it(attempt):
    logits, ids = example()
    for P in (1, 2, 4):
        torch.testing.assert_close(attempt(logits, ids, P), by_hand(logits, ids, P, 1.0))


def test_the_temperature_divides_the_logits(attempt):
    logits, ids = example()
    for temperature in (0.7, 1.3):
        torch.testing.assert_close(attempt(logits, ids, 2, temperature),
                                   by_hand(logits, ids, 2, temperature))


def test_large_logits_do_not_overflow(attempt):
    """exp(1000) is infinite: log(softmax) gives -inf or NaN where log_softmax gives -1000."""
    logits = torch.tensor([[[1000.0, 0.0], [0.0, 0.0]]])
    assert attempt(logits, torch.tensor([[0, 1]]), 1).tolist() == [[-1000.0]]


def test_the_gradient_flows_and_the_last_position_has_none(attempt):
    """The last position predicts a token that is not there."""
    logits, ids = example()
    logits.requires_grad_()
    attempt(logits, ids, 2).sum().backward()
    moved = logits.grad.abs().sum(-1) > 0
    assert moved.tolist() == [[False, True, True, True, False]] * 2
