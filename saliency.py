r"""Which tokens mattered: how much the answer depends on each token of the completion.

    spans = answer_spans(forward)                # where the boxes are, in tokens
    gradient_activation    s_t = || dJ/da_t * a_t ||_2              GRAIL   one backward
    input_gradient         s_t = | < dK/de_t, e_t > |               OAR-G   a forward and a backward
    perturbation           s_t = K when token t is replaced         OAR-P   N forwards

The box: the model's final answer in \boxed{}, right or wrong. The gold answer plays no part. a_t:
the token's activation, H numbers (by default its embedding e_t). J: negative log-likelihood of the
box (GRAIL, arXiv 2606.04889: elementwise product, then norm). K: how far the answer's distribution
moves (OAR, arXiv 2601.07408). effective_sample_size_ratio and top_mass measure concentration.

To use one in your trainer, copy gradient_times_activation, or answer_shift and
gradient_dot_activation: they need only torch. The rest finds the positions to apply them to.

    python show.py                               # one completion of the tiny model, coloured

The box's last token and all later tokens get exactly 0: they cannot change the answer.

What we left out, on purpose: integrated gradients, attention maps.
"""
import bisect
import functools

import torch

import verify
from engine.errors import BadInput
from engine.seeds import normals
from logprobs import to_device

NO_BOX = (-1, -1, -1, -1)

# -------------------------------------------------------------------------- where the answer is


def answer_span(tokenizer, ids, text, which="last"):
    r"""Token positions of the `\boxed{...}` in a completion: (start, content, close, end), or None.

    ids: the n sampled ids. text: their decoding without special tokens, as the reward reads it.
    Tokens start..end-1 overlap the box, content..close-1 its content. which: "last" (the one that
    is rewarded) or "first". One token can hold both marker and content, such as Qwen's `{x`: it
    counts as content. The text is not encoded again, because that is off by one token in common
    formats. Prefixes of the ids are decoded instead.
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
    """Index in ids of the token that completes this character of the text; n if past the end."""
    def characters(i):
        # A prefix can end inside a multi-byte character. That decodes to U+FFFD until it is whole.
        prefix = tokenizer.decode(ids[:i + 1], skip_special_tokens=True,
                                  clean_up_tokenization_spaces=False)
        return len(prefix.rstrip("\ufffd"))
    return bisect.bisect_right(range(len(ids)), character, key=characters)


def tokens_of(tokenizer, ids, text, span):
    """The slice of the sampled ids for the characters (begin, end). At the end of the text it
    includes the stop token."""
    first = token_of(tokenizer, ids, span[0])
    if span[1] >= len(text):
        return slice(first, len(ids))
    return slice(first, token_of(tokenizer, ids, span[1]))


def answer_spans(forward, which="last"):
    """The boxes of all rows, (b, 4) int64 on the CPU: answer_span's four numbers, -1 without a box.

    They stay on the CPU, where rows are chosen. to_device copies them for the credit functions.
    """
    spans = [answer_span(forward.tokenizer, ids, text, which)
             for ids, text in zip(forward.sampled, forward.texts)]
    return torch.tensor([span or NO_BOX for span in spans])  # (b, 4)


def before_answer(spans, T):
    """The tokens before the box, (b, T) bool; none without a box. spans (b, 4)."""
    return torch.arange(T, device=spans.device) < spans[:, :1]  # (b, T)


# -------------------------------------------------------------------------- GRAIL's signal


def gradient_times_activation(J, activation):
    """s_t = || dJ/da_t * a_t ||_2 at every position: a scalar J, activation (b, L, H) -> (b, L).

    It keeps the graph, because the policy loss still needs it. autograd.grad computes the
    gradient of the activation only, so no parameter's .grad changes.
    """
    gradient, = torch.autograd.grad(J, activation, retain_graph=True)  # (b, L, H)
    product = gradient.float() * activation.detach().float()           # (b, L, H)
    return product.norm(dim=-1)                                        # (b, L)


def answer_loss(forward, spans):
    """J, the negative log-likelihood of all boxes in nats, with graph; None if there is no box.

    The LM head runs only at the positions that predict the boxes.
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
    """The activations for the saliency, (b, L, H): the embeddings, or the output of a block.

    which: "embeddings", "first", "middle" or "last" (in fact the last block but one). Raises
    BadInput for the last two if there is one block: the block before it would be the embeddings.
    """
    if which == "embeddings":
        return forward.embeddings
    blocks = len(forward.hidden_states) - 1
    if blocks == 1 and which != "first":
        raise BadInput(f"--activation {which}: this model has one block, so there is none before "
                       "it; take embeddings or first.")
    index = {"first": 1, "middle": blocks // 2, "last": blocks - 1}
    return forward.hidden_states[index[which]]


def gradient_activation(forward, spans, activation="embeddings"):
    """GRAIL's saliency of every completion token, (b, T) fp32, detached, 0 on padding.

    forward: a Forward of b rows, with its graph. spans (b, 4) on the CPU: see answer_spans; rows
    of -1 are skipped and get 0. activation: see activations. One extra backward.
    """
    J = answer_loss(forward, spans)
    if J is None:
        return torch.zeros_like(forward.logprobs)                       # (b, T)
    s = gradient_times_activation(J, activations(forward, activation))  # (b, L)
    # Do not multiply by the mask: padding may hold NaN, and NaN times 0 is NaN.
    s = s.gather(1, forward.position)  # (b, T)
    return torch.where(forward.completion_mask, s, 0.0)


# -------------------------------------------------------------------------- OAR's signals


def answer_shift(clean, other, ids, outcome="mean"):
    """How far the answer's distribution moves, in nats: (...), >= 0 except for "likelihood".

    clean, other (..., K, V): logits at the positions that predict the answer's tokens ids (K,).
    outcome, where KL is KL(clean || other):
    "mean"        average the logits over the K positions, then softmax and KL, as both public
                  sources do; it does not see two positions that swap their predictions
    "each"        the KL at each of the K positions, then their mean
    "first"       the KL at the first position
    "likelihood"  mean drop of the K tokens' log-probabilities; may be negative
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
    """| < dK/dx_t, a_t > | at every position, (b, L). K: a scalar of leaf x. x, a: (b, L, H)."""
    gradient, = torch.autograd.grad(K, leaf)      # (b, L, H)
    return (gradient * activation).sum(-1).abs()  # (b, L)


def input_gradient(forward, spans, draws=4, sigma=1e-3, seed=0, outcome="mean"):
    """OAR-G: |<dK/de_t, e_t>| for every token before the box, mean over draws, (b, T) fp32.

        delta_t ~ N(0, sigma^2 I) before the box, 0 elsewhere
        K = answer_shift(clean, clean embeddings + delta), the clean distribution a constant

    At delta = 0 the gradient of a KL is 0, so we add noise. To first order the gradient is then
    H delta, with H the Hessian of K. One draw is one random projection and can miss a direction;
    average several. The noise depends on (seed, draw, the completion's ids), not on padding.

    forward, spans: as in gradient_activation. Each draw is another forward and a backward to the
    embeddings. The policy's graph stays alive, so memory holds the activations of two forwards.
    (Recordings of --compile hold one, so grpo.update runs the policy's forward again.) No
    parameter's .grad changes. A row whose answer moves by less than fp32 rounding gets zeros.
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

    with torch.no_grad():  # from the policy's forward: another shape would round differently
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

    All padding has the last position. Only zeros are added there, so repeats do no harm.
    """
    index = position[:, :, None].expand_as(noise)  # (b, T, H)
    return clean.scatter_add(1, index, noise)      # (b, L, H)


def layers_again(forward, embeddings):
    """Run the layers again on other embeddings: (b, L, H) -> (b, L, H). In bf16 on a card."""
    device = embeddings.device.type
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        return forward.layers(embeddings)


def moved(before, after):
    """Whether any probability (K, V) of the answer moved by more than fp32 rounding: a bool ()."""
    change = before.softmax(-1) - after.detach().softmax(-1)  # (K, V)
    return change.abs().sum(-1).max() > 1e-6


@torch.no_grad()
def perturbation(forward, spans, outcome="mean", replace="pad"):
    """OAR-P by its definition: replace a token, run again, measure; (b, T), 0 from the box on.

    replace by "pad", the padding token, which later tokens see, or by "mean", the mean embedding
    of the tokens before the box. N tokens need N forwards. Use eval mode, or dropout adds to the
    shift. oar.py runs engine/perturb.py: the same numbers from a KV cache, in half the time.
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
    """(sum a)^2 / (n sum a^2), (B,), with a = |weights| over each row's n tokens: Kish's effective
    sample size over n. 1 if all are equal, 1/n if one has everything, 0 for a row of zeros."""
    a = torch.where(mask, weights.double().abs(), 0.0)  # (B, T)
    even = mask.sum(1) * a.square().sum(1)              # (B,)
    return (a.sum(1).square() / even.clamp(min=1e-30)).float()


def top_mass(weights, mask, share=0.1):
    """Share of the sum of |weights| that the ceil(0.1 n) largest of each row's n tokens hold, (B,).
    That is ceil(0.1 n) / n if all are equal, and 0 for a row of zeros."""
    a = torch.where(mask, weights.double().abs(), 0.0)             # (B, T)
    a = a.sort(1, descending=True).values                          # (B, T)
    k = (mask.sum(1, keepdim=True) * share).ceil()                 # (B, 1)
    largest = a * (torch.arange(a.shape[1], device=a.device) < k)  # (B, T)
    return (largest.sum(1) / a.sum(1).clamp(min=1e-30)).float()
