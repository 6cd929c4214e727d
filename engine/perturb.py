"""OAR-P with a KV cache: the same as saliency.perturbation, many tokens at a time.

Skip this on a first reading.

By definition, replacing N tokens of a row of L needs N forwards of L tokens. With causal attention
nothing before a replaced token changes, so we keep the keys and values of the tokens before it.
This halves the N L tokens. tests/test_oar.py compares the two, number by number.
"""
import copy

import torch

from engine import decode
from engine.caches import Cache, repeat_rows


@torch.no_grad()
@decode.uncompiled()
def perturbation(forward, spans, shift, replace="pad", chunk=0):
    """How far the answer moves when one token before the box is replaced: (b, T) fp32.

    forward, spans, replace: as in saliency.perturbation. shift(clean (1, K, V), changed (c, K, V),
    ids (K,)) -> (c,) measures. `chunk` copies run at a time: the last is clean, the others have one
    changed token (0: 16,384 tokens in all). Rows without an answer get zeros.
    """
    scores = torch.zeros_like(forward.logprobs)  # (b, T)
    body, training = forward.body, forward.body.training
    pad = torch.tensor([forward.tokenizer.pad_token_id], device=scores.device)
    pad = body.get_input_embeddings()(pad)[0]    # (H,)
    body.eval()  # no dropout, and no checkpointing, which may switch off the cache
    caches = {}  # one per prompt: the rows of a group share it
    firsts = forward.position[:, 0].tolist()     # where a row's completion begins
    prompts = forward.ids.tolist()
    try:
        for i, (start, content, close, _) in enumerate(spans.tolist()):
            if content == close:
                continue
            first = firsts[i]
            row = forward.embeddings[i, :first + close - 1]  # (n, H) what predicts the content
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

    Copy j of a chunk has token begin + j replaced. All copies start at `begin`, after the cache.
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
    """Hidden states of embeddings (c, m, H) after the cache. They are added to the cache."""
    device = embeddings.device.type
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        # Arguments without names: transformers 5.24 renamed the fourth.
        out = body(None, None, None, cache, embeddings, use_cache=True)
    return out.last_hidden_state
