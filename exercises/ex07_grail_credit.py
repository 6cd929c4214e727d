"""Exercise 7, forty minutes: from saliency to weights, GRAIL's way.

Within each completion, using only the tokens before its box:

    z_t = (log s_t - mean) / std        population std (divided by n, not n - 1), over their log s
    w_t = clip(1 + 0.5 z_t, 0.5, 5)

The content of the box gets 5. The rest of the box and all tokens after it get 1. Padding gets 0. A
completion has weight 1 on every token if it has no box, fewer than 2 tokens before the box, or did
better than its group (A > 0).

Four traps of arithmetic.
  - A saliency of 0 is allowed: before the log, add 1e-8 times the largest s of the completion,
    box included and padding not.
  - All of a row's saliencies may be 0. Then this product is 0, too: add at least 1e-30.
  - Equal saliencies must give exactly 1, but rounding makes the std of their logs not quite 0.
    Compute in float64, and divide by sqrt(variance + 1e-8).
  - Padding may hold anything, even NaN, and must change nothing. 0 * NaN is NaN, so use
    torch.where or masked_fill. Do not multiply.

    python -m pytest exercises -k ex07
"""
import torch  # noqa: F401  in case you need it


def grail_credit(s, mask, spans, advantages):
    """s (B, T) saliency, mask (B, T) bool, advantages (B,). Returns weights (B, T).

    spans (B, 4) int64: start, content, close, end of each row's box, in tokens, as in section 5 of
    docs/walkthrough.md. A row without a box has -1 four times: a tensor cannot hold None.
    """
    raise NotImplementedError


if __name__ == "__main__":
    raise SystemExit("Mark it with: python -m pytest exercises -k ex07")
