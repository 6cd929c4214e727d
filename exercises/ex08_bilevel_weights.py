"""Exercise 8, thirty minutes: OAR's bi-level reshaping. Suppress the least, boost the rest.

Turn one completion's importance scores I, any non-negative numbers, into weights of mean 1:

    z = log(1 + I)
    n = (z - min z) / (max z - min z)               all 0 if every z is equal
    tau = the q-quantile of n, interpolated linearly (index q (T - 1) of the sorted n)
    w = max(n / tau, 0.1)                           where n < tau: suppressed, but not to 0
    w = 1 + beta (n - tau) / (1 - tau)              where n >= tau: boosted, up to 1 + beta
    weights = w T / sum(w)                          mean 1, so the step keeps its size

Add 1e-8 to the divisors tau and 1 - tau, because tau can be 0 or 1. Add nothing to max z - min z:
OAR-G's scores are about 1e-9, and so is their range.

    python -m pytest exercises -k ex08
"""
import torch  # noqa: F401  in case you need it


def bilevel_weights(scores, q=0.25, beta=1.0):
    """scores: float tensor (T,), T >= 1; do not change it. Returns weights (T,), mean 1."""
    raise NotImplementedError


if __name__ == "__main__":
    raise SystemExit("Mark it with: python -m pytest exercises -k ex08")
