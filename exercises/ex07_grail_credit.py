"""Exercise 7, forty minutes: from saliency to weights, GRAIL's way.

Within each completion, over the tokens before its box and no others:

    z_t = (log s_t - mean) / std        population std, over those tokens' log s
    w_t = clip(1 + 0.5 z_t, 0.5, 5)

5 on the content of the box; 1 on the rest of the box and on all that follows; 0 on padding. A
completion has weight 1 on every token if it has no box, fewer than 2 tokens before it, or did
better than its group (A > 0).

Four traps of arithmetic.
  - A saliency of 0 is allowed: add 1e-8 of the row's largest s before the log.
  - All of a row's saliencies may be 0. Then that is 0 as well: add 1e-30 at least.
  - Equal saliencies must give exactly 1, though rounding makes the spread of their logs not quite
    0: compute in float64, and divide by sqrt(variance + 1e-8).
  - Padding may hold anything, NaN too, and must change nothing. 0 * NaN is NaN, so choose by
    torch.where or masked_fill and do not multiply.

    python -m pytest exercises -k ex07
"""
import torch  # noqa: F401  in case you need it


def grail_credit(s, mask, spans, advantages):
    """s (B, T) saliency, mask (B, T) bool, advantages (B,). Returns weights (B, T).

    spans (B, 4) int64: start, content, close, end of each row, in tokens, see exercise 5. A row
    without a box has -1 four times, for a tensor holds no None.
    """
    raise NotImplementedError
