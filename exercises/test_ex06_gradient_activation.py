"""Marks exercise 6."""
from functools import lru_cache

import torch
from expected import expect, expect_true, expect_unchanged
from toy import TEMPERATURE, example

# prompts, lengths and boxes: unequal rows, one without a box; and boxes that begin at token 0.
SPANS = [(2, 3, 4, 5), None, (1, 2, 3, 4)]
ROWS = dict(prompts=[2, 3, 3], lengths=[6, 5, 4])
MORE = [None, (0, 1, 2, 3), (3, 3, 5, 6), (0, 0, 1, 1), (4, 5, 7, 8)]
MORE_ROWS = dict(prompts=[1, 4, 2, 6, 3], lengths=[3, 7, 6, 2, 9], seed=5)


def answer_loss(model, e, ids, prompt, span):
    """J of one row, written from the definition, in float64."""
    logits = model.hidden(e[None])[0] @ model.head.weight.double().T / TEMPERATURE    # (L, V)
    return -sum(logits[prompt + t - 1].log_softmax(-1)[ids[prompt + t]]
                for t in range(span[0], span[3]))


def by_differences(model, ids, prompt, length, span, T, step=1e-5):
    """s_t by moving each number of each embedding a little to both sides: no autograd anywhere.

    Returns s (T,) and, for the messages, the slopes (T, H) and the embeddings (T, H).
    """
    e = model.table.detach().double()[ids]  # (L, H)
    slopes, own = torch.zeros(T, e.shape[1]).double(), torch.zeros(T, e.shape[1]).double()
    with torch.no_grad():
        for t in range(length if span else 0):
            own[t] = e[prompt + t]
            for h in range(e.shape[1]):
                shift = torch.zeros_like(e)
                shift[prompt + t, h] = step
                slopes[t, h] = (answer_loss(model, e + shift, ids, prompt, span)
                                - answer_loss(model, e - shift, ids, prompt, span)) / (2 * step)
    return (slopes * own).norm(dim=1), slopes, own


@lru_cache
def truth(more):
    """s (b, T), the slopes and the embeddings (b, T, H) of SPANS or MORE; slow, so made once."""
    rows, spans = (MORE_ROWS, MORE) if more else (ROWS, SPANS)
    model, ids, _ = example(**rows)
    found = [by_differences(model, ids[i], rows["prompts"][i], rows["lengths"][i], span,
                            max(rows["lengths"])) for i, span in enumerate(spans)]
    return [torch.stack(part) for part in zip(*found)]


def check(attempt, more):
    rows, spans = (MORE_ROWS, MORE) if more else (ROWS, SPANS)
    _, _, forward = example(**rows)
    s, slopes, own = truth(more)
    expect(attempt(forward, spans), s, tolerance=1e-4, mistakes={
        "this is the norm of the gradient, not yet multiplied by e": slopes.norm(dim=-1),
        "the products are summed, not put under a norm": (slopes * own).sum(-1).abs(),
        "the products are summed, not put under a norm, and keep their sign":
            (slopes * own).sum(-1),
        "the norm of the gradient is multiplied by that of e": slopes.norm(dim=-1) *
            own.norm(dim=-1)})


def test_it_equals_finite_differences(attempt):
    """The norm of the products, number by number: neither the norm of the gradient nor the sum of
    the products. Row 1 has no box and gets 0; place says where a completion's tokens stand."""
    check(attempt, more=False)


def test_it_is_about_all_of_the_box(attempt):
    """J is the sum over tokens start..end-1, marker and brace too, and a box may begin at token 0,
    which Python's `if span[0]` takes for none."""
    check(attempt, more=True)


def test_what_follows_the_answer_cannot_have_moved_it(attempt):
    """By causality it is exactly 0 from the box's last token on, and on padding. The weights are
    numbers, not part of the loss's graph: detach what you return."""
    _, _, forward = example(**ROWS)
    s = attempt(forward, SPANS)
    expect_true(torch.is_tensor(s), "Your saliency is no tensor.")
    expect_true(not s.requires_grad, "Your saliency is still in the graph.")
    expect((s != 0).int(), [[1, 1, 1, 1, 0, 0], [0] * 6, [1, 1, 1, 0, 0, 0]], tolerance=0,
           about="1 where your saliency is not 0")


def test_the_policy_s_gradient_is_left_alone(attempt):
    """J.backward() would add the answer's gradient to that of the update, and free the graph."""
    model, _, forward = example(**ROWS)
    before = {name: value.detach().clone() for name, value in vars(forward).items()
              if torch.is_tensor(value)}
    expect_true(torch.is_tensor(attempt(forward, SPANS)), "Your saliency is no tensor.")
    expect_true(all(p.grad is None for p in model.parameters()),
                "A parameter's .grad was written, by backward() as it seems.")
    for name, then in before.items():
        expect_unchanged(getattr(forward, name), then, f"forward.{name}")
    try:
        forward.logprobs.sum().backward()
    except RuntimeError:
        expect_true(False, "The graph is gone, and the policy loss is still to be derived from it: "
                           "retain_graph=True.")
    expect_true(all(p.grad is not None for p in model.parameters()),
                "The policy loss has no gradient any more.")


if __name__ == "__main__":
    raise SystemExit("Mark it with: python -m pytest exercises -k ex06")
