r"""Which tokens mattered: how much the answer leans on each token of the completion.

    span = answer_span(tokenizer, ids, text)     # where the box is, in tokens
    gradient_activation    s_t = || dJ/da_t * a_t ||_2              GRAIL   one backward
    input_gradient         s_t = | < dK/de_t, e_t > |               OAR-G   a forward and a backward
    perturbation           s_t = K when token t is replaced         OAR-P   N / 2 forwards

a_t: the token's activation (its embedding e_t by default), H numbers. J: negative log-likelihood of
the box (GRAIL, arXiv 2606.04889; Hadamard product, then the norm). K: how far the distribution of
the answer moves (OAR, arXiv 2601.07408). The answer is the model's own, right or wrong; the gold
answer plays no part. effective_sample_size_ratio and top_mass say how concentrated weights are.

    python saliency.py                           # one completion of the tiny model, coloured
    python saliency.py --model FOLDER --problem "What is 2 + 2?" --completion answer.txt

The box's last token and what follows get exactly 0: they cannot have moved the answer.

What we left out, on purpose: integrated gradients, attention maps.
"""
import argparse
import bisect
import copy
import hashlib

import torch
from transformers import DynamicCache

import verify
from score import on_card


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
    i, t = on_card(where, device).T                                             # (K,) each
    logits = forward.head(forward.hidden[i, t]).float() / forward.temperature   # (K, V)
    y = forward.completion_ids[i, t]  # (K,)
    J = -logits.log_softmax(-1).gather(1, y[:, None]).sum()
    gradient, = torch.autograd.grad(J, activation, retain_graph=True)  # (b, L, H)
    s = (gradient.float() * activation.detach().float()).norm(dim=-1)  # (b, L)
    read = forward.place - (1 if alignment == "predictor" else 0)  # (b, T) position in the row of L
    # Not times the mask: NaN times 0 is NaN, and padding may hold anything.
    return torch.where(forward.completion_mask, s.gather(1, read), 0.0)  # (b, T)


def keyed(*key, device="cpu"):
    """A random generator seeded by this key alone, the same in every process."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "big"))


def normals(key, like):
    """Standard normal numbers of this tensor's shape, by key."""
    return torch.randn(like.shape, generator=keyed(*key, device=like.device), device=like.device,
                       dtype=like.dtype)


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
    firsts = forward.place[rows, 0].tolist()  # where completion token 0 stands
    clean = forward.embeddings.detach()  # (b, L, H)
    noised = [slice(first - 1, first + b - 1) if reproduced else slice(first, first + spans[i][0])
              for i, first, (_, b) in zip(rows, firsts, answers)]
    ids = [forward.completion_ids[i, a:b] for i, (a, b) in zip(rows, answers)]
    where = [(i, first + u - 1, u) for i, first, (a, b) in zip(rows, firsts, answers)
             for u in range(a, b)]
    i, t, u = on_card(where, scores.device).T  # (K,) each, token u of row i is at t + 1

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
@torch.compiler.set_stance("force_eager")  # layers compiled to train (--compile) know no cache
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
        first = int(forward.place[i, 0])
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
    a = torch.where(mask, weights.double().abs(), 0.0)  # (B, T)
    return (a.sum(1).square() / (mask.sum(1) * a.square().sum(1)).clamp(min=1e-30)).float()


def top_mass(weights, mask, share=0.1):
    """Share of the sum of |weights| held by the largest 10 % of each row's n tokens, (B,): the
    ceil(0.1 n) largest, so ceil(0.1 n) / n where all are equal; 0 for a row of zeros."""
    a = torch.where(mask, weights.double().abs(), 0.0)                   # (B, T)
    a = a.sort(1, descending=True).values                                # (B, T)
    k = (mask.sum(1, keepdim=True) * share).ceil()                       # (B, 1)
    largest = a * (torch.arange(a.shape[1], device=a.device) < k)        # (B, T)
    return (largest.sum(1) / a.sum(1).clamp(min=1e-30)).float()


# -------------------------------------------------------------------------- seeing it


def pieces(tokenizer, ids):
    """The text that each of n ids adds to the decoding, n strings; they concatenate to the text."""
    texts = [tokenizer.decode(ids[:n], clean_up_tokenization_spaces=False)
             for n in range(len(ids) + 1)]
    return [texts[n + 1][len(texts[n].rstrip("\ufffd")):] for n in range(len(ids))]


def main(argv=None):
    import grpo  # here, not above: the functions stand alone without these four
    import pages
    import problems
    import rollout
    parser = argparse.ArgumentParser(description="Show which tokens a model's own answer leans on.")
    parser.add_argument("--model", default="tiny", help="hub id or folder; tiny: the embedded one")
    parser.add_argument("--problem", default="Start with 7, add 5, times 3.", help="the question")
    parser.add_argument("--completion", help="a file with the answer; without it one is sampled")
    args = parser.parse_args(argv)
    model, tokenizer = problems.load_policy(args.model)
    prompt = problems.build_prompt(tokenizer, args.problem)
    if args.completion:
        try:
            text = open(args.completion, encoding="utf-8").read()
        except (OSError, UnicodeDecodeError) as error:
            raise problems.BadInput(f"--completion {args.completion}: {error.args[-1]}.") from None
        encoded = [tokenizer(t, add_special_tokens=False).input_ids for t in (prompt, text or " ")]
        (asked, real), (ids, mask) = (rollout.pad([row], 0, "right") for row in encoded)  # (1, n)
        text = tokenizer.decode(ids[0], skip_special_tokens=True)  # what the ids say, to the letter
        out = rollout.Rollouts(asked, real, ids, mask.sum(1), mask[:, 0], None, [text])
    else:
        out = rollout.sample(model, tokenizer, [prompt], samples=8, max_new_tokens=256)
    # The longest one with a box: it has the most tokens for the answer to lean on.
    i = max(range(len(out.texts)), key=lambda i: (verify.last_boxed(out.texts[i]) is not None,
                                                  out.lengths[i]))
    forward = grpo.forward_pass(model, out, torch.tensor([i]), 1.0, texts=out.texts[i:i + 1],
                                rewards=None, advantages=None, tokenizer=tokenizer)
    ids = forward.completion_ids[0].tolist()
    span = answer_span(tokenizer, ids, out.texts[i])
    if span is None:
        where = f"--completion {args.completion}: it" if args.completion else (
            f"--problem {args.problem!r}: none of 8 completions")
        raise problems.BadInput(f"{where} has no box, so there is no answer to ask about.")
    s = gradient_activation(forward, [span])[0]  # (T,)
    tokens = pieces(tokenizer, ids)
    print("token   s_t, the twenty largest, in order of the text")
    for t in sorted(s.argsort(descending=True)[:20].tolist()):
        print(f"{t:5d} {s[t]:9.2e}  {tokens[t]!r}{'   the box' * (span[0] <= t < span[3])}")
    print("\nred: four times the median or more; blue: a quarter or less\n")
    print(pages.coloured(tokens, (s / s[s > 0].median()).sqrt().tolist(), pages.in_colours()))


if __name__ == "__main__":
    import problems
    problems.run(main)
