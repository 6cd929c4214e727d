"""Marks exercise 6."""
import torch
from toy import LENGTHS, PROMPTS, SPANS, TEMPERATURE, example


def answer_loss(model, e, ids, row):
    """J of one row, written from the definition, in float64."""
    start, _, _, end = SPANS[row]
    P = PROMPTS[row]
    logits = model.hidden(e[None])[0] @ model.head.weight.double().T / TEMPERATURE    # (L, V)
    return -sum(logits[P + t - 1].log_softmax(-1)[ids[row, P + t]] for t in range(start, end))


def by_differences(model, ids, row, step=1e-5):
    """s_t by moving each number of each embedding a little to both sides: no autograd anywhere."""
    e = model.table.detach().double()[ids[row]]  # (L, H)
    s = torch.zeros(max(LENGTHS))
    with torch.no_grad():
        for t in range(LENGTHS[row]):
            parts = []
            for h in range(e.shape[1]):
                shift = torch.zeros_like(e)
                shift[PROMPTS[row] + t, h] = step
                slope = (answer_loss(model, e + shift, ids, row)
                         - answer_loss(model, e - shift, ids, row)) / (2 * step)
                parts.append(slope * e[PROMPTS[row] + t, h])
            s[t] = torch.stack(parts).norm()
    return s


def test_it_equals_finite_differences(attempt):
    """The norm of the products: neither the norm of the gradient nor the sum of the products."""
    model, ids, forward = example()
    s = attempt(forward, SPANS)
    for row in (0, 2):
        torch.testing.assert_close(s[row], by_differences(model, ids, row), atol=1e-4, rtol=1e-3)


def test_what_follows_the_answer_cannot_have_moved_it(attempt):
    """By causality: exactly 0 from the box's last token on, on padding, and without a box."""
    _, _, forward = example()
    s = attempt(forward, SPANS)
    assert s.shape == (3, 6) and not s.requires_grad
    assert (s[0, 4:] == 0).all() and (s[2, 3:] == 0).all() and (s[1] == 0).all()
    assert (s[0, :4] > 0).all() and (s[2, :3] > 0).all()


def test_the_policy_s_gradient_is_left_alone(attempt):
    """J.backward() would add the answer's gradient to the update, and free the graph."""
    model, _, forward = example()
    attempt(forward, SPANS)
    assert all(p.grad is None for p in model.parameters())
    forward.logprobs.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
