"""Marks exercise 8."""
import math

import torch
from expected import expect, expect_unchanged


def by_loops(scores, q=0.25, beta=1.0, tau=None, floor=0.1, log=math.log1p, renormalise=True,
             added=0.0):
    """The definition in plain Python. What stands after beta: the mistakes, for the messages."""
    z = [log(x) for x in scores]
    spread = max(z) - min(z) + added
    n = [(x - min(z)) / spread if spread else 0.0 for x in z]
    place = q * (len(n) - 1)
    low, ordered = int(place), sorted(n)
    high = min(low + 1, len(n) - 1)
    between = ordered[low] + (place - low) * (ordered[high] - ordered[low])
    tau = between if tau is None else tau(ordered)
    w = [max(x / (tau + 1e-8), floor) if x < tau else 1 + beta * (x - tau) / (1 - tau + 1e-8)
         for x in n]
    scale = len(w) / sum(w) if renormalise else 1.0
    return torch.tensor([x * scale for x in w], dtype=torch.float64)


def mistakes(scores, q=0.25, beta=1.0):
    """{sentence: what that mistake gives here}, for the messages."""
    case = scores, q, beta
    return {
        "q is taken as the threshold itself": by_loops(*case, tau=lambda n: q),
        "tau is the nearest lower token's n, without interpolation":
            by_loops(*case, tau=lambda n: n[int(q * (len(n) - 1))]),
        "tau is the token at place q T, not interpolated at q (T - 1)":
            by_loops(*case, tau=lambda n: n[min(int(q * len(n)), len(n) - 1)]),
        "the floor of 0.1 is missing": by_loops(*case, floor=0.0),
        "the logarithm is missing": by_loops(*case, log=lambda x: x),
        "the weights do not have mean 1 yet": by_loops(*case, renormalise=False),
        "the weights sum to 1: they must have mean 1": by_loops(*case) / len(scores)}


def weights(attempt, scores, q=0.25, beta=1.0):
    return attempt(torch.tensor(scores, dtype=torch.float64), q, beta)


def scores_of(z):
    """Scores whose log(1 + I) is z."""
    return torch.expm1(torch.tensor(z, dtype=torch.float64)).tolist()


def test_five_even_steps(attempt):
    """n = 0, .25, .5, .75, 1; tau = .25; w = .1, 1, 4/3, 5/3, 2, of sum 6.1."""
    scores = scores_of([0.0, 1.0, 2.0, 3.0, 4.0])
    expect(weights(attempt, scores), [.081967, .819672, 1.092896, 1.366120, 1.639344], 1e-5,
           mistakes(scores))


def test_another_quantile_and_boost(attempt):
    """q = .4, beta = 2: tau = .4, between two tokens; w = .1, .625, 4/3, 13/6, 3, of sum 7.225."""
    scores = scores_of([0.0, 1.0, 2.0, 3.0, 4.0])
    expect(weights(attempt, scores, 0.4, 2.0), [.069204, .432526, .922722, 1.499423, 2.076125],
           1e-5, mistakes(scores, 0.4, 2.0))


def test_scores_of_very_unequal_size(attempt):
    """tau is a quantile of n, .00688 here; taken as the number .25 it would suppress 6 of 10."""
    scores = [0.0, .01, .02, .05, .1, .2, .5, 1.0, 5.0, 50.0]
    expect(weights(attempt, scores), [.100178, .368512, .733393, 1.007362, 1.019297, 1.041620,
                                      1.098868, 1.172674, 1.454527, 2.003569], 1e-5,
           mistakes(scores))


def test_scores_far_below_one(attempt):
    """OAR-G's signals are about 1e-9. log(1 + I) is almost I then, and max z - min z is smaller
    than the 1e-8 that one adds elsewhere. So nothing is added here, and small is not equal."""
    for scores in ([1e-9, 2e-9, 3e-9, 5e-9], [4e-8, 1e-9, 0.0, 2e-8, 7e-9, 5e-7]):
        for q, beta in ((0.25, 1.0), (0.4, 2.0)):
            expect(weights(attempt, scores, q, beta), by_loops(scores, q, beta), 1e-3, mistakes={
                "1e-8 is added to max z - min z": by_loops(scores, q, beta, added=1e-8),
                "1e-6 is added to max z - min z": by_loops(scores, q, beta, added=1e-6),
                "scores that are almost equal are taken for equal": [1.0] * len(scores)
            } | mistakes(scores, q, beta))


def test_equal_scores_and_a_single_token_keep_weight_one(attempt):
    """max z - min z is 0 there, and 0 / 0 is NaN: n is 0 for all of them, so every weight is 1."""
    expect(weights(attempt, [.7] * 4), [1.0] * 4, 1e-5)
    expect(weights(attempt, [3.0]), [1.0], 1e-5)
    expect(weights(attempt, [0.0] * 3), [1.0] * 3, 1e-5)


def test_many_at_the_minimum_means_nothing_is_suppressed(attempt):
    """tau = 0, and no n is below it: w = 1, 1, 1, 2. Add 1e-8 to tau
    before you divide by it."""
    expect(weights(attempt, [0.0, 0.0, 0.0, 1.0]), [.8, .8, .8, 1.6], 1e-5)


def test_tau_may_be_one(attempt):
    """Then 1 - tau is 0: add 1e-8 to it before you divide by it. What is at tau has weight 1: w =
    .1, 1, 1, 1."""
    expect(weights(attempt, [0.0, 1.0, 1.0, 1.0], q=0.5), [.129032, 1.290323, 1.290323, 1.290323],
           1e-5)


def test_order_does_not_matter_and_mass_is_kept(attempt):
    """Weights belong to their tokens, not to ranks, so sorting must be undone."""
    expect(weights(attempt, [0.3, 0.0, 2.0, 0.05, 0.7]),
           [1.044215, .086769, 1.735385, .867693, 1.265938], 1e-5)
    expect(weights(attempt, [0.7, 2.0, 0.3, 0.0, 0.05]),
           [1.265938, 1.735385, 1.044215, .086769, .867693], 1e-5)


def test_any_scores_and_nothing_is_changed(attempt):
    """Any length, quantile and boost; and the scores are needed again: change nothing in place."""
    generator = torch.Generator().manual_seed(8)
    for T in (2, 3, 7, 20, 33):
        for q, beta in ((0.25, 1.0), (0.4, 2.0), (0.1, 0.5), (0.75, 1.0)):
            scores = torch.randn(T, generator=generator).double().mul(2).exp()         # (T,)
            scores = scores * (torch.rand(T, generator=generator) > 0.1)               # (T,)
            before = scores.clone()
            expect(attempt(scores, q, beta), by_loops(before.tolist(), q, beta), 1e-5,
                   mistakes(before.tolist(), q, beta))
            expect_unchanged(scores, before, "scores")


if __name__ == "__main__":
    raise SystemExit("Mark it with: python -m pytest exercises -k ex08")
