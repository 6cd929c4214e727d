"""The solutions are the project's own functions. Look here last.

    EXERCISES=solutions python -m pytest exercises
"""
from types import SimpleNamespace

import torch

import grail
import oar
import rollout
import saliency
from evaluate import pass_at_k  # noqa: F401
from grpo import clipped_surrogate, group_advantages  # noqa: F401
from logprobs import forward_pass, token_logprobs
from saliency import answer_span  # noqa: F401


def completion_logprobs(logits, ids, prompt_length, temperature=1.0):
    """token_logprobs, which applies the head itself: here the logits are there already."""
    completion_ids = ids[:, prompt_length:]  # (B, T)
    return token_logprobs(logits[:, prompt_length - 1:-1], torch.nn.Identity(), completion_ids,
                               torch.ones_like(completion_ids).bool(), temperature)[0]


def boxes(spans):
    """Spans, or None for a row without a box, as the tensor (b, 4) that our functions take."""
    return torch.tensor([span or saliency.NO_BOX for span in spans])


def gradient_activation(forward, spans):
    """saliency.gradient_activation, with the boxes as a tensor."""
    return saliency.gradient_activation(forward, boxes(spans))


def grail_credit(s, mask, spans, advantages):
    """grail.grail_credit, with the boxes as a tensor."""
    return grail.grail_credit(s, mask, boxes(spans), advantages)


def bilevel_weights(scores, q=0.25, beta=1.0):
    """oar.oar_credit, of one row in which every token is scored."""
    on = torch.ones(1, len(scores)).bool()  # (1, T)
    return oar.oar_credit(scores[None], on, on, q, beta)[0][0]


def score(model, prompts, completions, pad_id):
    """rollout.pad and forward_pass: masks are made of lengths, and all padding is moved right.
    """
    prompt_ids, prompt_mask = rollout.pad(prompts, pad_id, "left")         # (B, P) each
    completion_ids, mask = rollout.pad(completions, pad_id, "right")       # (B, T) each
    lengths = mask.sum(1)                                                  # (B,)
    rollouts = rollout.Rollouts(prompt_ids, prompt_mask, completion_ids, lengths,
                                finished=None, logprobs=None, texts=[])
    logprobs = forward_pass(model, rollouts, torch.arange(len(prompts)), 1.0, texts=[],
                                 rewards=None, advantages=None, tokenizer=None).logprobs  # (B, T)
    return logprobs, mask, logprobs.sum(1) / lengths


your_own_credit = grail.credit(SimpleNamespace(
    as_released=False, activation="embeddings", reweight="wrong"))
