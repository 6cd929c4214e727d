r"""Which tokens mattered: how much the answer leans on each token of the completion.

    spans = answer_spans(forward)                # where the boxes are, in tokens
    gradient_activation    s_t = || dJ/da_t * a_t ||_2              GRAIL   one backward
    input_gradient         s_t = | < dK/de_t, e_t > |               OAR-G   a forward and a backward
    perturbation           s_t = K when token t is replaced         OAR-P   N forwards

a_t: the token's activation (its embedding e_t by default), H numbers. J: negative log-likelihood of
the box (GRAIL, arXiv 2606.04889; Hadamard product, then the norm). K: how far the distribution of
the answer moves (OAR, arXiv 2601.07408). The answer is the model's own, right or wrong; the gold
answer plays no part. effective_sample_size_ratio and top_mass say how concentrated weights are.

To copy one into a trainer, take gradient_times_activation, or answer_shift and
gradient_dot_activation: they need torch alone. The rest says where they are applied.

    python show.py                               # one completion of the tiny model, coloured

The box's last token and what follows get exactly 0: they cannot have moved the answer.

What we left out, on purpose: integrated gradients, attention maps.
"""
import bisect
import functools

import torch

import verify
from engine.seeds import normals
from logprobs import to_device

NO_BOX = (-1, -1, -1, -1)

# -------------------------------------------------------------------------- where the answer is


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
    token_holding = functools.partial(token_of, tokenizer, ids)
    inside = begin + len(r"\boxed{")
    start, end = token_holding(begin), token_holding(stop - 1) + 1
    if inside == stop - 1:  # \boxed{}: no content, all of it is marker
        return start, end - 1, end - 1, end
    return start, token_holding(inside), token_holding(stop - 2) + 1, end


def token_of(tokenizer, ids, character):
    """The token that completes this character of the decoding: its place in ids, n past the end."""
    def characters(i):
        # A prefix can end inside a multi-byte character, which decodes to U+FFFD until it is whole.
        prefix = tokenizer.decode(ids[:i + 1], skip_special_tokens=True,
                                  clean_up_tokenization_spaces=False)
        return len(prefix.rstrip("\ufffd"))
    return bisect.bisect_right(range(len(ids)), character, key=characters)


def tokens_of(tokenizer, ids, text, span):
    """The slice of the sampled ids that these characters, (begin, end), begin in; up to the end of
    the text, it takes the stop token in."""
    first = token_of(tokenizer, ids, span[0])
    if span[1] >= len(text):
        return slice(first, len(ids))
    return slice(first, token_of(tokenizer, ids, span[1]))


def answer_spans(forward, which="last"):
    """The boxes of all rows, (b, 4) int64 on the CPU: answer_span's four numbers, -1 without a box.

    They stay on the CPU, where rows are chosen; to_device sends them to the functions of credit.
    """
    spans = [answer_span(forward.tokenizer, ids, text, which)
             for ids, text in zip(forward.sampled, forward.texts)]
    return torch.tensor([span or NO_BOX for span in spans])  # (b, 4)


def before_answer(spans, T):
    """The tokens before the box, (b, T) bool: none where there is no box. spans (b, 4)."""
    return torch.arange(T, device=spans.device) < spans[:, :1]  # (b, T)


# -------------------------------------------------------------------------- GRAIL's signal


def gradient_times_activation(J, activation):
    """s_t = || dJ/da_t * a_t ||_2 of every position: a scalar J, activation (b, L, H) -> (b, L).

    The graph is kept, because the policy loss is still to be derived from it. autograd.grad asks
    for the activation only, so no parameter's .grad is touched.
    """
    gradient, = torch.autograd.grad(J, activation, retain_graph=True)  # (b, L, H)
    product = gradient.float() * activation.detach().float()           # (b, L, H)
    return product.norm(dim=-1)                                        # (b, L)


def answer_loss(forward, spans):
    """J, the negative log-likelihood of all boxes in nats, in the graph; None if there is no box.

    The LM head runs at the positions that predict the boxes and nowhere else.
    """
    boxes = [(i, t) for i, (start, _, _, end) in enumerate(spans.tolist())
             for t in range(start, end)]
    if not boxes:
        return None
    i, t = to_device(boxes, forward.hidden.device).T                           # (K,) each
    y = forward.completion_ids[i, t]                                           # (K,)
    logits = forward.head(forward.hidden[i, t]).float() / forward.temperature  # (K, V)
    return -logits.log_softmax(-1).gather(1, y[:, None]).sum()


def activations(forward, which="embeddings"):
    """What the saliency is taken of, (b, L, H): the embeddings, or the output of a block.

    which: "embeddings", "first", "middle" or "last" (the last block that another one reads).
    """
    if which == "embeddings":
        return forward.embeddings
    blocks = len(forward.hidden_states) - 1
    index = {"first": 1, "middle": blocks // 2, "last": blocks - 1}
    return forward.hidden_states[index[which]]


def gradient_activation(forward, spans, activation="embeddings"):
    """GRAIL's saliency of every completion token, (b, T) fp32, detached; 0 on padding.

    forward: a Forward of b rows, still in the graph. spans (b, 4) on the CPU: see answer_spans;
    rows of -1 are not asked about and get 0. activation: see activations. One extra backward.
    """
    J = answer_loss(forward, spans)
    if J is None:
        return torch.zeros_like(forward.logprobs)                       # (b, T)
    s = gradient_times_activation(J, activations(forward, activation))  # (b, L)
    # Not times the mask: NaN times 0 is NaN, and padding may hold anything.
    s = s.gather(1, forward.position)  # (b, T)
    return torch.where(forward.completion_mask, s, 0.0)


# -------------------------------------------------------------------------- OAR's signals


def answer_shift(clean, other, ids, outcome="mean"):
    """How far the answer's distribution moves, in nats: (...), >= 0 but for "likelihood".

    clean, other (..., K, V): logits where the answer's K tokens ids (K,) are predicted. outcome:
    "mean"        KL(clean || other) of the softmax of the logits' mean over the K positions, as in
                  both public sources; positions that swap their predictions go unseen
    "each"        the mean of the K positions' own KLs
    "first"       the first position's KL
    "likelihood"  how much less likely the K tokens became, a mean over them: may be negative
    """
    if outcome == "mean":
        clean = clean.mean(-2, keepdim=True)  # (..., 1, V)
        other = other.mean(-2, keepdim=True)  # (..., 1, V)
    if outcome == "first":
        clean = clean[..., :1, :]  # (..., 1, V)
        other = other[..., :1, :]  # (..., 1, V)
    p = clean.log_softmax(-1)      # (..., 1 or K, V)
    q = other.log_softmax(-1)      # (..., 1 or K, V)

    if outcome == "likelihood":
        fallen = p - q  # (..., K, V)
        k = torch.arange(len(ids))
        return fallen[..., k, ids].mean(-1)      # (...)
    return (p.exp() * (p - q)).sum(-1).mean(-1)  # (...)


def gradient_dot_activation(K, leaf, activation):
    """| < dK/dx_t, a_t > | of every position, (b, L): K a scalar of leaf x, both (b, L, H)."""
    gradient, = torch.autograd.grad(K, leaf)      # (b, L, H)
    return (gradient * activation).sum(-1).abs()  # (b, L)


def input_gradient(forward, spans, draws=4, sigma=1e-3, seed=0, outcome="mean"):
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
    moves by less than fp32 rounding gets zeros.
    """
    scores = torch.zeros_like(forward.logprobs)  # (b, T)
    asked = [(i, *span) for i, span in enumerate(spans.tolist()) if span[1] < span[2]]
    if not asked:
        return scores
    contents = [(i, t) for i, _, content, close, _ in asked for t in range(content, close)]
    lengths = [close - content for _, _, content, close, _ in asked]
    i, t = to_device(contents, scores.device).T  # (K,) each
    ids = forward.completion_ids[i, t].split(lengths)                 # a row's (K_i,) each
    clean = forward.embeddings.detach()  # (b, L, H)

    def answer_logits(hidden):
        """(K, H) -> a row's (K_i, V) each."""
        return forward.head(hidden.to(clean.dtype)).split(lengths)

    with torch.no_grad():  # the policy's own: run again in another shape, it would differ a little
        before = answer_logits(forward.hidden[i, t])
    for draw in range(draws):
        noise = torch.zeros(*scores.shape, clean.shape[2]).to(clean)  # (b, T, H)
        for row, start, *_ in asked:
            key = (seed, draw, forward.sampled[row])
            noise[row, :start] = sigma * normals(key, noise[row, :start])
        leaf = add_at(clean, forward.position, noise).requires_grad_()  # (b, L, H)
        hidden = layers_again(forward, leaf)                            # (b, L, H)
        after = answer_logits(hidden[i, forward.position[i, t] - 1])
        K = sum(answer_shift(a, b, y, outcome) for a, b, y in zip(before, after, ids))
        score = gradient_dot_activation(K, leaf, clean)  # (b, L)
        score = score.gather(1, forward.position)        # (b, T)
        for (row, start, *_), a, b in zip(asked, before, after):
            scores[row, :start] += score[row, :start] * moved(a, b) / draws
    return scores


def add_at(clean, position, noise):
    """clean (b, L, H) with noise (b, T, H) added at position (b, T).

    Positions of padding are all the last one; zeros may be added there as often as one likes.
    """
    index = position[:, :, None].expand_as(noise)  # (b, T, H)
    return clean.scatter_add(1, index, noise)      # (b, L, H)


def layers_again(forward, embeddings):
    """The layers once more, on other embeddings: (b, L, H) -> (b, L, H). On a card in bf16."""
    device = embeddings.device.type
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        return forward.layers(embeddings)


def moved(before, after):
    """Whether any probability (K, V) of the answer moved by more than fp32 rounding: a bool ()."""
    change = before.softmax(-1) - after.detach().softmax(-1)  # (K, V)
    return change.abs().sum(-1).max() > 1e-6


@torch.no_grad()
def perturbation(forward, spans, outcome="mean", replace="pad"):
    """OAR-P as it is defined: replace a token, run again, measure; (b, T), 0 from the box on.

    replace: by "pad", the padding token, which later tokens see, or by the "mean" embedding of the
    completion before the box. N forwards for N tokens; the model should be in eval mode, or dropout
    is measured too. oar.py runs engine/perturb.py: the same numbers from a cache, in half the time.
    """
    scores = torch.zeros_like(forward.logprobs)  # (b, T)
    table = forward.body.get_input_embeddings()
    pad = torch.tensor(forward.tokenizer.pad_token_id, device=scores.device)
    for i, (start, content, close, _) in enumerate(spans.tolist()):
        if content == close:  # nothing in the box, or no box
            continue
        row, position = forward.embeddings[i], forward.position[i]  # (L, H), (T,)
        ids = forward.completion_ids[i, content:close]              # (K,)
        substitute = table(pad)                                     # (H,)
        if replace == "mean":
            substitute = row[position[:start]].mean(0)

        for t in range(start):
            changed = row.clone()  # (L, H)
            changed[position[t]] = substitute
            hidden = layers_again(forward, torch.stack([row, changed]))  # (2, L, H)
            hidden = hidden[:, position[content:close] - 1]              # (2, K, H)
            clean, other = forward.head(hidden.to(row.dtype))            # (K, V) each
            scores[i, t] = answer_shift(clean, other, ids, outcome)
    return scores


# -------------------------------------------------------------------------- how concentrated


def effective_sample_size_ratio(weights, mask):
    """(sum a)^2 / (n sum a^2) of a = |weights| over each row's n tokens, (B,): Kish's effective
    sample size over n. 1 where all are equal, 1/n where one has all; 0 for a row of zeros."""
    a = torch.where(mask, weights.double().abs(), 0.0)  # (B, T)
    even = mask.sum(1) * a.square().sum(1)              # (B,)
    return (a.sum(1).square() / even.clamp(min=1e-30)).float()


def top_mass(weights, mask, share=0.1):
    """Share of the sum of |weights| held by the largest 10 % of each row's n tokens, (B,): the
    ceil(0.1 n) largest, so ceil(0.1 n) / n where all are equal; 0 for a row of zeros."""
    a = torch.where(mask, weights.double().abs(), 0.0)             # (B, T)
    a = a.sort(1, descending=True).values                          # (B, T)
    k = (mask.sum(1, keepdim=True) * share).ceil()                 # (B, 1)
    largest = a * (torch.arange(a.shape[1], device=a.device) < k)  # (B, T)
    return (largest.sum(1) / a.sum(1).clamp(min=1e-30)).float()
