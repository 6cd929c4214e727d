"""Show the credit: one completion in colour in the terminal, and methods side by side on a page.

    python show.py                           # saliency of one completion of the tiny model
    python show.py --model FOLDER --problem "What is 2 + 2?" --completion answer.txt
    python grail.py                          # ends with the credit of one completion, both ways
    python examples/show_credit.py           # five methods on a right and a wrong completion

This file decides what is on a page, engine/pages.py how it looks.

What we left out, on purpose: a server, a plotting library, pages of more than a few completions.
"""
import argparse
import json
import math
import os
import sys
from pathlib import Path

import torch

import controls
import problems
import saliency
import verify
from engine import pages
from engine.arithmetic import first_false
from engine.context import longest_row
from engine.errors import BadInput, printable, run_cli
from engine.files import write
from engine.pages import strength
from engine.runs import example_of, next_commands
from logprobs import forward_pass
from models import load_tokenizer
from rollout import Rollouts, answers, pad, sample

NAMES = {"grpo": "GRPO", "grail": "GRAIL", "oar": "OAR", "delta": "DelTA", "scrl": "SCRL",
         "vine": "VinePPO"}


def pieces(tokenizer, ids):
    """The text that each of n ids adds to the decoding: n strings that join to the whole text.

    Bytes of one character may be split over tokens. The last of these tokens adds it, the others
    add "", which pages.visible shows as a sign.
    """
    texts = [tokenizer.decode(ids[:n], clean_up_tokenization_spaces=False)
             for n in range(len(ids) + 1)]
    whole, ends = texts[-1], [0]
    for text in texts[1:]:  # an unfinished character ends it in U+FFFD, which `whole` may lack
        agreed = text if whole.startswith(text) else os.path.commonprefix([text, whole])
        ends.append(max(ends[-1], len(agreed)))
    return [whole[begin:end] for begin, end in zip(ends, ends[1:])]


# ------------------------------------------------------------------------------ in a terminal

# Of the 256 terminal colours, from light to strong. Black text on each has a contrast above 6. A
# token of weight 1 keeps the terminal's own colours.
RED, BLUE = [224, 217, 210, 203], [189, 153, 111, 69]


def in_colours():
    """Print colours? Yes in a terminal, unless NO_COLOR is set (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def coloured(tokens, weights, colours=True):
    """Terminal text of n tokens (strings), coloured by weight: blue below 1, red above."""
    out = []
    for token, weight in zip(tokens, weights):
        level = math.ceil(4 * abs(strength(weight)) - 0.5)
        text = printable(pages.visible(token) if colours else token)
        if level and colours:
            code = (RED if weight > 1 else BLUE)[level - 1]
            # End the colour before the newline, or it runs to the terminal's right edge.
            text = "\n".join(f"\x1b[38;5;16;48;5;{code}m{line}\x1b[0m" if line else "" for line in
                             text.replace("\n", "\u23ce\n").split("\n"))
        out.append(text)
    return "".join(out)


# ------------------------------------------------------------------------------ a completion


def first_false_line(problem, text):
    """The first false line of arithmetic: (begin, end) in characters, or None.

    For the embedded problems all steps are known. There, a line that does not continue from the
    one before is false, too (controls.first_slip). Elsewhere each line is checked on its own.
    """
    if not controls.STATEMENT.search(problem):
        return first_false(text)
    slip = controls.first_slip(problem, text)
    if slip and "=" in text[slice(*slip)]:
        return slip[0], slip[0] + len(text[slice(*slip)].rstrip())
    return None  # a guess has no line, and an error only in the box is not arithmetic


def tokens_within(tokens, span):
    """The range of tokens that have a character in (begin, end); empty without a span."""
    end, touched = 0, []
    for i, token in enumerate(tokens):
        begin, end = end, end + len(token)
        if span and begin < span[1] and end > span[0]:
            touched.append(i)
    return range(touched[0], touched[-1] + 1) if touched else range(0)


def z_scores(s, end):
    """z-scores of log s before the box at `end`, as in grail.py: n floats, NaN from the box on."""
    log_s = (torch.tensor(s[:end]).double() + 1e-8 * max(s) + 1e-38).log()       # (end,)
    z = (log_s - log_s.mean()) / (log_s.var(unbiased=False) + 1e-8).sqrt()       # (end,)
    return z.tolist() + [math.nan] * (len(s) - end)


def figures(weights):
    """How concentrated n weights are: the line under a column, as HTML."""
    w = torch.tensor([weights])                               # (1, n)
    on = torch.ones(1, len(weights), dtype=torch.bool)        # (1, n)
    ess = saliency.effective_sample_size_ratio(w, on).item()
    top = saliency.top_mass(w, on).item()
    return (f"ESS ratio {ess:.2f} \u00b7 heaviest 10&nbsp;% hold {100 * top:.0f}&nbsp;% \u00b7 "
            f"mean weight {w.mean().item():.2f}")


def entry(tokenizer, ids, problem, reward, methods, **known):
    """One completion for a page, a dict.

    ids: its n tokens. methods: {name: (weights, saliency or None, note)}, n floats each; the note
    explains this column to a reader. known, all optional: gold (str), A (float), own (n advantages
    of the tokens), p and entropy (n floats each), twins (int, number of equal completions).
    """
    text = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    tokens = pieces(tokenizer, ids)
    box = saliency.answer_span(tokenizer, ids, text)
    columns = []
    for name, (weights, s, note) in methods.items():
        z = [math.nan] * len(ids)
        if s and box and box[0] > 1:
            z = z_scores(s, box[0])
        columns.append(dict(name=name, weights=weights, s=s, z=z, note=note,
                            figures=figures(weights)))
    slip = tokens_within(tokens, first_false_line(problem, "".join(tokens)))
    return dict(tokens=tokens, problem=problem, reward=reward, box=box, slip=slip, methods=columns,
                **known)


# ------------------------------------------------------------------------------ a run's pages


def of_method(config, weights, A):
    """A column's name and note: what this run's settings do with a completion of advantage A.

    The note is "" if GRAIL's settings did not make these weights.
    """
    name = NAMES.get(config.method, config.method)  # a method of yours has its file's name
    if config.credit != "method":
        name += f", --credit {config.credit}"
    if config.method != "grail" or config.credit not in ("method", "shuffled"):
        return name, ""
    if config.as_released:  # a box with content has weights other than 1, on both sides
        without = ": no signal here, because there is no box, or an empty one"
        return name, "the released code's weights" + without * (set(weights) == {1.0})
    note = f"--reweight {config.reweight}"
    if set(weights) == {1.0}:
        kind = {1: "right completions", -1: "wrong completions", 0: "completions of A = 0"}
        if {"wrong": A > 0, "correct": A <= 0}.get(config.reweight):
            note += f": {kind[(A > 0) - (A < 0)]} stay at weight 1"
        else:
            note += (": no signal here, because there are not two tokens before a box, or they "
                     "are all alike")
    return name, note


def of_step(run, tokenizer, done, each=2):
    """Write the page of a training step, every --pages-every steps, and the list of all pages.

    done: a Step. The page shows up to `each` right and `each` wrong completions beside GRPO.
    Completions whose weights differ from GRPO's come first. Those without gradient (weights 0) are
    left out. Each problem gives at most one right and one wrong completion.
    """
    config = run.config
    if not config.pages_every or run.step % config.pages_every:
        return
    G, found, seen = done.rewards.shape[1], [], set()
    moved = ((done.weights != 0) & (done.weights != 1)).any(1).tolist()
    for i in sorted(range(len(moved)), key=lambda i: not moved[i]):
        example = example_of(done, i)
        right = example["reward"] > 0
        taken = (i // G, right) in seen or sum(other == right for _, other in seen) == each
        if any(example["weights"]) and not taken:
            seen.add((i // G, right))
            found.append(beside_grpo(config, tokenizer, example, twins(done.rollouts, i, G)))
    found.sort(key=lambda it: -it["reward"])

    folder = run.folder / "pages"
    folder.mkdir(exist_ok=True)
    path = folder / f"step_{run.step:05d}.html"
    earlier = [page for page in folder.glob("step_*.html") if 0 <= number_of(page) < run.step]
    before = sorted(earlier, key=number_of)[-1:]
    links = [("previous", page.name) for page in before] + [("all pages", "index.html")]
    name = NAMES.get(config.method, config.method)
    title = f"{name}, step {run.step} of {config.steps}"
    reward = float(done.rewards.mean())
    about = f"reward {reward:.3f} in this step; {about_run(run.folder, config)}"
    write(path, pages.page(title, found, about, links))
    for page in before:
        pages.link_to_next(page, path.name)
    list_pages(run.folder, config)


def number_of(page):
    """The step in the name of a page; -1 if it has none. Names with six digits do not sort."""
    number = page.stem.removeprefix("step_")
    return int(number) if number.isdecimal() else -1


def twins(rollouts, i, G):
    """How many other completions of the same problem are equal to row i."""
    group = range(i - i % G, i - i % G + G)
    return sum(rollouts.sampled[j] == rollouts.sampled[i] for j in group) - 1


def beside_grpo(config, tokenizer, example, alike=0):
    """`entry` of an engine.runs.example_of, with GRPO's weights and those of the run's method."""
    ids, weights = example["ids"], example["weights"]
    name, note = of_method(config, weights, example["A"])
    methods = {"GRPO": ([1.0] * len(ids), None, "")}
    if name != "GRPO":
        methods[name] = (weights, None, note)
    known = {key: example[key] for key in ("gold", "A", "own", "p", "entropy")}
    return entry(tokenizer, ids, example["problem"], example["reward"], methods, twins=alike,
                 **known)


def about_run(folder, config):
    """The model, the problems, and the accuracy on held-out ones if it was measured."""
    try:
        summary = dict(json.loads((folder / "summary.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # gone or damaged: the end of the run writes it again
        summary = {}
    told = [f"{when} the training {100 * summary[when]['sampled']['accuracy']:.1f} % sampled, "
            f"{100 * summary[when]['greedy']['accuracy']:.1f} % greedy"
            for when in ("before", "after") if summary.get(when)]
    accuracy = f"; accuracy on held-out problems: {'; '.join(told)}" if told else ""
    return f"{config.model} on {config.data}{accuracy}"


def list_pages(folder, config):
    """Write pages/index.html: every page of the run's steps, with the step's figures."""
    at = folder / "pages"
    if not at.is_dir():
        return
    path, rows = folder / "metrics.jsonl", []
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for step in map(json.loads, lines):
        href = f"step_{step['step']:05d}.html"
        # A line of an older version may lack a figure.
        if (at / href).exists() and step.keys() >= {"reward", "informative", "groups", "length"}:
            rows.append(dict(step, href=href))
    links = [("one completion of the last step", "../credit.html")]
    links = [link for link in links if (at / link[1]).exists()]
    title = f"{NAMES.get(config.method, config.method)}: pages of {folder.name}"
    write(at / "index.html", pages.contents(title, about_run(folder, config), rows, links))


def last_steps(summary, config):
    """Print one completion of the last steps, coloured by its weights. Write it as a page, too."""
    folder, example = Path(summary["folder"]), summary["example"]
    if example is None:
        print("no completion had a gradient, so there is none to show")
        return
    tokenizer = load_tokenizer(folder, str(folder / "checkpoint"))
    A, shown = example["A"], beside_grpo(config, tokenizer, example)
    slip = "".join(shown["tokens"][i] for i in shown["slip"])
    print(f"\nOne completion (reward {example['reward']:.0f}) of: "
          f"{printable(example['problem'])}\n"
          f"right answer: {printable(example['gold'])}"
          f"{'; first false line: ' + printable(slip.strip()) if slip else ''}\n"
          f"A = {A:+.3g}: red is {'praised' if A > 0 else 'blamed'} more than under GRPO, blue "
          f"less{'' if in_colours() else ' (colours are off)'}\n")
    print(coloured(shown["tokens"], example["weights"], in_colours()))

    links = [("pages of the steps", "pages/index.html")]
    links = [link for link in links if (folder / link[1]).exists()]
    about = f"step {summary['step']}; {about_run(folder, config)}"
    write(folder / "credit.html", pages.page("GRAIL's credit", [shown], about, links))
    list_pages(folder, config)
    print(f"\nas a page: {folder}/credit.html")
    print("next: train the baseline, and evaluate this model on problems that it never saw:")
    print("\n".join(f"  {command}" for command in next_commands(folder, config)))


# ------------------------------------------------------------------------------ the command line


def beside_the_median(s):
    """s (T,) over the median of its positive values. All 1 if none is: then no token stands out."""
    if not (s > 0).any():
        return torch.ones_like(s)
    return s / s[s > 0].median()


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
        text = tokenizer.decode(ids[0], skip_special_tokens=True)  # exactly the text of the ids
        out = Rollouts(asked, real, ids, mask.sum(1), mask[:, 0], None, [text])
    else:
        asked = problems.longest_prompt(model, tokenizer, [prompt])
        room = longest_row(model.config)[0] - asked  # tokens
        out = sample(model, tokenizer, [prompt], samples=8, max_new_tokens=min(256, room))
    # The longest one with a box: it has the most tokens that the answer can depend on.
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
        raise BadInput(f"{where} has no box, so there is no answer to explain.")
    s = saliency.gradient_activation(forward, torch.tensor([span]))[0]  # (T,)
    tokens = pieces(tokenizer, ids)
    print("token   s_t: the twenty largest, in the order of the text")
    for t in sorted(s.argsort(descending=True)[:20].tolist()):
        boxed = "   the box" * (span[0] <= t < span[3])
        print(f"{t:5d} {s[t]:9.2e}  {pages.visible(tokens[t])!r}{boxed}")
    print("\nred: four times the median or more; blue: a quarter or less\n")
    print(coloured(tokens, beside_the_median(s).sqrt().tolist(), in_colours()))


if __name__ == "__main__":
    run_cli(main)
