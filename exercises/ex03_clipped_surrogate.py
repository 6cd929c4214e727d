"""Exercise 3, fifteen minutes: the clip, and its sign.

ratio = new policy / old policy, for each token. The surrogate is the smaller of two numbers,

    min( ratio A,  clip(ratio, 1 - low, 1 + high) A )

for both signs of A. Before you write it, fill in this table on paper with low = high = 0.2. In
which rows does a token still have a gradient?

    A     ratio    surrogate
    +1    1.5      ?
    +1    0.5      ?
    -1    1.5      ?
    -1    0.5      ?

    python -m pytest exercises -k ex03
"""
import torch  # noqa: F401  in case you need it


def clipped_surrogate(ratio, A, low, high):
    """ratio (B, T), A (B, T) or (B, 1). Returns (B, T), to be maximised, with gradient.

    Do not change ratio and A.
    """
    raise NotImplementedError


if __name__ == "__main__":
    raise SystemExit("Mark it with: python -m pytest exercises -k ex03")
