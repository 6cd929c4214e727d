r"""The policy's log-probabilities of its own rollouts, by one forward pass.

    forward = forward_pass(model, rollouts, rows, temperature, ...)
    forward.logprobs                    # (b, T), with graph: what the loss differentiates
    forward.embeddings, forward.hidden  # what a credit function may look at

Sampler and scorer must use the same distribution: same temperature, no top-k or top-p, log-softmax
in fp32. The logits, (B, T, V), would be the largest tensor of all, so they never exist at once: the
LM head runs on a few hundred tokens at a time, and again in the backward.

What we left out, on purpose: packing several completions into one row (completions of similar
length run together instead, see grpo.microbatches), value heads.
"""
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from engine import graphs


@dataclass
class Forward:
    """The live forward of b rows of at most L tokens: what a credit function may look at."""
    rows: torch.Tensor             # (b,) the numbers of these rows among the batch's B
    ids: torch.Tensor              # (b, L) prompt, completion, padding
    position: torch.Tensor         # (b, T) index of completion token t in its row of ids
    completion_ids: torch.Tensor   # (b, T)
    completion_mask: torch.Tensor  # (b, T) bool, stop token included
    logprobs: torch.Tensor         # (b, T) of the completion tokens, 0 on padding, with graph
    embeddings: torch.Tensor       # (b, L, H) output of the embedding layer, with graph
    hidden: torch.Tensor           # (b, T, H) what the LM head reads to predict token t
    head: torch.nn.Module          # the LM head, H -> V, see lm_head
    temperature: float = 1.0
    entropy: torch.Tensor = None   # (b, T) in nats, without gradient
    hidden_states: tuple = None    # (b, L, H) each: embeddings, block outputs; None if recorded
    layers: Callable = None        # (b, L, H) -> (b, L, H), from embeddings to what the head reads
    body: torch.nn.Module = None   # the same as a module that also takes a KV cache
    version: int = None            # version of the recordings used, see engine/graphs.py
    texts: list = None             # b strings
    sampled: list = None           # b lists of the sampled ids, on the CPU
    rewards: torch.Tensor = None   # (b,)
    advantages: torch.Tensor = None  # (b,)
    signs: list = None             # b signs of the advantages: -1, 0, 1; on the CPU
    tokenizer: object = None
    metrics: dict = field(default_factory=dict)  # credit functions log here: name -> (b,)

    def __post_init__(self):
        if self.signs is None and self.advantages is not None:
            self.signs = self.advantages.sign().tolist()


class ScaledHead(torch.nn.Module):
    """The LM head of a model that scales or caps its logits: cap tanh(scale z / cap)."""

    def __init__(self, head, scale, cap):
        super().__init__()
        self.head = head
        self.scale = scale
        self.cap = cap

    def forward(self, hidden):
        logits = self.head(hidden) * self.scale  # (..., V)
        if self.cap:
            logits = self.cap * torch.tanh(logits / self.cap)  # (..., V)
        return logits

    def slope(self, logits):
        """Derivative of each logit by the LM head's own output z: d logit / dz, (..., V)."""
        return self.scale * (1 - (logits / self.cap).square() if self.cap else 1.0)


def lm_head(model):
    """The module from the last layer's output to the logits, H -> V: the model's LM head, with the
    scale or cap that its config names. A self-test at every load checks it, see models.py."""
    config, head = model.config, model.get_output_embeddings()
    scale = 1.0
    for name in ("logit_scale", "lm_head_multiplier", "output_multiplier"):  # Cohere, Falcon-H1
        scale *= getattr(config, name, None) or 1.0
    scaling = getattr(config, "logits_scaling", None) or 1.0
    scale *= scaling if config.model_type == "hyperclovax" else 1 / scaling  # Granite divides
    cap = getattr(config, "final_logit_softcapping", None)  # Gemma 2
    return head if scale == 1.0 and not cap else ScaledHead(head, scale, cap)


def scores(logits, y, temperature):
    """Log-probability of y (M,) and entropy (M,) under the logits (M, V) at this temperature."""
    # Convert to fp32 before the softmax: log-probs computed in bf16 are off by up to 0.004.
    logits = logits.float() / temperature  # (M, V)
    normaliser = logits.logsumexp(-1)      # (M,)
    logprobs = logits.gather(1, y[:, None])[:, 0] - normaliser  # (M,)
    with torch.no_grad():
        p = (logits - normaliser[:, None]).exp()     # (M, V)
        entropy = normaliser - (p * logits).sum(-1)  # (M,)
    return logprobs, entropy


def to_device(values, device):
    """A tensor of these numbers on `device`, copied without a GPU sync."""
    values = torch.as_tensor(values)
    waits = device.type == "cuda" and values.device.type == "cpu"
    return values.pin_memory().to(device, non_blocking=True) if waits else values.to(device)


def token_logprobs(hidden, head, ids, mask, temperature=1.0, chunk=512, count=None, fused=None):
    """log pi(token | earlier tokens) at this temperature, without ever holding (B, T, V).

    hidden (B, T, H) at the positions that PREDICT the tokens ids (B, T): the caller has already
    shifted them. mask (B, T) bool. Returns logprobs (B, T) fp32 with gradient and entropy (B, T)
    without; both 0 outside the mask. The head runs on `chunk` tokens at a time and again in the
    backward. count: the number of tokens on the mask; passing it avoids a GPU sync.
    fused(h, y, temperature) replaces the chunks (--compile).
    """
    def head_on(h, y):
        return scores(head(h), y, temperature)

    count = int(mask.sum()) if count is None else count
    on = mask.flatten().int().argsort(descending=True, stable=True)[:count]  # (M,)
    h = hidden.flatten(0, 1).index_select(0, on)                             # (M, H)
    y = ids.flatten()[on]                                                    # (M,)
    if fused:
        logprobs, entropy = fused(h, y, temperature)  # (M,) each
    else:
        parts = []  # (logprobs, entropy) of `chunk` tokens each
        for i in range(0, max(1, len(y)), chunk):
            some = h[i:i + chunk], y[i:i + chunk]
            parts.append(torch.utils.checkpoint.checkpoint(head_on, *some, use_reentrant=False))
        logprobs, entropy = (torch.cat(part) for part in zip(*parts))  # (M,) each
    zeros = torch.zeros(ids.shape, device=ids.device)  # (B, T)
    return zeros.masked_scatter(mask, logprobs), zeros.masked_scatter(mask, entropy)


def forward_pass(model, rollouts, rows, temperature=1.0, logprobs=None, **about):
    """Score completions `rows`, b row numbers, with one forward of the policy. Returns a Forward.

    logprobs (B, T): a caller that does not differentiate them can pass the sampler's. The LM head
    then does not run, and there is no entropy. about: more of Forward's fields (texts, ...).
    """
    sizes = [rollouts.sizes[int(i)] for i in rows]  # on the CPU, which avoids a GPU sync
    sampled = [rollouts.sampled[int(i)] for i in rows]
    rows = to_device(rows, rollouts.lengths.device)  # (b,)
    ids, position, completion_ids, mask = join(rollouts, rows, sizes)

    embeddings = model.get_input_embeddings()(ids)  # (b, L, H)
    last, hidden_states, layers = run_layers(model, embeddings)  # (b, L, H)
    predicts = (position - 1)[:, :, None].expand(-1, -1, last.shape[2])  # (b, T, H)
    hidden = last.gather(1, predicts)  # (b, T, H)
    head = lm_head(model)

    entropy = None
    if logprobs is None:
        recorded = vars(model).get("graphs")
        logprobs, entropy = token_logprobs(
            hidden, head, completion_ids, mask, temperature, count=sum(n for _, n in sizes),
            fused=recorded and recorded.head)
    else:
        logprobs = logprobs[rows, :mask.shape[1]]  # (b, T)
    return Forward(rows, ids, position, completion_ids, mask, logprobs, embeddings, hidden, head,
                   temperature, entropy, hidden_states, layers, model.base_model,
                   graphs.version(model), sampled=sampled, **about)


def join(rollouts, rows, sizes):
    """Join prompt and completion of each row: ids (b, L), and position, completion ids and mask,
    (b, T) each.

    All padding moves to the right, and L is the longest row. So no attention mask is needed, since
    causal attention never reads later tokens. With left padding some positions would see no key at
    all, which some PyTorch builds turn into NaN.
    """
    T = max(completion for _, completion in sizes)
    L = max(prompt + completion for prompt, completion in sizes)
    mask = rollouts.completion_mask[rows, :T]                # (b, T)
    completion_ids = rollouts.completion_ids[rows, :T]       # (b, T)
    ids = torch.cat([rollouts.prompt_ids[rows], completion_ids], 1)   # (b, P + T)
    real = torch.cat([rollouts.prompt_mask[rows], mask], 1)           # (b, P + T)
    left = real.int().argsort(dim=1, descending=True, stable=True)    # (b, P + T)
    ids = ids.gather(1, left)[:, :L]                                  # (b, L)
    prompt_lengths = rollouts.prompt_mask[rows].sum(1, keepdim=True)  # (b, 1)
    position = prompt_lengths + torch.arange(T, device=ids.device)    # (b, T)
    position = position.clamp(max=L - 1)  # (b, T) on padding any valid position will do
    return ids, position, completion_ids, mask


def run_layers(model, embeddings):
    """(the LM head's input (b, L, H), hidden states or None, the layers as a function)."""
    if "graphs" in vars(model):  # recorded, see engine/graphs.py
        return model.graphs(embeddings), None, model.graphs
    body = model.base_model

    def layers(x):  # (b, L, H) -> (b, L, H)
        return body(inputs_embeds=x, use_cache=False).last_hidden_state

    out = body(inputs_embeds=embeddings, use_cache=False, output_hidden_states=True)
    return out.last_hidden_state, out.hidden_states, layers
