r"""The seven figures of README, walkthrough, slides and results: python docs/figures.py

    loop.svg        a step of GRPO or GRAIL: ask, sample, grade, compare, weigh, step
    clip.svg        what the clip does to a good token and to a bad one
    backward.svg    from the box back to the tokens that it leans on
    blame.svg       one wrong answer, blamed by GRPO, by GRAIL and by a person
    forest.svg      the study: every method minus GRPO
    signals.svg     how well each signal ranks the tokens, and how its arm trained
    rates.svg       200 steps of a real model at three learning rates

Every number in them is computed here by the project's own functions, or read from results/. Each
file follows the reader's colour scheme, light or dark, and needs no font and no script.
"""
import argparse
import html
import json
import math
import re
import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "results")]
import cells
import paired

import grail
import grpo
import problems
import rollout
import saliency
import show
import verify
from engine.errors import run_cli
from engine.flags import flags, parse
from logprobs import forward_pass

PROBLEM, GOLD, ROW = "Start with 10, minus 3, minus 4.", "3", 2  # of the walkthrough, row 2 too
STUDIES = [("study_embedded.jsonl", "short chains, the embedded model"),
           ("study_long.jsonl", "long chains, where perfect credit gains 6 points"),
           ("study_fresh.jsonl", "short chains, fresh seeds"),
           ("study_greedy.jsonl", "the same, more fresh seeds"),
           ("study_recipe.jsonl", "the same, both trained as the release trains"),
           ("study_real.jsonl", "a real model of 0.5 B parameters, on MAWPS and SVAMP"),
           ("study_gsm8k.jsonl", "the same model on GSM8K, all at the rate of GRPO")]
NOTES = {"grail-released": "the published code", "grpo-std": "A over its group's std",
         "shuffled": "GRAIL's weights, shuffled", "level": "GRAIL's weights, averaged",
         "random": "a coin for a verdict", "grail-correct": "right answers reweighted",
         "oracle": "blames the wrong line", "vine": "credit by sampling",
         "entropy": "the token's own entropy"}

# Signals: (name in the figure, name in fidelity.json, arm trained with it). Random numbers have no
# arm of their own; `shuffled` puts GRAIL's weights in a random order.
SIGNALS = [("GRAIL", "gradient x activation", "grail"),
           ("OAR-G", "input gradient, 4 draws", "oar-g"), ("OAR-P", "OAR-P", "oar-p"),
           ("DelTA", "DelTA margin", "delta"), ("entropy", "entropy", "entropy"),
           ("random", "random", "shuffled")]
TASKS = [("Short chains", "fidelity.json", "study_embedded.jsonl"),
         ("Long chains", "fidelity_long.json", "study_long.jsonl")]
EFFECTS = [("size", "size of the effect"), ("toward", "effect toward the outcome")]
MEASURES = {"sampled": "at the end, sampled", "curve": "in the mean of the curve"}

# ------------------------------------------------------------------------------ drawing

STYLE = """
text{font:14px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1f2328}
.mono{font-family:ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace}
.small{font-size:12px}.tiny{font-size:10.5px}.head{font-weight:600}.soft{fill:#59636e}
.paper{fill:#ffffff}
.panel{fill:#f6f8fa;stroke:#d1d9e0}.rule{fill:none;stroke:#d1d9e0}.pen{fill:none;stroke:#1f2328}
.red{fill:#d1242f}.blue{fill:#0969da}.green{fill:#1a7f37}.dot{fill:#1f2328}
.hollow{fill:#ffffff;stroke:#1f2328;stroke-width:1.5}
.redpen{fill:none;stroke:#d1242f}.bluepen{fill:none;stroke:#0969da}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.soft{fill:#9198a1}.paper{fill:#0d1117}
.panel{fill:#151b23;stroke:#3d444d}.rule{stroke:#3d444d}.pen{stroke:#e6edf3}.dot{fill:#e6edf3}
.red{fill:#ff7b72}.blue{fill:#58a6ff}.green{fill:#3fb950}
.hollow{fill:#0d1117;stroke:#e6edf3}.redpen{stroke:#ff7b72}.bluepen{stroke:#58a6ff}}
"""
WIDE = 8.5  # pixels of a character of 14 px monospace


def text(x, y, words, kind="", anchor="start"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}" '
            f'xml:space="preserve">{html.escape(words)}</text>')


def rect(x, y, width, height, kind, opacity=1.0, round=3):
    return (f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{round}" '
            f'class="{kind}" fill-opacity="{opacity:.2f}"/>')


def path(d, kind="pen", width=1.5, more=""):
    return f'<path d="{d}" class="{kind}" stroke-width="{width:.2f}" {more}/>'


def arrow(x1, y1, x2, y2):
    """A straight arrow, across or down."""
    dx, dy = (6, 0) if x2 > x1 else (-6, 0) if x2 < x1 else (0, 6)
    head = f"M{x2 - dx - dy} {y2 - dy - dx}L{x2} {y2}L{x2 - dx + dy} {y2 - dy + dx}"
    return path(f"M{x1} {y1}L{x2} {y2}{head}")


def shown(token):
    """A token as it is drawn: line breaks and the stop token are signs."""
    return token.replace("\n", "\u23ce").replace("<|im_end|>", "end")


def token_row(x, y, tokens, weights, space=3):
    """Tokens side by side, blue below weight 1 and red above: the drawing, and their middles."""
    out, middles = [], []
    for token, w in zip(map(shown, tokens), weights):
        width = WIDE * len(token) + space
        shade = show.strength(w)
        out.append(rect(x, y - 16, width - 1, 22, "red" if shade > 0 else "blue",
                        0.55 * abs(shade)))
        out.append(text(x + space / 2 - 0.5, y, token,
                        "mono soft" if token == "end" else "mono"))
        middles.append(x + width / 2)
        x += width
    return out, middles


def svg(width, height, title, parts):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">\n<title>{html.escape(title)}</title>\n'
            f'<style>{STYLE}</style>\n<rect width="{width}" height="{height}" class="paper"/>\n'
            + "\n".join(parts) + "\n</svg>\n")


# ------------------------------------------------------------------------------ what is drawn


def one_group():
    """Eight answers of the embedded model to PROBLEM, and all that a step makes of them: a dict."""
    config = parse(flags("grail", ""), [])
    config.reweight, config.activation, config.as_released = "wrong", "embeddings", False
    model, tokenizer = problems.load_policy("tiny")
    prompt = problems.build_prompt(tokenizer, PROBLEM)
    out = rollout.sample(model, tokenizer, [prompt], samples=config.group,
                         max_new_tokens=config.max_new_tokens)
    rewards = torch.tensor([[float(verify.verify(t, GOLD, strict=True)) for t in out.texts]])
    advantages = grpo.group_advantages(rewards)[0]                                   # (G,)

    def scored():
        return forward_pass(model, out, torch.arange(config.group), 1.0, texts=out.texts,
                            rewards=rewards[0], advantages=advantages, tokenizer=tokenizer)

    before = scored()
    weights = grail.credit(config)(before)                                           # (G, T)
    spans = [saliency.answer_span(tokenizer, ids, said) for ids, said in
             zip(out.sampled, out.texts)]
    s = saliency.gradient_activation(before, saliency.answer_spans(before))          # (G, T)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=0.0)
    grpo.update(model, optimizer, out, rewards, grail.credit(config), config, tokenizer)
    moved = (scored().logprobs - before.logprobs).detach().sum(1)                    # (G,)
    tokens = [show.pieces(tokenizer, ids) for ids in out.sampled]
    return dict(tokens=tokens, rewards=rewards[0].tolist(), A=advantages.tolist(), spans=spans,
                weights=[w[:len(row)].tolist() for w, row in zip(weights, tokens)],
                s=[x[:len(row)].tolist() for x, row in zip(s, tokens)], moved=moved.tolist(),
                p=before.logprobs.exp().tolist(), lr=config.lr)


def first_slip(tokens):
    """The tokens of c in the first false line `a+b=c`: a set, what a person would blame."""
    said = "".join(tokens)
    for match in re.finditer(r"(\d+)([-+*])(\d+)=(\d+)", said):
        a, b, c = int(match[1]), int(match[3]), int(match[4])
        if {"+": a + b, "-": a - b, "*": a * b}[match[2]] != c:
            ends = [len("".join(tokens[:t + 1])) for t in range(len(tokens))]
            return {t for t, end in enumerate(ends) if match.start(4) < end <= match.end(4)}
    return set()


# ------------------------------------------------------------------------------ the figures


def loop(group):
    """One step, a column for each of its parts."""
    answers, right = len(group["tokens"]), int(sum(group["rewards"]))
    out = [rect(24, 14, 920, 34, "panel"), text(36, 36, "1 ask", "head"),
           text(96, 36, PROBLEM, "mono"), arrow(60, 48, 60, 68)]
    heads = [(36, f"2 sample {answers} answers", "from the policy"),
             (230, "5 weigh their tokens", "A w in place of A: red w > 1, blue w < 1"),
             (606, "3 grade", "r = 0 or 1"), (690, "4 compare", f"A = r - {right}/{answers}"),
             (800, "6 step", "log \u03c0(answer) moves by")]
    for x, title, below in heads:
        out += [text(x, 86, title, "head"), text(x, 104, below, "small soft")]
    for i, tokens in enumerate(group["tokens"]):
        y = 134 + 32 * i
        reward, A, moved = group["rewards"][i], group["A"][i], group["moved"][i]
        sign = "green" if A > 0 else "red"
        out.append(rect(24, y - 21, 920, 30, "panel"))
        out += token_row(34, y, tokens, group["weights"][i])[0]
        out += [text(622, y, f"{reward:.0f}", f"mono {sign}", "middle"),
                text(750, y, f"{A:+.3f}", f"mono {sign}", "end"),
                text(870, y, f"{moved:+.2f}", f"mono {sign}", "end"),
                arrow(634, y - 5, 684, y - 5), arrow(760, y - 5, 814, y - 5)]
    y = 134 + 32 * answers
    out += [path(f"M860 {y - 23}V{y + 4}H10V31H22M16 26L22 31L16 36"),
            text(480, y + 24, "the policy after the step answers the next problems", "soft",
                 "middle"),
            text(480, y + 46, "weights: GRAIL's, which are 1 in right answers and where fewer than "
                 f"2 tokens precede the box   step: AdamW, lr {group['lr']:g}", "small soft",
                 "middle")]
    title = f"One step: {right} of {answers} answers are right and become likelier"
    return svg(960, y + 62, title, out)


def clip(config):
    """The surrogate over the ratio for A = 1 and A = -1; flat is where nothing is learned."""
    low, high = config.clip_low, config.clip_high
    ratio = torch.linspace(0.5, 1.6, 221).double().requires_grad_()                  # (221,)
    out = []
    for left, A, title, enough in (
            (60, 1.0, "A > 0: make it likelier", f"{100 * high:.0f} % likelier: enough"),
            (530, -1.0, "A < 0: make it less likely", f"{100 * low:.0f} % less likely: enough")):
        surrogate = grpo.clipped_surrogate(ratio, torch.tensor(A).double(), low, high)  # (221,)
        slope, = torch.autograd.grad(surrogate.sum(), ratio)                         # (221,)

        def at(r, value, left=left, A=A):
            return left + 330 * (r - 0.5) / 1.1, 160 - 170 * (value - A)

        def curve(rs, values, at=at):
            return "M" + "L".join("%.1f %.1f" % at(r, v) for r, v in zip(rs, values))

        rs, values = ratio.tolist(), surrogate.tolist()
        flat = [r for r, g in zip(rs, slope.tolist()) if g == 0]
        x1, x2 = at(flat[0], 0)[0], at(flat[-1], 0)[0]
        out += [text(left, 24, title, "head"), rect(x1, 50, x2 - x1, 220, "blue", 0.14, 0),
                text((x1 + x2) / 2, 262, "no gradient", "small soft", "middle"),
                text((x1 + x2) / 2, 44, enough, "small soft", "middle"),
                path(f"M{left} 270H{left + 330}", "rule"),
                path(curve(rs, [r * A for r in rs]), "pen", 1.2, 'stroke-dasharray="4 4"'),
                path(curve(rs, values), "redpen" if A < 0 else "bluepen", 3)]
        for r in (1 - low, 1.0, 1 + high):
            x = at(r, 0)[0]
            out += [path(f"M{x:.1f} 50V270", "rule"), text(x, 288, f"{r:g}", "small", "middle")]
        x, y = at(1.0, A)
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" class="dot"/>',
                text(left + 165, 308, "ratio: \u03c0(token) now / when it was sampled",
                     "small soft", "middle")]
    out.append(text(480, 340, "bold: min(ratio A, clip(ratio) A)   dashed: ratio A   dot: before "
                    "the first step, where the ratio is 1", "small", "middle"))
    return svg(920, 360, "The clip, for a good token and for a bad one", out)


def backward(group):
    """Arcs from the box to the tokens before it, as thick as the box leans on them."""
    tokens, s, w = (group[name][ROW] for name in ("tokens", "s", "weights"))
    start, content, close, end = group["spans"][ROW]
    row, x = token_row(80, 230, tokens, w, 13)
    boxed = "".join(tokens[start:end])
    J = -sum(torch.tensor(group["p"][ROW][start:end]).log()).item()
    box = (x[start] + x[end - 1]) / 2
    out = [text(24, 30, "One backward from the box: how much does the answer lean on each token "
                "before it?", "head"),
           text(24, 52, f"J = -log \u03c0({boxed}) = {J:.4f}   "
                "s = \u2016 dJ/de \u00b7 e \u2016, e the token's embedding", "small soft")]
    for t in range(start):
        top = 206 - 0.2 * (box - x[t])
        arc = f"M{box:.1f} 208C{box - 20:.1f} {top:.1f} {x[t] + 20:.1f} {top:.1f} {x[t]:.1f} 208"
        out.append(path(arc, "redpen", max(0.4, 7 * s[t] / max(s)), 'stroke-opacity="0.6"'))
    out += row
    out.append(path(f"M{x[start] - 34:.1f} 240H{x[end - 1] + 9:.1f}", "pen", 2))
    out.append(text(box, 256, "the box", "small", "middle"))
    logs = torch.tensor(s[:start]).log()                                             # (start,)
    least, most = logs.min().item(), logs.max().item()
    out += [text(24, 330, "log s", "soft"), text(24, 386, "weight", "soft"),
            path("M80 340H936", "rule")]
    for t in range(start):
        height = 6 + 58 * (logs[t].item() - least) / (most - least)
        out.append(rect(x[t] - 7, 340 - height, 14, height, "red", 0.6, 1))
    for t in range(len(tokens)):
        out.append(text(x[t], 386, f"{w[t]:.1f}", "tiny", "middle"))
    out.append(text(24, 420, "weight: 1 + z/2 of log s before the box, between 0.5 and 5; 5 on the "
                    "number in the box; 1 on its rim and after it", "small soft"))
    return svg(960, 440, "GRAIL's saliency: from the box back to the tokens", out)


def blame(group):
    """Share of the blame of every token of the wrong answer, by three judges."""
    tokens, w, span = (group[name][ROW] for name in ("tokens", "weights", "spans"))
    slip, box, n = first_slip(tokens), set(range(span[1], span[2])), len(tokens)
    person = [n / len(slip) if t in slip else 0.0 for t in range(n)]
    out = [text(24, 30, f"{PROBLEM}  The answer is {GOLD}; this one is wrong. Which tokens are to "
                "blame?", "head")]
    for i, (name, weights) in enumerate((("GRPO", [1.0] * n), ("GRAIL", w), ("a person", person))):
        y = 110 + 142 * i
        row, x = token_row(110, y, tokens, weights, 11)
        total = sum(weights)
        out += [text(24, y, name, "head"), *row, path(f"M110 {y - 20}H{x[-1] + 18:.1f}", "rule")]
        for t in range(n):
            height = 160 * weights[t] / total
            out.append(rect(x[t] - 6, y - 20 - height, 12, height, "red", 0.8, 0))
        for part, label in ((slip, "the slip"), (box, "the number in the box")):
            share = sum(weights[t] for t in part) / total
            middle = sum(x[t] for t in part) / len(part)
            out.append(text(middle, y + 24, f"{label}: {100 * share:.0f} %", "small", "middle"))
    out.append(text(24, 452, "bar: the token's share of the blame   colour: more (red) or less "
                    "(blue) than GRPO gives it", "small soft"))
    return svg(960, 472, "Who is to blame? GRPO, GRAIL and a person", out)


def forest():
    """Every method minus GRPO, with 95 % intervals: each study's first family of questions, by the
    measure that it tests."""
    out = [text(24, 30, "Accuracy, method minus GRPO, in points", "head"),
           text(24, 50, "95 % intervals over seeds; filled: p < 0.05 after Holm's correction in "
                "each family; curve: its mean", "small soft")]
    y, zero, point = 60, 710, 20  # pixels: of the line, of no difference, of one point
    for name, title in STUDIES:
        arms = cells.by_arm(cells.read(HERE.parent / "results" / name))
        _, pairs, measure = cells.families_of(name)[0]
        rows = [row for b, a in pairs if (row := cells.compared(arms, b, a, measure))]
        seeds = rows[0]["seeds"]
        y += 30
        out.append(text(24, y, f"{title}: {measure}, {seeds} seeds", "head small"))
        for row, p in zip(rows, paired.holm([row["p"] for row in rows])):
            y += 24
            low, mean, high = (100 * row[k] for k in ("low", "mean", "high"))
            notes = [NOTES.get(row["b"], "")]
            if row["seeds"] != seeds:
                notes.append(f"{row['seeds']} seeds")
            out += [text(40, y, row["b"], "mono"),
                    text(170, y, ", ".join(filter(None, notes)), "small soft"),
                    text(480, y, f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]", "mono small", "end")]
            if abs(mean) > 11:
                out.append(text(zero - 11 * point, y, "\u2190 far off", "small soft"))
                continue
            ends = [zero + point * max(-11, min(11, end)) for end in (low, high)]
            out.append(path(f"M{ends[0]:.1f} {y - 5}H{ends[1]:.1f}", "pen", 2))
            out.append(f'<circle cx="{zero + point * mean:.1f}" cy="{y - 5}" r="5" class="'
                       f'{"dot" if p < 0.05 else "hollow"}"/>')
    axis = [path(f"M{zero + point * tick} 66V{y + 12}", "rule", 2.0 if tick == 0 else 0.8)
            for tick in range(-10, 11, 5)]
    axis += [text(zero + point * tick, y + 30, f"{tick:+d}" if tick else "0: as GRPO", "small",
                  "middle") for tick in range(-10, 11, 5)]
    return svg(960, y + 46, "The study: every method minus GRPO", axis + out)


def signal_points(fidelity, study, effect):
    """[(name, (correlation, low, high), (gain, low, high))] of the signals with an arm in `study`:
    the correlation with this effect, corrected for noise, and the arm's gain over GRPO in points,
    by the study's first measure."""
    found = json.loads((HERE.parent / "results" / fidelity).read_text(encoding="utf-8"))
    estimates = dict(zip(found["signals"], found[effect]["corrected"]))
    arms = cells.by_arm(cells.read(HERE.parent / "results" / study))
    measure = cells.families_of(study)[0][2]
    points = []
    for name, signal, arm in SIGNALS:
        if row := cells.compared(arms, arm, "grpo", measure):
            gain = tuple(100 * row[k] for k in ("mean", "low", "high"))
            points.append((name, tuple(estimates[signal]), gain))
    return points


def free_place(x, y, words, taken):
    """Where the words beside a dot at (x, y) cover least of the boxes in `taken`: (x, y, anchor).
    Their own box joins `taken`. A box is (left, top, right, bottom)."""
    width, places = 7.8 * len(words), []
    for dx, dy in ((8, -7), (-8, -7), (8, 17), (-8, 17), (8, -20), (-8, -20), (8, 30), (-8, 30)):
        left = x + dx if dx > 0 else x + dx - width
        box = (left, y + dy - 11, left + width, y + dy + 3)
        covered = sum(max(0, min(box[2], b[2]) - max(box[0], b[0]))
                      * max(0, min(box[3], b[3]) - max(box[1], b[1])) for b in taken)
        places.append((covered, len(places), x + dx, y + dy, "start" if dx > 0 else "end", box))
    *_, x, y, anchor, box = min(places)
    taken.append(box)
    return x, y, anchor


def scatter(points, frame, xs, ys):
    """Points with their intervals inside a frame (left, top, width, height).

    xs, ys: (least, most, space of two ticks) of both axes.
    """
    left, top, width, height = frame

    def at(x, y):
        return (left + width * (x - xs[0]) / (xs[1] - xs[0]),
                top + height * (ys[1] - y) / (ys[1] - ys[0]))

    out, taken = [], []
    for i in range(math.ceil(xs[0] / xs[2]), math.floor(xs[1] / xs[2]) + 1):
        x, _ = at(i * xs[2], 0)
        out += [path(f"M{x:.1f} {top}V{top + height}", "rule", 0.8 if i else 2.0),
                text(x, top + height + 17, f"{i * xs[2]:.1f}", "small", "middle")]
    for i in range(math.ceil(ys[0] / ys[2]), math.floor(ys[1] / ys[2]) + 1):
        _, y = at(0, i * ys[2])
        out += [path(f"M{left} {y:.1f}H{left + width}", "rule", 0.8 if i else 2.0),
                text(left - 8, y + 4, f"{i * ys[2]:+d}" if i else "0", "small", "end")]
    for _, (x, low, high), (y, least, most) in points:
        (x1, y1), (x2, y2), (x, y) = at(low, least), at(high, most), at(x, y)
        out += [path(f"M{x1:.1f} {y:.1f}H{x2:.1f}M{x:.1f} {y1:.1f}V{y2:.1f}", "pen", 1.2,
                     'stroke-opacity="0.4"')]
        taken += [(x1, y - 3, x2, y + 3), (x - 3, y2, x + 3, y1), (x - 6, y - 6, x + 6, y + 6)]
    for name, (x, *_), (y, *_) in points:
        x, y = at(x, y)
        out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" class="'
                   f'{"hollow" if name == "random" else "dot"}"/>')
    for name, (x, *_), (y, *_) in points:
        x, y, anchor = free_place(*at(x, y), name, taken)
        out.append(text(x, y, name, "small head", anchor))
    return out


def ends(intervals, space):
    """An axis that shows all intervals (mean, low, high) and 0: (least, most, space of ticks)."""
    least = min(low for _, low, _ in intervals)
    most = max(high for _, _, high in intervals)
    return min(least, 0) - space / 3, max(most, 0) + space / 3, space


def signals():
    """Does a signal that ranks better train better? A row for each task, a column for each way to
    measure a token's true effect."""
    found = {(task, effect): signal_points(fidelity, study, effect)
             for task, fidelity, study in TASKS for effect, _ in EFFECTS}
    out = [text(24, 30, "Do signals that rank tokens better train better?", "head"),
           text(24, 52, "across: rank correlation with the token's true effect, corrected for the "
                "noise of sampling it; 0 is chance", "small soft"),
           text(24, 70, "up: the arm's gain over GRPO, in points; 0 is GRPO. Bars: 95 % intervals. "
                "random: trained with GRAIL's weights, shuffled", "small soft")]
    top = 122
    for (task, _, study), height, space in zip(TASKS, (270, 360), (1, 2)):
        left_out = {name for name, *_ in SIGNALS} - {name for name, *_ in found[task, "size"]}
        note = "".join(f"; {name} was not trained" for name in sorted(left_out))
        measure = MEASURES[cells.families_of(study)[0][2]]
        out.append(text(24, top - 14, f"{task}: the gain {measure}{note}", "head small"))
        ys = ends([gain for *_, gain in found[task, "size"]], space)
        for left, (effect, title) in zip((64, 514), EFFECTS):
            every = [x for name, *_ in TASKS for _, x, _ in found[name, effect]]
            out.append(f'<g id="{task.split()[0].lower()}-{effect}">')
            out += scatter(found[task, effect], (left, top, 420, height), ends(every, 0.2), ys)
            out += [text(left + 210, top + height + 36, f"correlation with the {title}",
                         "small soft", "middle"), "</g>"]
        top += height + 92
    return svg(960, top - 34, "How well each signal ranks tokens, and how its arm trained", out)


def line_chart(lines, frame, most):
    """Lines [(points, class, width)] inside a frame (left, top, width, height), with points (step,
    share); the axes show 200 steps and shares from 0 to `most`."""
    left, top, width, height = frame
    out = []
    for share in range(0, round(100 * most) + 1, 10):
        y = top + height * (1 - share / 100 / most)
        out += [path(f"M{left} {y:.1f}H{left + width}", "rule", 0.8 if share else 2.0),
                text(left - 8, y + 4, str(share), "small", "end")]
    for step in (0, 50, 100, 150, 200):
        out.append(text(left + width * step / 200, top + height + 18, str(step), "small", "middle"))
    for points, kind, thick in lines:
        corners = [f"{left + width * step / 200:.1f} {top + height * (1 - share / most):.1f}"
                   for step, share in points]
        out.append(path("M" + "L".join(corners), kind, thick))
    return out


def rates():
    """What a good run of a real model looks like, and what too high a learning rate does."""
    lines = cells.read(HERE.parent / "results" / "study_gsm8k.jsonl")
    sweep = [line for line in lines if line["cell"]["phase"] == "sweep"]
    reward, accuracy = [], []
    kinds = {1e-6: "bluepen", 3e-6: "pen", 5e-6: "redpen"}
    out = [text(24, 30, "A real model, 200 steps of GRPO at three learning rates", "head"),
           text(24, 50, "Qwen2.5-Coder-0.5B-Instruct on GSM8K, 64 answers a step; each line is one "
                "run", "small soft")]
    for i, (rate, kind) in enumerate(kinds.items()):
        runs = [line for line in sweep if line["cell"]["rate"] == rate]
        for run in runs:
            windows = [run["reward"][start:start + 20] for start in range(0, 200, 20)]
            reward.append(([(20 * j + 10, sum(some) / 20) for j, some in enumerate(windows)],
                           kind, 1.5))
            points = [*run["curve"], run["final"]]
            shares = [(point["step"], cells.scores(point).mean().item())
                      for point in points]
            accuracy.append((shares, kind, 1.5))
        out += [path(f"M{24 + 170 * i} 72h26", kind, 2.5),
                text(56 + 170 * i, 76, f"{rate:.0e}".replace("-0", "-") + f", {len(runs)} runs",
                     "small")]
    for left, title, some in ((64, "reward while it trains, %: mean of 20 steps", reward),
                              (534, "500 problems kept apart, sampled, right, %", accuracy)):
        out += [text(left, 104, title, "small"), *line_chart(some, (left, 118, 400, 200), 0.4)]
    out.append(text(940, 360, "step", "small soft", "end"))
    return svg(960, 372, "A real model, 200 steps at three learning rates", out)


def drawn():
    """{file name: SVG}, all seven."""
    group = one_group()
    config = parse(flags("grpo", ""), [])
    return {"loop.svg": loop(group), "clip.svg": clip(config), "backward.svg": backward(group),
            "blame.svg": blame(group), "forest.svg": forest(), "signals.svg": signals(),
            "rates.svg": rates()}


def main(argv=None):
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args(argv)
    (HERE / "figures").mkdir(exist_ok=True)
    for name, picture in drawn().items():
        (HERE / "figures" / name).write_text(picture, encoding="utf-8")
        print(f"docs/figures/{name}")


if __name__ == "__main__":
    run_cli(main)
