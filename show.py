"""See the credit: a completion in a terminal's colours, and as a page, methods side by side.

    python show.py                           # one completion of the tiny model, by its saliency
    python show.py --model FOLDER --problem "What is 2 + 2?" --completion answer.txt
    python grail.py                          # ends with the credit of one completion, both ways
    python examples/show_credit.py           # five methods on a right and a wrong completion

A page is one file: no fonts, images or scripts from elsewhere. A model's text is escaped in it, and
control characters are shown, not obeyed, as they are in the terminal.

What we left out, on purpose: a server, a plotting library, pages of more than a few completions.
"""
import argparse
import html
import math
import os
import sys
from pathlib import Path

import torch

import problems
import saliency
import verify
from engine.context import longest_row
from engine.errors import BadInput, printable, run_cli
from logprobs import forward_pass
from models import load_tokenizer
from rollout import Rollouts, answers, pad, sample

# ------------------------------------------------------------------------------ one scale


def pieces(tokenizer, ids):
    """The text that each of n ids adds to the decoding, n strings; they concatenate to the text."""
    texts = [tokenizer.decode(ids[:n], clean_up_tokenization_spaces=False)
             for n in range(len(ids) + 1)]
    return [texts[n + 1][len(texts[n].rstrip("\ufffd")):] for n in range(len(ids))]


def strength(weight):
    """Where a weight stands between half and double, on a log scale: -1 to 1, 0 at weight 1."""
    return -1.0 if weight <= 0 else max(-1.0, min(1.0, math.log2(weight)))


def shade(weight):
    """Colour of a weight: blue below 1, white at 1, red above; (r, g, b), each 0-255."""
    fade = round(255 - 155 * abs(strength(weight)))
    return (255, fade, fade) if weight > 1 else (fade, fade, 255)


# ------------------------------------------------------------------------------ in a terminal

# Of the 256 colours, from faint to full. Black on any of them has a contrast above 6, whatever the
# terminal's own background; a token of weight 1 keeps the terminal's own colours.
RED, BLUE = [224, 217, 210, 203], [189, 153, 111, 69]


def in_colours():
    """Whether to print colours: to a terminal, unless NO_COLOR is set (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def coloured(tokens, weights, colours=True):
    """n tokens (strings) by their weights: blue below 1, red above. Returns text for a terminal."""
    out = []
    for token, weight in zip(tokens, weights):
        level, text = math.ceil(4 * abs(strength(weight)) - 0.5), printable(token)
        if level and colours:
            code = (RED if weight > 1 else BLUE)[level - 1]
            # The colour ends before a line does: it would run on to the terminal's right edge.
            text = "\n".join(f"\x1b[38;5;16;48;5;{code}m{line}\x1b[0m" if line else "" for line in
                             text.replace("\n", "\u23ce\n").split("\n"))
        out.append(text)
    return "".join(out)


# ------------------------------------------------------------------------------ as a page

STYLE = """
:root{color-scheme:light dark;--fg:#1b1f24;--bg:#fff;--soft:#59636e;--line:#d1d9e0;--card:#f6f8fa;
--more:214 58 28;--less:28 98 230}
@media(prefers-color-scheme:dark){:root{--fg:#e8ecf1;--bg:#0f1216;--soft:#9aa6b2;--line:#333b44;
--card:#181c22;--more:226 74 48;--less:52 116 240}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--fg);background:var(--bg);
margin:1.5rem 1.5rem 5rem}
h1{font-size:1.35rem}h2{font-size:1.05rem;margin:2rem 0 .6rem;overflow-wrap:anywhere}
h3{font-size:1rem;margin:0 0 .4rem}p,li{max-width:70ch}
.row{display:grid;gap:1rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,13rem),1fr))}
.row>section{background:var(--card);border:1px solid var(--line);border-radius:6px;padding:.8rem}
.text{font:15px/1.9 ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere;margin:0}
.text span,.key span{padding:.12em 0;border-radius:2px}.key span{padding:.12em .6em}
.key{display:block;white-space:nowrap;margin-top:.4rem}
.m{background:rgb(var(--more)/var(--a))}.l{background:rgb(var(--less)/var(--a))}
.rim{text-decoration:underline dotted 2px;text-underline-offset:.3em}
.content{text-decoration:underline solid 2px;text-underline-offset:.3em}
.same,.text span:hover{outline:2px solid var(--fg)}
.text span:hover::after{content:attr(data-tip);position:fixed;left:0;right:0;bottom:0;z-index:1;
padding:.7rem 1.5rem;background:var(--fg);color:var(--bg);white-space:pre-wrap;line-height:1.4}
.figures{color:var(--soft);font-size:.9rem;margin:.6rem 0 0;font-variant-numeric:tabular-nums}
"""
# Frames the token under the pointer under the other methods, too.
SCRIPT = """
addEventListener("mouseover", event => {
  const token = event.target.closest("[data-i]");
  document.querySelectorAll(".same").forEach(other => other.classList.remove("same"));
  if (token) token.closest("article").querySelectorAll(`[data-i="${token.dataset.i}"]`)
    .forEach(other => other.classList.add("same"));
});
"""


def escaped(text):
    """Text of whoever wrote it, harmless between tags and in a quoted attribute."""
    return html.escape(printable(text))


def entry(tokenizer, ids, problem, reward, methods):
    """One completion for `page`, a dict.

    ids: its n tokens. methods: {name: (weights, saliency or None)}, n floats each.
    """
    text = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return {"tokens": pieces(tokenizer, ids), "problem": problem, "reward": reward,
            "box": saliency.answer_span(tokenizer, ids, text), "methods": methods}


def z_scores(s, end):
    """Of log s over the tokens before `end`, the box, as in grail.py; NaN elsewhere: n floats."""
    log_s = (torch.tensor(s[:end]).double() + 1e-8 * max(s) + 1e-38).log()       # (end,)
    z = (log_s - log_s.mean()) / (log_s.var(unbiased=False) + 1e-8).sqrt()       # (end,)
    return z.tolist() + [math.nan] * (len(s) - end)


def column(name, weights, s, tokens, box):
    """One method's <section>: its tokens, and how concentrated its weights are."""
    start, content, close, end = box or (len(tokens),) * 4
    z, spans = z_scores(s, start) if s and start > 1 else [math.nan] * len(tokens), []
    for i, (token, weight) in enumerate(zip(tokens, weights)):
        kind = ["m" if weight > 1 else "l"]
        kind += ["content" if content <= i < close else "rim"] * (start <= i < end)
        shown = token.replace("\n", "\u23ce")
        tip = [f"token {i} \u2039{shown}\u203a", name]
        tip += [f"saliency {s[i]:.2e}"] if s else []
        tip += [] if math.isnan(z[i]) else [f"z {z[i]:+.2f}"]
        tip = escaped("   ".join([*tip, f"weight {weight:.3f}"]))
        text = escaped(token).replace("\n", "\u23ce\n")
        spans.append(f'<span class="{" ".join(kind)}" style="--a:{0.6 * abs(strength(weight)):.2f}"'
                     f' data-i="{i}" data-tip="{tip}">{text}</span>')
    w, on = torch.tensor([weights]), torch.ones(1, len(weights), dtype=torch.bool)  # (1, n) each
    ess, top = saliency.effective_sample_size_ratio(w, on).item(), saliency.top_mass(w, on).item()
    return (f'<section><h3>{escaped(name)}</h3><p class="text">{"".join(spans)}</p>'
            f'<p class="figures">ESS ratio {ess:.2f} \u00b7 heaviest 10&nbsp;% hold '
            f'{100 * top:.0f}&nbsp;% \u00b7 mean weight {w.mean().item():.2f}</p></section>')


def page(title, completions):
    """The page (str) of a few completions, see `entry`, each under its methods side by side."""
    key = "".join(f'<span class="{"m" if w > 1 else "l"}" '
                  f'style="--a:{0.6 * abs(strength(w)):.2f}">{label}</span>' for w, label in
                  [(.5, "\u00bd or less"), (.7, "0.7"), (1, "1"), (1.4, "1.4"), (2, "2 or more")])
    articles = []
    for it in completions:
        columns = [column(name, weights, s, it["tokens"], it["box"])
                   for name, (weights, s) in it["methods"].items()]
        verdict = "right" if it["reward"] > 0 else "wrong"
        articles.append(f'<article><h2>{verdict} (reward {it["reward"]:g}): '
                        f'{escaped(it["problem"])}</h2>'
                        f'<div class="row">{"".join(columns)}</div></article>')
    title = escaped(title)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>{STYLE}</style></head><body>
<h1>{title}</h1>
<p>A token's weight multiplies its share of the advantage; GRPO's is 1.
<span class="key">{key}</span></p>
<p>Underlined: <span class="rim">the box</span> and <span class="content">its content</span>. Point
at a token to read its numbers below and to frame it under every method; z is that of the logarithm
of the saliency, over the tokens before the box. ESS ratio: the effective sample size of the weights
over the number of tokens, 1 where all are equal.</p>
{"".join(articles)}
<script>{SCRIPT}</script></body></html>
"""


def of_step(path, title, tokenizer, rollouts, rewards, weights, rows, method, each=2):
    """Write the page of a training step: up to `each` right and wrong completions, GRPO beside.

    rewards (N, G), weights (B, T) of `method`, rows: the N problems. Completions without a gradient
    have weights 0 and are left out; of each problem at most one of either verdict is taken.
    """
    G, found, seen = rewards.shape[1], [], set()
    for i in range(len(weights)):
        ids = rollouts.completion_ids[i, :rollouts.lengths[i]].tolist()
        w, reward = weights[i, :len(ids)].tolist(), float(rewards[i // G, i % G])
        sort = reward > 0
        if any(w) and (i // G, sort) not in seen and sum(s == sort for _, s in seen) < each:
            seen.add((i // G, sort))
            found.append(entry(tokenizer, ids, rows[i // G]["problem"], reward,
                               {"GRPO": ([1.0] * len(ids), None), method: (w, None)}))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(title, sorted(found, key=lambda it: -it["reward"])), encoding="utf-8")


def last_steps(summary):
    """Print one completion of the last steps, coloured by its weights, and write it as a page."""
    folder, example = Path(summary["folder"]), summary["example"]
    if example is None:
        print("no completion was trained, so there is none to show")
        return
    tokenizer = load_tokenizer(folder, str(folder / "checkpoint"))
    ids, w = example["ids"], example["weights"]
    print(f"\nOne completion (reward {example['reward']:.0f}) of: "
          f"{printable(example['problem'])}\n"
          "blue: less of the advantage than GRPO gives, plain: the same, red: more"
          f"{'' if in_colours() else ' (colours are off)'}\n")
    print(coloured(pieces(tokenizer, ids), w, in_colours()))
    both = {"GRPO": ([1.0] * len(ids), None), "GRAIL": (w, None)}
    shown = entry(tokenizer, ids, example["problem"], example["reward"], both)
    (folder / "credit.html").write_text(page("GRAIL's credit", [shown]), encoding="utf-8")
    print(f"\nas a page: {folder}/credit.html\n"
          "next: python grail.py --reweight both, python grpo.py (the baseline), "
          f"python evaluate.py --model {folder}/checkpoint --data arithmetic --samples 8 --k 1,8")


# ------------------------------------------------------------------------------ the command line


def main(argv=None):
    parser = argparse.ArgumentParser(description="Show which tokens a model's own answer leans on.")
    parser.add_argument("--model", default="tiny", type=os.path.expanduser,
                        help="hub id or folder; tiny: the embedded one")
    parser.add_argument("--problem", default="Start with 7, add 5, times 3.", help="the question")
    parser.add_argument("--completion", help="a file with the answer; without it one is sampled")
    args = parser.parse_args(argv)
    model, tokenizer = problems.load_policy(args.model)
    prompt = problems.build_prompt(tokenizer, args.problem)
    if args.completion:
        try:
            text = open(args.completion, encoding="utf-8").read()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"--completion {args.completion}: {error.args[-1]}.") from None
        problems.longest_prompt(model, tokenizer, [prompt + text])
        encoded = [tokenizer(t, add_special_tokens=False).input_ids for t in (prompt, text or " ")]
        (asked, real), (ids, mask) = (pad([row], 0, "right") for row in encoded)  # (1, n)
        text = tokenizer.decode(ids[0], skip_special_tokens=True)  # what the ids say, to the letter
        out = Rollouts(asked, real, ids, mask.sum(1), mask[:, 0], None, [text])
    else:
        asked = problems.longest_prompt(model, tokenizer, [prompt])
        room = longest_row(model.config)[0] - asked  # tokens
        out = sample(model, tokenizer, [prompt], samples=8, max_new_tokens=min(256, room))
    # The longest one with a box: it has the most tokens for the answer to lean on.
    texts = answers(out, tokenizer)
    i = max(range(len(texts)), key=lambda i: (verify.last_boxed(texts[i]) is not None,
                                              out.lengths[i]))
    forward = forward_pass(model, out, torch.tensor([i]), 1.0, texts=texts[i:i + 1],
                                rewards=None, advantages=None, tokenizer=tokenizer)
    ids = forward.completion_ids[0].tolist()
    span = saliency.answer_span(tokenizer, ids, texts[i])
    if span is None:
        where = f"--completion {args.completion}: it" if args.completion else (
            f"--problem {args.problem!r}: none of 8 completions")
        raise BadInput(f"{where} has no box, so there is no answer to ask about.")
    s = saliency.gradient_activation(forward, torch.tensor([span]))[0]  # (T,)
    tokens = pieces(tokenizer, ids)
    print("token   s_t, the twenty largest, in order of the text")
    for t in sorted(s.argsort(descending=True)[:20].tolist()):
        print(f"{t:5d} {s[t]:9.2e}  {tokens[t]!r}{'   the box' * (span[0] <= t < span[3])}")
    print("\nred: four times the median or more; blue: a quarter or less\n")
    print(coloured(tokens, (s / s[s > 0].median()).sqrt().tolist(), in_colours()))


if __name__ == "__main__":
    run_cli(main)
