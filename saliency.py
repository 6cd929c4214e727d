r"""Which tokens mattered: how much the answer's likelihood leans on each token of the completion.

    span = answer_span(tokenizer, ids, text)     # where the box is, in tokens
    J = - sum over the box's tokens of log pi(token | what came before)
    s_t = || dJ/da_t  *  a_t ||_2                # a_t: the token's embedding, H numbers

s_t is the GRAIL paper's gradient x activation (arXiv 2606.04889; Hadamard product, then the norm).
The answer is the model's own, right or wrong; the gold answer plays no part.

    python saliency.py                           # one completion of the tiny model, coloured
    python saliency.py --model FOLDER --problem "What is 2 + 2?"

The box's last token and all that follow get exactly 0, by causality: they cannot have moved the
answer.

What we left out, on purpose: integrated gradients, attention maps, anything that needs more than
one backward pass.
"""
import argparse
import bisect
import html

import torch

import verify


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
    blocks = len(forward.hidden_states) - 1
    index = {"embeddings": 0, "first": 1, "middle": blocks // 2, "last": blocks - 1}[leaf]
    activation = forward.hidden_states[index] if index else forward.embeddings  # (b, L, H)
    i, t = torch.tensor(where, device=device).T                                 # (K,) each
    logits = forward.head(forward.hidden[i, t]).float() / forward.temperature   # (K, V)
    y = forward.completion_ids[i, t]  # (K,)
    J = -logits.log_softmax(-1).gather(1, y[:, None]).sum()
    gradient, = torch.autograd.grad(J, activation, retain_graph=True)  # (b, L, H)
    s = (gradient.float() * activation.detach().float()).norm(dim=-1)  # (b, L)
    read = forward.place - (1 if alignment == "predictor" else 0)  # (b, T) position in the row of L
    return s.gather(1, read) * forward.completion_mask             # (b, T)


# -------------------------------------------------------------------------- seeing it


def pieces(tokenizer, ids):
    """The text that each of n ids adds to the decoding, n strings; they concatenate to the text."""
    texts = [tokenizer.decode(ids[:n], clean_up_tokenization_spaces=False)
             for n in range(len(ids) + 1)]
    return [texts[n + 1][len(texts[n].rstrip("\ufffd")):] for n in range(len(ids))]


def shade(weight, low=0.5, high=1.5):
    """Colour of a weight: blue below 1, white at 1, red above; (r, g, b), each 0-255."""
    x = max(-1.0, min(1.0, (weight - 1) / ((high - 1) if weight > 1 else (1 - low))))
    fade = round(255 - 155 * abs(x))
    return (255, fade, fade) if x > 0 else (fade, fade, 255)


def coloured(tokenizer, ids, weights):
    """The completion in ANSI colours: blue where less credit than in GRPO, red where more (str)."""
    out = []
    for text, weight in zip(pieces(tokenizer, ids), weights):
        r, g, b = shade(weight)
        body = text.replace("\n", "\u23ce\x1b[0m\n")
        out.append(f"\x1b[30;48;2;{r};{g};{b}m{body}\x1b[0m")
    return "".join(out)


def page(tokenizer, ids, weights, title=""):
    """The same as one HTML page (a string); hover over a token to read its weight."""
    spans = "".join(
        f'<span title="{weight:.3f}" style="background:rgb{shade(weight)}">'
        f'{html.escape(text)}</span>'
        for text, weight in zip(pieces(tokenizer, ids), weights))
    return ('<!doctype html><meta charset="utf-8"><title>credit</title>'
            f'<h3>{html.escape(title)}</h3>'
            f'<pre style="white-space:pre-wrap;font-size:16px">{spans}</pre>')


def main():
    import grpo  # here, not above: the functions stand alone without these three
    import problems
    import rollout
    parser = argparse.ArgumentParser(description="Show which tokens a model's own answer leans on.")
    parser.add_argument("--model", default="tiny", help="hub id or folder; tiny: the embedded one")
    parser.add_argument("--problem", default="Start with 7, add 5, times 3.", help="the question")
    args = parser.parse_args()
    model, tokenizer = problems.load_policy(args.model)
    prompt = problems.build_prompt(tokenizer, args.problem)
    out = rollout.sample(model, tokenizer, [prompt], samples=8, max_new_tokens=256)
    # The longest one with a box: it has the most tokens for the answer to lean on.
    i = max(range(8), key=lambda i: (len(verify.boxed_spans(out.texts[i])) > 0, out.lengths[i]))
    forward = grpo.forward_pass(model, out, torch.tensor([i]), 1.0, texts=out.texts[i:i + 1],
                                rewards=None, advantages=None, tokenizer=tokenizer)
    ids = forward.completion_ids[0].tolist()
    span = answer_span(tokenizer, ids, out.texts[i])
    if span is None:
        raise problems.BadInput(f"--problem {args.problem!r}: none of 8 completions has a box, so "
                                "there is no answer to ask about; try another one or --model.")
    s = gradient_activation(forward, [span])[0]  # (T,)
    print("white: the median saliency, red: twice or more, blue: half or less; then s_t itself\n")
    print(coloured(tokenizer, ids, (1 + 0.5 * (s / s[s > 0].median()).log2()).tolist()), "\n")
    for t, (text, value) in enumerate(zip(pieces(tokenizer, ids), s.tolist())):
        print(f"{t:4d} {value:10.3g}  {text!r}{'   the box' * (span[0] <= t < span[3])}")


if __name__ == "__main__":
    import problems
    problems.run(main)
