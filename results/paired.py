r"""Statistics over seeds: is B better than A, when each was trained S times?

    d[s, p] = score of B - score of A, seed s, problem p       same seed: same problems in the same
                                                               order, same random numbers

    t_interval(d.mean(1))         these problems, other seeds
    both_levels(d)                other problems, other seeds
    p_value(d.mean(1)), holm      one test, and its correction for k tests
    detectable(sd, seeds)         the difference that such a test can detect

Student's t comes from intervals.py, which has the statistics over problems and samples.

What we left out, on purpose: normal theory (ten seeds are few), non-parametric tests over seeds
(with three pairs of seeds p is never below 0.25), mixed models.
"""
import functools
import math
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from intervals import Z, t_outside, t_quantile  # noqa: E402


def t_interval(x):
    """(mean, low, high) at 95 % of S numbers (S,); low and high are infinite for S = 1."""
    m, S = x.mean().item(), len(x)
    half = t_quantile(S - 1) * x.std().item() / math.sqrt(S) if S > 1 else math.inf
    return m, m - half, m + half


def p_value(x):
    """Two-sided p of the one-sample t test that the mean of x (S,) is 0; 1 if all are 0."""
    if len(x) < 2:
        return 1.0
    if x.std() == 0:
        return 0.0 if x[0] else 1.0
    t = abs(x.mean().item()) / (x.std().item() / math.sqrt(len(x)))
    return t_outside(t, len(x) - 1)


def detectable(sd, seeds=10, power=0.8):
    """The difference that a 5 % paired t test over `seeds` seeds detects with this power, roughly
    (t_0.975 + t_power) sd / sqrt(seeds). sd: of the paired differences."""
    both = t_quantile(seeds - 1) + t_quantile(seeds - 1, 2 * power - 1)
    return both * sd / seeds ** 0.5


def holm(ps):
    """Holm's adjusted p: (k - i + 1) times the i-th smallest of k, at least the one before."""
    out, floor = [0.0] * len(ps), 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        floor = out[i] = max(floor, min(1.0, (len(ps) - rank) * ps[i]))
    return out


@functools.lru_cache  # the same for every comparison of so many seeds and problems
def draws_with_replacement(S, N, resamples):
    """How often each seed and each problem was drawn, as shares: (R, S) and (R, N)."""
    generator = torch.Generator().manual_seed(0)
    return [torch.zeros(resamples, n).scatter_add_(
        1, torch.randint(n, (resamples, n), generator=generator), torch.ones(resamples, n)
    ).double() / n for n in (S, N)]


def both_levels(d, resamples=4000):
    """95 % interval of the mean of d (S, N) with seeds and problems drawn with replacement.

    Ten resampled seeds vary too little, by the factor sqrt((S - 1) / S) z / t. So we widen their
    deviations by its inverse, as intervals.bootstrap does for problems.
    """
    S, N = d.shape
    if S < 2:
        return -math.inf, math.inf
    wide = math.sqrt(S / (S - 1)) * t_quantile(S - 1) / Z
    d = d + (wide - 1) * (d.mean(1, keepdim=True) - d.mean())                     # (S, N)
    seeds, problems = draws_with_replacement(S, N, resamples)                     # (R, S), (R, N)
    draws = ((seeds @ d) * problems).sum(1)                                       # (R,)
    return tuple(torch.quantile(draws, torch.tensor([0.025, 0.975], dtype=draws.dtype)).tolist())
