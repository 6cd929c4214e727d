"""Marks exercise 7."""
import math

import torch
from expected import expect, expect_unchanged

RISING = [0.01, 0.02, 0.04, 0.08]  # log s in even steps: z = -1.3416, -0.4472, 0.4472, 1.3416
W = [0.5, 0.776393, 1.223607, 1.670821]
NONE = (-1, -1, -1, -1)


def by_loops(s, mask, spans, advantages, mistake=""):
    """The definition, a row and a token at a time. A mistake is made on purpose, for messages:
    one of sample, everything, early, padded, boxless, least."""
    rows = []
    for i, (start, content, close, _) in enumerate(spans.tolist()):
        n = int(mask[i].sum())
        w = [1.0] * n + [0.0] * (len(mask[i]) - n)
        if (start >= 2 or mistake == "boxless") and advantages[i] <= 0:
            seen = {"early": start, "padded": len(s[i])}.get(mistake, n)
            largest = max(max(s[i, :seen].double().tolist()), 1e-30)
            floor = 1e-8 * largest
            logs = [math.log(max(x, floor) if mistake == "least" else x + floor)
                    for x in s[i, :n].double().tolist()]
            used = logs if mistake == "everything" else logs[:start]
            mean = sum(used) / len(used)
            variance = sum((x - mean) ** 2 for x in used) / (len(used) - (mistake == "sample"))
            for t in range(n)[:start]:
                z = (logs[t] - mean) / math.sqrt(variance + 1e-8)
                w[t] = min(5.0, max(0.5, 1 + 0.5 * z))
            w[content:close] = [5.0] * (close - content)
        rows.append(w)
    return torch.tensor(rows)


def weights(attempt, s, span, A=-0.5, padding=()):
    """The attempt's weights of one row; padding: the saliencies that stand on its padding."""
    mask = torch.tensor([[True] * len(s) + [False] * len(padding)])
    return attempt(torch.tensor([[*s, *padding]]), mask, torch.tensor([span]), torch.tensor([A]))


def test_by_hand(attempt):
    """Four tokens, marker, content, brace, full stop. Mean and std are those of the four before the
    box: the zeros after it would make all four look the same."""
    s, span = RISING + [0.5, 0.3, 0.0, 0.0], (4, 5, 6, 7)
    case = torch.tensor([s]), torch.ones(1, 8).bool(), torch.tensor([span]), torch.tensor([-0.5])
    right = by_loops(*case)
    expect(weights(attempt, s, span), [W + [1, 5, 1, 1]], mistakes={
        "mean and std are taken over all tokens": by_loops(*case, mistake="everything"),
        "the std is torch's default, which divides by n - 1": by_loops(*case, mistake="sample"),
        "the whole box has weight 5, marker and brace too": [W + [5, 5, 5, 1]],
        "the content of the box has no weight of its own": [W + [1, 1, 1, 1]],
        "the lower end of the clip is missing": [[0.329180] + W[1:] + [1, 5, 1, 1]],
        "all weights are multiplied by the advantage": -0.5 * right})


def test_the_scale_of_the_saliency_does_not_matter(attempt):
    """A sure answer has a small J, and so small saliencies everywhere. The log turns a scale into a
    shift, which the mean takes away. A floor of 1e-8 itself, not of the largest s, would not. With
    a token that the answer ignores, a floor of 1e-15 would not either."""
    ignored = [0.0] + RISING[1:] + [0.0] * 3
    case = torch.tensor([ignored]), torch.ones(1, 7).bool(), torch.tensor([[4, 5, 6, 7]])
    for scale in (1e-4, 1e4, 1e-9):
        expect(weights(attempt, [scale * x for x in RISING] + [0.0] * 3, (4, 5, 6, 7)),
               [W + [1, 5, 1]])
        expect(weights(attempt, [scale * x for x in ignored], (4, 5, 6, 7)),
               by_loops(*case, torch.tensor([-0.5])), 1e-3)


def test_padding_gets_nothing_and_changes_nothing(attempt):
    """Padding has weight 0 and may hold any number. A large one must not become the largest s of
    the floor: take that over the mask. And 0 times NaN is NaN: choose with torch.where, do not
    multiply."""
    for padding in ([0.7, 0.7], [1e6, 0.0], [math.nan, math.inf]):
        s = torch.tensor([RISING + [0.0] * 3 + padding])
        mask, span = torch.arange(9)[None] < 7, torch.tensor([[4, 5, 6, 7]])
        right = W + [1, 5, 1, 0, 0]
        expect(weights(attempt, RISING + [0.0] * 3, (4, 5, 6, 7), padding=padding), [right],
               mistakes={
            "the largest s is taken over the padding, too":
                by_loops(s, mask, span, torch.tensor([-0.5]), mistake="padded"),
            "padding has a weight": [right[:7] + [1, 1]]})


def test_rows_that_stay_as_they_are(attempt):
    """No box, fewer than two tokens before it, or better than its group: weight 1 everywhere, on
    the content of the box as well. Two tokens before the box are enough."""
    case = torch.tensor([RISING]), torch.ones(1, 4).bool(), torch.tensor([NONE])
    expect(weights(attempt, RISING, NONE), [[1.0] * 4], mistakes={
        "-1 is used as an index; in Python it means the last place":
            by_loops(*case, torch.tensor([-0.5]), mistake="boxless")})
    expect(weights(attempt, RISING, (0, 1, 2, 3)), [[1.0] * 4])
    expect(weights(attempt, RISING, (1, 2, 3, 4)), [[1.0] * 4])
    expect(weights(attempt, RISING + [0.0] * 3, (4, 5, 6, 7), A=0.5), [[1.0] * 7])
    expect(weights(attempt, RISING, NONE, A=0.5, padding=[0.7]), [[1.0] * 4 + [0.0]])
    expect(weights(attempt, RISING, (2, 3, 4, 4)), [[0.5, 1.5, 1, 5]])


def test_advantage_zero_is_reweighted(attempt):
    """It did no better than its group: A > 0 is the exception, not A >= 0. The sign decides,
    however small A is."""
    for A, right in ((0.0, W + [1, 5, 1]), (-1e-7, W + [1, 5, 1]), (1e-7, [1.0] * 7)):
        expect(weights(attempt, RISING + [0.0] * 3, (4, 5, 6, 7), A=A), [right])


def test_equal_saliencies_give_exactly_one(attempt):
    """In fp32 the mean of n equal logs is off in its last digit, and so is the spread. One divided
    by the other is no small number: compute in float64."""
    for n in range(2, 40):
        expect(weights(attempt, [0.05] * n + [0.0] * 3, (n, n + 1, n + 2, n + 3)),
               [[1.0] * (n + 1) + [5.0, 1.0]], tolerance=1e-6)


def test_almost_equal_saliencies(attempt):
    """Differences of a millionth are noise. 1e-8 added to the variance, under the root, keeps them
    from being blown up to z = 1; added to the std it does nothing here."""
    s = [0.05, 0.05 * (1 + 1e-5), 0.05, 0.05 * (1 + 1e-5), 0.0]
    case = torch.tensor([s]), torch.ones(1, 5).bool(), torch.tensor([[4, 4, 5, 5]])
    expect(weights(attempt, s, (4, 4, 5, 5)), by_loops(*case, torch.tensor([-0.5])), 2e-3)


def test_a_token_that_the_answer_ignores(attempt):
    """log 0 is -inf; with the floor, z is (-sqrt 3, and 1/sqrt 3 three times)."""
    expect(weights(attempt, [0.0, 0.3, 0.3, 0.3, 0.0, 0.0], (4, 5, 5, 6)),
           [[0.5, 1.288675, 1.288675, 1.288675, 1, 1]])


def test_the_floor_takes_the_largest_s_of_the_whole_completion(attempt):
    """The floor is 1e-8 times the largest s of the whole completion, the box included, although
    mean and std are over the tokens before the box. Here the box's first token has the largest. It
    is added to every s: in the second row one s is just as large as the floor."""
    s = [0.0, 0.01, 0.02, 0.04, 10.0, 1.0, 0.0]
    case = torch.tensor([s]), torch.ones(1, 7).bool(), torch.tensor([[4, 5, 6, 7]])
    A = torch.tensor([-0.5])
    expect(weights(attempt, s, (4, 5, 6, 7)), by_loops(*case, A), 1e-3, mistakes={
        "the floor is made of the largest s before the box": by_loops(*case, A, mistake="early")})
    s[1] = 1e-7
    case = torch.tensor([s]), *case[1:]
    expect(weights(attempt, s, (4, 5, 6, 7)), by_loops(*case, A), 1e-3, mistakes={
        "the floor is the least value, and is not added": by_loops(*case, A, mistake="least")})


def test_all_saliencies_are_zero(attempt):
    """Where gradients underflow, the largest s is 0 and 1e-8 of it is 0 too: log 0 again. Equal
    saliencies have weight 1, so the floor must be above 0, 1e-30 at least."""
    expect(weights(attempt, [0.0] * 7, (4, 5, 6, 7)), [[1.0, 1, 1, 1, 1, 5, 1]])


def test_one_token_may_have_all_the_rest(attempt):
    """100 tokens, one of them far out: z = 9.95, clipped to 5; the others 1 - 0.5 / sqrt(99)."""
    s = [1e-3] * 99 + [1e3] + [0.0] * 2
    expect(weights(attempt, s, (100, 101, 101, 102)),
           [[1 - 0.5 / 99 ** 0.5] * 99 + [5.0, 1.0, 1.0]])


def test_rows_do_not_mix(attempt):
    """Each completion has its own mean, std and floor, so what else is in the batch changes
    nothing. Nor is s, the mask, spans or advantages changed in place."""
    generator = torch.Generator().manual_seed(6)
    for _ in range(20):
        scale = 10.0 ** torch.randint(-6, 6, (6, 1), generator=generator)              # (6, 1)
        s = torch.randn(6, 14, generator=generator).exp() * scale                      # (6, 14)
        s = s * (torch.rand(6, 14, generator=generator) > 0.1)                         # (6, 14)
        lengths = torch.randint(9, 15, (6, 1), generator=generator)                    # (6, 1)
        mask = torch.arange(14) < lengths                                              # (6, 14)
        start = torch.randint(0, 7, (6,), generator=generator)                         # (6,)
        spans = torch.stack([start, start + 1, start + 2, start + 3], 1)               # (6, 4)
        spans[4], spans[5, 1:3] = -1, spans[5, 3] - 1  # no box; an empty one
        A = torch.tensor([-0.5, 0.5, 0.0, -0.1, -0.3, -0.2])                           # (6,)
        before = s.clone(), mask.clone(), spans.clone(), A.clone()
        names, right = ("s", "mask", "spans", "advantages"), by_loops(s, mask, spans, A)
        expect(attempt(s, mask, spans, A), right, 1e-3)
        for name, now, then in zip(names, (s, mask, spans, A), before):
            expect_unchanged(now, then, name)


if __name__ == "__main__":
    raise SystemExit("Mark it with: python -m pytest exercises -k ex07")
