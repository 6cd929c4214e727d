"""Exercise 10, an afternoon: your own credit against GRAIL's, on the embedded model.

A method of token-level credit is one function from the forward pass to weights. 1 everywhere is
GRPO. `forward` (the class Forward) knows more: how unsure the model was (entropy), how likely each
token was (logprobs), how long the completion is, where its box is (saliency.answer_span), which
tokens the box depends on (saliency.gradient_activation), and whether the completion beat its group
(advantages). It does not have the gold answer.

    python -m pytest exercises -k ex10          # does it keep the rules?
    python exercises/leaderboard.py NAME        # is it better? 15 steps, 3 seeds; it says how long

The rules: weights are finite, >= 0, of shape (b, T), without gradient. A row's weights depend on no
other row, because micro-batches must not matter. Do not change any parameter's .grad. Keep the
graph, because the loss still needs it.

A difference over 3 seeds is not reliable. Trust the interval that the board prints.
"""
import torch  # noqa: F401  in case you need it

import saliency  # noqa: F401


def your_own_credit(forward):
    """forward: the Forward of b rows. Returns weights (b, T)."""
    raise NotImplementedError


if __name__ == "__main__":
    raise SystemExit("Mark it with: python -m pytest exercises -k ex10")
