"""Exercise 4, fifteen minutes: Pass@k without bias.

You sampled a problem n times and c samples were right. What would you have seen with only k of the
n? The chance that k samples, drawn from the n without putting any back, hold at least one right
one. It is not 1 - (1 - c/n)^k: that formula puts each sample back, and is too low on average.

    python -m pytest exercises -k ex04
"""


def pass_at_k(correct, samples, k):
    """correct: counts c, int64 tensor (N,); samples n; k. Returns a float64 tensor (N,).

    Raises ValueError unless 1 <= k <= n.
    """
    raise NotImplementedError
