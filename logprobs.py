r"""What the policy thinks of its rollouts: one forward, log-probabilities of what was sampled.

    forward = forward_pass(model, rollouts, rows, temperature, ...)
    forward.logprobs                    # (b, T), in the graph: what the loss differentiates
    forward.embeddings, forward.hidden  # what a credit function may look at

Sampler and scorer must mean the same distribution: same temperature, no cut-offs, log-softmax in
fp32. The head's logits, (B, T, V), would be the largest tensor of all and never exist: the head
runs on a few hundred tokens at a time, and again in the backward.

What we left out, on purpose: packing several completions into one row (they are batched by alike
lengths instead, see grpo.microbatches), value heads, models that scale or cap their logits.
"""
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.utils.checkpoint import checkpoint


@dataclass
class Forward:
    """The live forward of b rows of at most L tokens: what a credit function may look at."""
    ids: torch.Tensor              # (b, L) prompt, completion, padding
    embeddings: torch.Tensor       # (b, L, H) output of the embedding layer, in the graph
    hidden_states: tuple           # (b, L, H) each: embeddings, block outputs; None if compiled
    place: torch.Tensor            # (b, T) where completion token t stands in the row of L
    hidden: torch.Tensor           # (b, T, H) what the LM head reads where it predicts token t
    head: torch.nn.Module          # the LM head, H -> V
    temperature: float
    logprobs: torch.Tensor         # (b, T) of the completion tokens, 0 on padding, in the graph
    entropy: torch.Tensor          # (b, T) in nats, detached
    completion_ids: torch.Tensor   # (b, T)
    completion_mask: torch.Tensor  # (b, T) bool, stop token included
    texts: list                    # b strings
    sampled: list                  # b lists of the sampled ids, on the CPU
    rewards: torch.Tensor          # (b,)
    advantages: torch.Tensor       # (b,)
    tokenizer: object
    rows: torch.Tensor             # (b,) which of the batch's B rows these are
    layers: Callable               # (b, L, H) -> (b, L, H), from embeddings to what the head reads
    body: torch.nn.Module          # the same as a module, which takes a cache as well
    signs: list = None             # b of -1, 0, 1: the advantages', on the CPU, nothing to wait for
    figures: dict = field(default_factory=dict)  # for the log: name -> (b,), NaN: not counted

    def __post_init__(self):
        if self.signs is None and self.advantages is not None:
            self.signs = self.advantages.sign().tolist()


def scores(logits, y, temperature):
    """Log-probability of y (M,) and entropy (M,) under the logits (M, V) at this temperature."""
    # fp32 before the softmax: log-probs taken in bf16 are off by up to 0.004.
    logits = logits.float() / temperature  # (M, V)
    normaliser = logits.logsumexp(-1)      # (M,)
    with torch.no_grad():
        p = (logits - normaliser[:, None]).exp()  # (M, V)
        entropy = normaliser - (p * logits).sum(-1)  # (M,)
    return logits.gather(1, y[:, None])[:, 0] - normaliser, entropy


def on_card(values, device):
    """A tensor of these numbers there, sent without waiting for what the card still has to do."""
    values = torch.as_tensor(values)
    waits = device.type == "cuda" and values.device.type == "cpu"
    return values.pin_memory().to(device, non_blocking=True) if waits else values.to(device)


def token_logprobs(hidden, head, ids, mask, temperature=1.0, chunk=512, count=None, fused=None):
    """log pi(token | what came before) at this temperature, without ever holding (B, T, V).

    hidden (B, T, H) at the positions that PREDICT the tokens ids (B, T), so no shift is left to the
    caller; mask (B, T) bool. Returns logprobs (B, T) fp32 with gradient and entropy (B, T) without;
    both 0 off the mask. The head runs on `chunk` tokens at a time and again in the backward. count:
    how many are on the mask, for a caller that knows; else the card is asked, which is to wait.
    fused(h, y, temperature): in place of all this (--compile).
    """
    def head_on(h, y):
        return scores(head(h), y, temperature)

    count = int(mask.sum()) if count is None else count
    on = mask.flatten().int().argsort(descending=True, stable=True)[:count]  # (M,)
    h, y = hidden.flatten(0, 1).index_select(0, on), ids.flatten()[on]       # (M, H), (M,)
    if fused:
        logprobs, entropy = fused(h, y, temperature)  # (M,) each
    else:
        parts = [checkpoint(head_on, h[i:i + chunk], y[i:i + chunk], use_reentrant=False)
                 for i in range(0, max(1, len(y)), chunk)]
        logprobs, entropy = (torch.cat(part) for part in zip(*parts))  # (M,) each
    zeros = torch.zeros(ids.shape, device=ids.device)  # (B, T)
    return zeros.masked_scatter(mask, logprobs), zeros.masked_scatter(mask, entropy)


def forward_pass(model, rollouts, rows, temperature, compiled=False, logprobs=None, **about):
    """Score completions `rows`, b numbers, with the policy: one forward, as a Forward.

    Prompt and completion are joined and the padding squeezed out to the right, L = the longest row.
    No mask is then needed, for causality hides what follows; left padding would make positions that
    see no key at all, which some PyTorch builds turn into NaN. logprobs (B, T): the sampler's own,
    for a caller that needs no gradient; the LM head is then spared, and there is no entropy.
    """
    sizes = [rollouts.sizes[int(i)] for i in rows]  # from the CPU: to ask the card is to wait
    sampled = [rollouts.sampled[int(i)] for i in rows]
    rows = on_card(rows, rollouts.lengths.device)  # (b,)
    T = max(completion for _, completion in sizes)
    mask, completion_ids = rollouts.completion_mask[rows, :T], rollouts.completion_ids[rows, :T]
    ids = torch.cat([rollouts.prompt_ids[rows], completion_ids], 1)  # (b, P + T)
    real = torch.cat([rollouts.prompt_mask[rows], mask], 1)  # (b, P + T)
    left = real.int().argsort(dim=1, descending=True, stable=True)  # (b, P + T)
    ids = ids.gather(1, left)[:, :max(map(sum, sizes))]  # (b, L)
    prompt_lengths = rollouts.prompt_mask[rows].sum(1, keepdim=True)  # (b, 1)
    place = prompt_lengths + torch.arange(T, device=ids.device)  # (b, T)
    place = place.clamp(max=ids.shape[1] - 1)  # (b, T) beyond a row's end anything will do
    embeddings = model.get_input_embeddings()(ids)  # (b, L, H)
    body = model.base_model
    if compiled:
        layers = model.graphs
        last, hidden_states = layers(embeddings), None  # (b, L, H)
    else:
        def layers(x):  # (b, L, H) -> (b, L, H)
            return body(inputs_embeds=x, use_cache=False).last_hidden_state

        out = body(inputs_embeds=embeddings, use_cache=False, output_hidden_states=True)
        last, hidden_states = out.last_hidden_state, out.hidden_states
    hidden = last.gather(1, (place - 1)[:, :, None].expand(-1, -1, last.shape[2]))  # (b, T, H)
    head = model.get_output_embeddings()
    if logprobs is None:
        logprobs, entropy = token_logprobs(hidden, head, completion_ids, mask, temperature,
                                           count=sum(n for _, n in sizes),
                                           fused=model.graphs.head if compiled else None)
    else:
        logprobs, entropy = logprobs[rows, :T], None
    return Forward(ids, embeddings, hidden_states, place, hidden, head, temperature, logprobs,
                   entropy, completion_ids, mask, rows=rows, sampled=sampled, layers=layers,
                   body=body, **about)
