"""Exercise 3, fifteen minutes: the clip, and its sign.

ratio = new policy / old policy, a token at a time. The surrogate is the smaller of two numbers,

    min( ratio A,  clip(ratio, 1 - low, 1 + high) A )

for A of either sign. Before you write it, fill this table on paper, low = high = 0.2, and say in
which rows a token still has a gradient:

    A     ratio    surrogate
    +1    1.5      ?
    +1    0.5      ?
    -1    1.5      ?
    -1    0.5      ?

    python -m pytest exercises -k ex03
"""
import torch  # noqa: F401  in case you need it


def clipped_surrogate(ratio, A, low, high):
    """ratio (B, T), A (B, T) or (B, 1). Returns (B, T), to be maximised; the gradient flows.

    ratio and A are not changed.
    """
    raise NotImplementedError
