"""OAR-P from a cache: what saliency.perturbation does, many tokens at a time.

Skip this on a first reading.

Replacing N tokens of a row of L is N forwards of L tokens by definition. Under causal attention
nothing before a replaced token changes, so the keys and values of what precedes it are kept: half
of the N L tokens are left. tests/test_oar.py compares the two, number by number.
"""
import copy

import torch

from engine import decode
from engine.caches import Cache, repeat_rows


@torch.no_grad()
@decode.uncompiled()
def perturbation(forward, spans, shift, replace="pad", chunk=0):
    """How far the answer moves when a token is replaced, for all before the box: (b, T) fp32.

    forward, spans, replace: as in saliency.perturbation. shift(clean (1, K, V), changed (c, K, V),
    ids (K,)) -> (c,) measures. chunk - 1 changed copies and a clean one run at a time (0: 16,384
    tokens of them), never more than that is in memory. Rows without an answer get zeros.
    """
    scores = torch.zeros_like(forward.logprobs)  # (b, T)
    body, training = forward.body, forward.body.training
    pad = torch.tensor([forward.tokenizer.pad_token_id], device=scores.device)
    pad = body.get_input_embeddings()(pad)[0]    # (H,)
    body.eval()  # no dropout, and no checkpointing, which may switch the cache off
    caches = {}  # of the prompts, which rows of one group share
    firsts = forward.position[:, 0].tolist()     # where a row's completion begins
    prompts = forward.ids.tolist()
    try:
        for i, (start, content, close, _) in enumerate(spans.tolist()):
            if content == close:
                continue
            first = firsts[i]
            row = forward.embeddings[i, :first + close - 1]  # (n, H) up to where the box is settled
            prompt = tuple(prompts[i][:first])
            if prompt not in caches:
                caches[prompt] = Cache(config=body.config)
                run(body, row[None, :first], caches[prompt])
            substitute = pad if replace == "pad" else row[first:first + start].mean(0)  # (H,)
            ids = forward.completion_ids[i, content:close]                              # (K,)

            parts = []
            for hidden in copies(body, row, first, start, substitute, caches[prompt], chunk):
                hidden = hidden[:, content - close:]                                    # (c, K, H)
                logits = forward.head(hidden.to(row.dtype))                             # (c, K, V)
                parts.append(shift(logits[-1:], logits[:-1], ids))                      # (c - 1,)
            if parts:
                scores[i, :start] = torch.cat(parts)
    finally:
        body.train(training)
    return scores


def copies(body, row, first, start, substitute, prompt_cache, chunk):
    """Hidden states (c, m, H) of c - 1 copies of the row with one token replaced, the last clean.

    Copy j of a chunk has token begin + j replaced; all of them begin there, after the cache.
    """
    cache, cached = copy.deepcopy(prompt_cache), first
    many = (chunk or max(2, 2**14 // len(row))) - 1
    for begin in range(first, first + start, many):
        end = min(begin + many, first + start)
        if begin > cached:
            run(body, row[None, cached:begin], cache)
            cached = begin
        changed = row[begin:].repeat(end - begin + 1, 1, 1)  # (c, n - begin, H)
        j = torch.arange(end - begin)                        # (c - 1,)
        changed[j, j] = substitute.to(row.dtype)
        branch = copy.deepcopy(cache)
        repeat_rows(branch, 1, len(changed), row.device)
        yield run(body, changed, branch)


def run(body, embeddings, cache):
    """Hidden states of embeddings (c, m, H) that follow the cache, which grows by them."""
    device = embeddings.device.type
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        # Arguments by place: transformers 5.24 renamed the fourth.
        out = body(None, None, None, cache, embeddings, use_cache=True)
    return out.last_hidden_state
