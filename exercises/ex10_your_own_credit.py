"""Exercise 10, an afternoon: a credit of your own, against GRAIL's, on the embedded model.

A method of token-level credit is one function from the live forward to weights. 1 everywhere is
GRPO. What else does `forward` (the class Forward) know? How unsure the model was (entropy), how
likely each token was (logprobs), how long the completion is, where its box is
(saliency.answer_span), what the box leans on (saliency.gradient_activation), whether the completion
beat its group (advantages). The gold answer is not in it.

    python -m pytest exercises -k ex10          # does it keep the rules?
    python exercises/leaderboard.py NAME        # is it better? 15 steps, 3 seeds; it says how long

The rules: finite weights >= 0 of shape (b, T), without gradient; a row's weights depend on no other
row (rows come in micro-batches, which must not matter); no parameter's .grad is touched; and the
graph survives, because the loss is still to be derived from it.

A difference over 3 seeds is a rumour. The board prints its interval; believe that.
"""
import torch  # noqa: F401  in case you need it

import saliency  # noqa: F401


def your_own_credit(forward):
    """forward: the Forward of b rows. Returns weights (b, T)."""
    raise NotImplementedError
