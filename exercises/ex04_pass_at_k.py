"""Exercise 4, fifteen minutes: Pass@k without bias.

You sampled a problem n times, and c samples were right. Now draw k of the n without putting any
back. What is the chance that at least one of the k is right? It is not 1 - (1 - c/n)^k: that
formula puts each sample back, and is too low on average.

The result is float64. torch.tensor makes float32 of Python's numbers unless you pass
dtype=torch.float64. n may be 2000: then the number of possible draws is too large for a float.

    python -m pytest exercises -k ex04
"""
import math  # noqa: F401  in case you need it

import torch  # noqa: F401


def pass_at_k(correct, samples, k):
    """correct: counts c, int64 tensor (N,); samples n; k. Returns (N,) float64.

    Raises ValueError unless 1 <= k <= n.
    """
    raise NotImplementedError


if __name__ == "__main__":
    raise SystemExit("Mark it with: python -m pytest exercises -k ex04")
