"""The solutions are the project's own functions. Look here last.

    python -m pytest exercises --solutions
"""
from types import SimpleNamespace

import torch

import grail
import oar
import saliency
from evaluate import pass_at_k  # noqa: F401
from grail import grail_credit  # noqa: F401
from grpo import clipped_surrogate, group_advantages  # noqa: F401
from logprobs import token_logprobs
from saliency import answer_span  # noqa: F401


def completion_logprobs(logits, ids, prompt_length, temperature=1.0):
    """token_logprobs applies the head itself, but here the logits are already given."""
    completion_ids = ids[:, prompt_length:]  # (B, T)
    return token_logprobs(logits[:, prompt_length - 1:-1], torch.nn.Identity(), completion_ids,
                          torch.ones_like(completion_ids).bool(), temperature)[0]


def gradient_activation(forward, spans):
    """saliency.gradient_activation, with the boxes as a tensor, -1 in rows without one."""
    boxes = torch.tensor([span or saliency.NO_BOX for span in spans])  # (b, 4)
    return saliency.gradient_activation(forward, boxes)


def bilevel_weights(scores, q=0.25, beta=1.0):
    """oar.oar_credit, of one row in which every token is scored."""
    on = torch.ones(1, len(scores)).bool()  # (1, T)
    return oar.oar_credit(scores[None], on, on, q, beta)[0][0]


def score(model, prompts, completions, pad_id):
    """The exercise's function with its four repairs. The project uses `forward_pass`. It moves all
    padding to the right, where causal attention hides it, and needs neither mask nor positions."""
    P, T = max(map(len, prompts)), max(map(len, completions))
    ids = torch.tensor([[pad_id] * (P - len(p)) + p + c + [pad_id] * (T - len(c))
                        for p, c in zip(prompts, completions)])                        # (B, P + T)
    # 1 and 2. Both masks are made of lengths: what a token looks like says nothing.
    before = P - torch.tensor([[len(p)] for p in prompts])                             # (B, 1)
    mask = torch.arange(T) < torch.tensor([[len(c)] for c in completions])             # (B, T)
    real = torch.cat([torch.arange(P) >= before, mask], 1)                             # (B, P + T)
    # 3. Each row's own first token has place 0.
    places = (real.long().cumsum(1) - 1).clamp(min=0)                                  # (B, P + T)
    logits = model(ids, attention_mask=real.long(), position_ids=places).logits        # (B, L, V)
    log_p = logits[:, P - 1:-1].log_softmax(-1)                                        # (B, T, V)
    logprobs = log_p.gather(2, ids[:, P:, None])[:, :, 0].masked_fill(~mask, 0)        # (B, T)
    # 4. The mean is over a row's own tokens.
    return logprobs, mask, logprobs.sum(1) / mask.sum(1)


your_own_credit = grail.credit(SimpleNamespace(
    as_released=False, activation="embeddings", reweight="wrong"))
