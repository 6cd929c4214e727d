"""Exercise 8, thirty minutes: OAR's bi-level reshaping, suppress the least and boost the rest.

From one completion's importance scores I, any non-negative numbers, to weights of mean 1:

    z = log(1 + I)
    n = (z - min z) / (max z - min z)               all 0 where every z is equal
    tau = the q-quantile of n, interpolated linearly (place q (T - 1) of the sorted n)
    w = max(n / tau, 0.1)                           where n < tau: suppressed, never quite to 0
    w = 1 + beta (n - tau) / (1 - tau)              where n >= tau: boosted, up to 1 + beta
    weights = w T / sum(w)                          so that the advantage's mass is kept

Both divisions need a little something (1e-8) for tau = 0 and tau = 1.

    python -m pytest exercises -k ex08
"""
import torch  # noqa: F401  in case you need it


def bilevel_weights(scores, q=0.25, beta=1.0):
    """scores: float tensor (T,), T >= 1, not changed. Returns weights (T,), mean 1."""
    raise NotImplementedError
