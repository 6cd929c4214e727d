r"""Which tokens mattered: how much the answer leans on each token of the completion.

    span = answer_span(tokenizer, ids, text)     # where the box is, in tokens
    gradient_activation    s_t = || dJ/da_t * a_t ||_2              GRAIL   one backward
    input_gradient         s_t = | < dK/de_t, e_t > |               OAR-G   a forward and a backward
    perturbation           s_t = K when token t is replaced         OAR-P   N / 2 forwards

a_t: the token's activation (its embedding e_t by default), H numbers. J: negative log-likelihood of
the box (GRAIL, arXiv 2606.04889; Hadamard product, then the norm). K: how far the distribution of
the answer moves (OAR, arXiv 2601.07408). The answer is the model's own, right or wrong; the gold
answer plays no part. effective_sample_size_ratio and top_mass say how concentrated weights are.

    python show.py                               # one completion of the tiny model, coloured

The box's last token and what follows get exactly 0: they cannot have moved the answer.

What we left out, on purpose: integrated gradients, attention maps.
"""
import bisect
import copy

import torch
from transformers import DynamicCache

import verify
from engine import decode
from engine.seeds import normals
from logprobs import to_device


def answer_span(tokenizer, ids, text, which="last"):
    r"""Token positions of the `\boxed{...}` in a completion: (start, content, close, end), or None.

    ids: the sampled ids, n of them; text: their decoding with special tokens skipped, which reward
    and saliency share. Tokens start..end-1 overlap the box, content..close-1 its content; which:
    "last" (the one that is rewarded) or "first". A token that holds marker and content at once, as
    Qwen's `{x` or `}.`, counts as content if any of its characters is. Nothing is encoded again:
    re-tokenised text is off by one in common formats, so prefixes of the ids are decoded instead.
    """
    box = verify.last_boxed(text) if which == "last" else next(iter(verify.boxed_spans(text)), None)
    if box is None:
        return None
    begin, stop = box

    def characters(n):
        # A prefix can end inside a multi-byte character, which decodes to U+FFFD until it is whole.
        prefix = tokenizer.decode(ids[:n], skip_special_tokens=True,
                                  clean_up_tokenization_spaces=False)
        return len(prefix.rstrip("\ufffd"))

    def token_holding(character):
        """The token that completes this character: the first prefix that is longer, less one."""
        return bisect.bisect_right(range(len(ids)), character, key=lambda i: characters(i + 1))

    inside = begin + len(r"\boxed{")
    start, end = token_holding(begin), token_holding(stop - 1) + 1
    if inside == stop - 1:  # \boxed{}: no content, all of it is marker
        return start, end - 1, end - 1, end
    return start, token_holding(inside), token_holding(stop - 2) + 1, end


def gradient_activation(forward, spans, leaf="embeddings", alignment="own"):
    """s_t = ||dJ/da_t * a_t||_2 for every completion token, (b, T) fp32, detached.

    forward: grpo.Forward of b rows, still in the graph, which is kept for the policy loss. spans: b
    entries of `answer_span`. leaf: "embeddings", or the output of the "first", "middle" or "last"
    block (the last that another block reads). alignment: "own" (the token's own activation) or
    "predictor" (the position before it, which predicts it; as the released code reads it).

    One extra backward, through the LM head at the answer positions alone. torch.autograd.grad asks
    for the leaf only, so no parameter's .grad is touched. Rows without a span get 0.
    """
    b, T = forward.logprobs.shape
    device = forward.logprobs.device
    where = [(i, t) for i, span in enumerate(spans) if span for t in range(span[0], span[3])]
    if not where:
        return torch.zeros(b, T, device=device)  # (b, T)
    activation = forward.embeddings  # (b, L, H)
    if leaf != "embeddings":
        blocks = len(forward.hidden_states) - 1
        index = {"first": 1, "middle": blocks // 2, "last": blocks - 1}[leaf]
        activation = forward.hidden_states[index]  # (b, L, H)
    i, t = to_device(where, device).T                                             # (K,) each
    logits = forward.head(forward.hidden[i, t]).float() / forward.temperature   # (K, V)
    y = forward.completion_ids[i, t]  # (K,)
    J = -logits.log_softmax(-1).gather(1, y[:, None]).sum()
    gradient, = torch.autograd.grad(J, activation, retain_graph=True)  # (b, L, H)
    s = (gradient.float() * activation.detach().float()).norm(dim=-1)  # (b, L)
    read = forward.position - (1 if alignment == "predictor" else 0)  # (b, T) position in the row of L
    return s.gather(1, read) * forward.completion_mask             # (b, T)


def answer_shift(clean, other, ids, outcome="mean"):
    """How far the answer's distribution moves, in nats: (...), >= 0 but for "likelihood".

    clean, other (..., K, V): logits where the answer's K tokens ids (K,) are predicted. outcome:
    "mean"        KL(clean || other) of the softmax of the logits' mean over the K positions, as in
                  both public sources; positions that swap their predictions go unseen
    "each"        the mean of the K positions' own KLs
    "first"       the first position's KL
    "likelihood"  how much less likely the K tokens became, a mean over them: may be negative
    """
    if outcome == "likelihood":
        p, q = (x.log_softmax(-1)[..., torch.arange(len(ids)), ids] for x in (clean, other))
        return (p - q).mean(-1)
    if outcome == "mean":
        clean, other = (x.mean(-2, keepdim=True) for x in (clean, other))  # (..., 1, V)
    elif outcome == "first":
        clean, other = clean[..., :1, :], other[..., :1, :]                # (..., 1, V)
    p, q = clean.log_softmax(-1), other.log_softmax(-1)                    # (..., 1 or K, V)
    return (p.exp() * (p - q)).sum(-1).mean(-1)


def input_gradient(forward, spans, draws=4, sigma=1e-3, seed=0, outcome="mean", reproduced=False):
    """OAR-G: |<dK/de_t, e_t>| for every token before the box, mean over draws, (b, T) fp32.

        delta_t ~ N(0, sigma^2 I) before the box, 0 elsewhere
        K = answer_shift(clean, clean embeddings + delta), the clean distribution a constant

    At delta = 0 the gradient of a KL is 0, hence the noise: to first order the gradient is H delta,
    H the Hessian of K. A draw is thus one random projection of what matters, and may miss it; means
    over many agree. Noise depends on (seed, draw, the completion's ids) alone, not on padding.

    forward, spans: as in gradient_activation. The clean distribution is the forward's own; each
    draw is another forward and a backward to the embeddings, beside the policy's own graph, so the
    activations of two forwards are held (recordings of --compile hold one: the policy's forward is
    gone then, and grpo.update runs it again). No parameter's .grad is touched. A row whose answer
    moves by less than fp32 rounding gets zeros. reproduced: as declare-lab/grail, noise on and
    scores of the positions that predict the completion, times the noisy embedding, for all of the
    box.
    """
    scores = torch.zeros(forward.logprobs.shape, device=forward.logprobs.device)  # (b, T)
    rows = [i for i, span in enumerate(spans) if span and span[1] < span[2]]
    if not rows:
        return scores
    answers = [(spans[i][0], spans[i][3]) if reproduced else spans[i][1:3] for i in rows]
    firsts = forward.position[rows, 0].tolist()  # where completion token 0 stands
    clean = forward.embeddings.detach()  # (b, L, H)
    noised = [slice(first - 1, first + b - 1) if reproduced else slice(first, first + spans[i][0])
              for i, first, (_, b) in zip(rows, firsts, answers)]
    ids = [forward.completion_ids[i, a:b] for i, (a, b) in zip(rows, answers)]
    where = [(i, first + u - 1, u) for i, first, (a, b) in zip(rows, firsts, answers)
             for u in range(a, b)]
    i, t, u = to_device(where, scores.device).T  # (K,) each, token u of row i is at t + 1

    def logits(hidden):
        return forward.head(hidden.to(clean.dtype)).split([len(y) for y in ids])  # r (K, V)

    with torch.no_grad():  # the policy's own: run again in another shape, it would differ a little
        before = logits(forward.hidden[i, u])
    for draw in range(draws):
        noise = torch.zeros_like(clean)  # (b, L, H)
        for n, at in zip(rows, noised):
            noise[n, at] = sigma * normals((seed, draw, forward.sampled[n]), clean[n, at])
        leaf = (clean + noise).requires_grad_()  # (b, L, H)
        with torch.autocast(scores.device.type, torch.bfloat16, enabled=scores.is_cuda):
            hidden = forward.layers(leaf)  # (b, L, H)
        after = logits(hidden[i, t])
        K = sum(answer_shift(a, b, y, outcome) for a, b, y in zip(before, after, ids))
        gradient, = torch.autograd.grad(K, leaf)  # (b, L, H)
        score = (gradient * (leaf.detach() if reproduced else clean)).sum(-1).abs()  # (b, L)
        for n, at, a, b in zip(rows, noised, before, after):
            moved = (a.softmax(-1) - b.detach().softmax(-1)).abs().sum(-1).max()
            scores[n, :at.stop - at.start] += score[n, at] * (moved > 1e-6) / draws
    return scores * forward.completion_mask


@torch.no_grad()
@decode.uncompiled()
def perturbation(forward, spans, outcome="mean", replace="pad", chunk=0):
    """OAR-P: answer_shift when the token is replaced, for every token before the box, (b, T) fp32.

    replace: by "pad", the padding token, which later tokens see, or by the "mean" embedding of the
    completion before the box. By definition N forwards of L tokens; here `chunk` - 1 changed copies
    and a clean one run at a time, from a KV cache of what precedes them: half of the N L tokens,
    never more than `chunk` copies (0: 16,384 tokens of them) in memory. No answer: zeros.
    """
    scores = torch.zeros(forward.logprobs.shape, device=forward.logprobs.device)    # (b, T)
    pad = torch.tensor([forward.tokenizer.pad_token_id], device=scores.device)      # (1,)
    autocast = torch.autocast(scores.device.type, torch.bfloat16, enabled=scores.is_cuda)
    body, training, caches = forward.body, forward.body.training, {}  # a cache for each prompt
    body.eval()  # no dropout, and no checkpointing, which may switch the cache off
    for i, span in enumerate(spans):
        if not span or span[1] == span[2]:
            continue
        start, content, close, _ = span
        first = int(forward.position[i, 0])
        row = forward.embeddings[i, :first + close - 1]     # (n, H) up to where the box is settled
        substitute = (body.get_input_embeddings()(pad)[0] if replace == "pad" else
                      row[first:first + start].mean(0))     # (H,)
        prompt = tuple(forward.ids[i, :first].tolist())
        with autocast:
            if prompt not in caches:  # body by place: transformers 5.24 renamed its 4th argument
                caches[prompt] = DynamicCache(config=body.config)
                body(None, None, None, caches[prompt], row[None, :first], use_cache=True)
        cache, cached = copy.deepcopy(caches[prompt]), first
        many = (chunk or max(2, 2**14 // len(row))) - 1
        for begin in range(first, first + start, many):
            end = min(begin + many, first + start)
            copies = row[begin:].repeat(end - begin + 1, 1, 1)  # (c + 1, n - begin, H), last: clean
            here = torch.arange(end - begin)                    # (c,)
            copies[here, here] = substitute.to(row.dtype)
            with autocast:
                if begin > cached:
                    body(None, None, None, cache, row[None, cached:begin], use_cache=True)
                branch, cached = copy.deepcopy(cache), begin
                branch.batch_repeat_interleave(len(copies))
                out = body(None, None, None, branch, copies, use_cache=True)
            hidden = out.last_hidden_state[:, first + content - 1 - begin:]  # (c + 1, K, H)
            logits = forward.head(hidden.to(row.dtype))                      # (c + 1, K, V)
            scores[i, begin - first:end - first] = answer_shift(
                logits[-1:], logits[:-1], forward.completion_ids[i, content:close], outcome)
    body.train(training)
    return scores


# -------------------------------------------------------------------------- how concentrated


def effective_sample_size_ratio(weights, mask):
    """(sum a)^2 / (n sum a^2) of a = |weights| over each row's n tokens, (B,): Kish's effective
    sample size over n. 1 where all are equal, 1/n where one has all; 0 for a row of zeros."""
    a = weights.double().abs() * mask  # (B, T)
    return (a.sum(1).square() / (mask.sum(1) * a.square().sum(1)).clamp(min=1e-30)).float()


def top_mass(weights, mask, share=0.1):
    """Share of the sum of |weights| held by the largest 10 % of each row's n tokens, (B,): the
    ceil(0.1 n) largest, so ceil(0.1 n) / n where all are equal; 0 for a row of zeros."""
    a = (weights.double().abs() * mask).sort(1, descending=True).values  # (B, T)
    k = (mask.sum(1, keepdim=True) * share).ceil()                       # (B, 1)
    largest = a * (torch.arange(a.shape[1], device=a.device) < k)        # (B, T)
    return (largest.sum(1) / a.sum(1).clamp(min=1e-30)).float()
