r"""The study's cells, read from its JSONL lines: what an arm scored, and how two arms differ.

    arms = by_arm(read("results/study_embedded.jsonl"))      # {arm: {seed: line}}
    compared(arms, "grail", "grpo")                          # the difference, paired over seeds

    python results/cells.py results/study_embedded.jsonl FOLDER      # a file for each cell, for
    python evaluate.py --compare FOLDER/grpo-?.jsonl vs FOLDER/grail-?.jsonl

One line is one training run (see study.py). It holds the number of right samples of every held-out
problem, as a string of digits. So every figure of the tables can be computed again from it.

What we left out, on purpose: the best point of a curve, tests of each point.
"""
import argparse
import functools
import json
import math
import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
from paired import detectable, p_value, t_interval

from engine.errors import BadInput, run_cli
from engine.files import begins_like, write
from evaluate import pass_at_k

# The questions, each one family of tests: (title, [(B, A), ...], the measure that is tested). An
# arm that was not run is left out, and Holm corrects only for those that were.
FAMILIES = [
    ("Against GRPO", [(arm, "grpo") for arm in (
        "grail", "grail-released", "oar-g", "oar-p", "delta", "scrl", "grpo-std", "shuffled",
        "level", "random")], "sampled"),
    ("Controls, the release, SCRL's twin", [
        ("grail", "shuffled"), ("grail", "level"), ("grail", "grail-released"),
        ("scrl", "grpo-std")], "sampled"),
    ("GRAIL with one choice changed", [(arm, "grail") for arm in (
        "grail-predictor", "grail-all-tokens", "grail-no-boost", "grail-boost-all",
        "grail-correct", "grail-both", "grail-first", "grail-last")], "sampled"),
    ("Where the weights of right completions stand", [("correct-level", "grail-correct")],
     "sampled"),
    ("GRAIL again, its sums in another order", [("grail-rounding", "grail")], "sampled"),
]

# Files with questions of their own, written down before their cells ran. Other files do not get
# these questions, because a question must not be tested on the seeds that suggested it.
QUESTIONS = {
    "study_greedy": [
        ("Right completions reweighted, greedily", [("grail-correct", "grpo")], "greedy"),
        ("Is it where their weights stand? Greedily", [
            ("grail-correct", "correct-level"), ("correct-level", "grpo")], "greedy"),
        ("The same three, sampled", [
            ("grail-correct", "grpo"), ("grail-correct", "correct-level"),
            ("correct-level", "grpo")], "sampled"),
    ],
    "study_long": [
        ("Speed: the mean of the curve, against GRPO", [(arm, "grpo") for arm in (
            "oracle", "vine", "grail", "grail-released", "grail-correct", "oar-g", "oar-p",
            "delta", "scrl", "shuffled", "level", "entropy")], "curve"),
        ("Is it where the weights stand? The mean of the curve", [
            ("grail", "shuffled"), ("grail", "level")], "curve"),
        ("At the end, sampled, against GRPO", [(arm, "grpo") for arm in (
            "oracle", "vine", "grail", "grail-released", "grail-correct", "oar-g", "oar-p",
            "delta", "scrl", "shuffled", "level", "entropy")], "sampled"),
    ],
    "study_gsm8k": [
        ("Against GRPO", [(arm, "grpo") for arm in (
            "grail", "oar-g", "delta", "shuffled", "vine")], "sampled"),
        ("Is it where the weights stand?", [("grail", "shuffled")], "sampled"),
        ("Which of GRAIL's choices breaks it? Against GRAIL", [(arm, "grail") for arm in (
            "grail-boost-all", "grail-no-boost", "grail-both", "grail-released",
            "grail-correct")], "sampled"),
        ("Which of GRAIL's choices breaks it? Against GRPO", [(arm, "grpo") for arm in (
            "grail-boost-all", "grail-no-boost", "grail-both", "grail-released",
            "grail-correct")], "sampled"),
    ],
    "study_gsm8k-rates": [
        ("Each at its own rate, against GRPO", [(arm, "grpo") for arm in (
            "grail", "oar-g", "delta", "shuffled")], "sampled"),
    ],
    "study_boost": [
        ("The boost of every box: the mean of the curve", [
            ("grail-boost-all", "grail"), ("grail-boost-all", "grpo")], "curve"),
        ("The boost of every box: the end, sampled", [
            ("grail-boost-all", "grail"), ("grail-boost-all", "grpo")], "sampled"),
    ],
    "study_recipe": [
        ("As the release trains", [("grail-release-recipe", "grpo-release-recipe")], "sampled"),
    ],
}


def families_of(path):
    """The questions that a file of cells answers."""
    return QUESTIONS.get(Path(path).stem, FAMILIES)


def read(path):
    """The lines (dicts) of a file of cells. A killed run can leave half a line at the end, which is
    left out.

    Raises BadInput for a line that study.py did not write, for a cell that is there twice, and for
    a line of a different study than the lines before it.
    """
    raw = Path(path).read_bytes() if Path(path).exists() else b""
    lines, seen, known = [], set(), {}
    if not begins_like(raw, b'{"cell":'):
        raise BadInput(f"{path}, line 1: no cell of study.py.")
    for number, text in enumerate(raw[:raw.rfind(b"\n") + 1].splitlines(), 1):
        where = f"{path}, line {number}"
        try:
            line = json.loads(text)
            check(line)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise BadInput(f"{where}: no cell of study.py.") from None
        cell = tuple(line["cell"][k] for k in ("phase", "arm", "rate", "seed"))
        if cell in seen:
            raise BadInput(f"{where}: {' '.join(map(str, cell))} is there twice.")
        points = [[p["step"], len(p["right"]), p["samples"]] for p in points_of(line)]
        alike = {**line["settings"], f"{cell[0]} [step, problems, samples]": points}
        for k, value in alike.items():
            if known.setdefault(k, value) != value:
                raise BadInput(f"{where}: was made with {k} {value!r}, and lines before it with "
                               f"{known[k]!r}; a file holds one study, so move it to another.")
        seen.add(cell)
        lines.append(line)
    return lines


def points_of(line):
    """The evaluated points of a line, in the order of their steps."""
    return [*line["curve"], line["final"], *([line["greedy"]] if "greedy" in line else [])]


def check(line):
    """Raise an error unless the line has all parts that this file and tables.py read: ValueError
    for a wrong value, and what Python raises for a missing part or another type."""
    cell, points = line["cell"], points_of(line)
    spent = line.get("tokens_by_step", [0] * line["final"]["step"])  # the oldest lines lack it
    numbers = [cell["rate"], line["tokens"], *line["seconds"].values(), *spent]
    shares = [point["truncated"] for point in points]
    if cell["phase"] == "final":
        numbers.append(line["weight_mean"])
    counts = [cell["seed"], *(point["step"] for point in points)]
    names = [cell["arm"], line["settings"]["data_sha256"],
             line["made_on"]["device"], line["made_on"]["torch"]]
    names += [point[column] for point in points for column in ("right", "lenient")]
    if not (cell["phase"] in ("start", "sweep", "final")
            and (cell["phase"] == "sweep") == ("greedy" not in line)
            and len(spent) == line["final"]["step"]
            and all(0 <= number < math.inf for number in numbers)
            and all(0 <= share <= 1 for share in shares)
            and all(type(count) is int and count >= 0 for count in counts)
            and all(type(name) is str and name for name in names)
            and all(map(in_digits, points))):
        raise ValueError


def in_digits(point):
    """Does each column hold one digit per problem, at most the number of samples?"""
    samples, digits = point["samples"], point["right"] + point["lenient"]
    return (1 <= samples <= 9 and len(point["right"]) == len(point["lenient"])
            and set(digits) <= set("0123456789"[:samples + 1]))


def scores(point, k=1):
    """Pass@k of each problem, (N,) float64, of one evaluated point; Pass@1 is the accuracy."""
    return of_digits(point["right"], point["samples"], k)


@functools.cache  # every table and figure asks for the same points again
def of_digits(right, samples, k):
    """Pass@k (N,) from N digits. A digit says how many of a problem's samples were right."""
    digits = torch.frombuffer(bytearray(right, "ascii"), dtype=torch.uint8) - ord("0")  # (N,)
    return pass_at_k(digits, samples, k)


def curve(line, k=1, start=None):
    """{step: mean Pass@k} on the problems that were asked at every point of the curve.

    start: the line of the untrained model, which all curves begin with.
    """
    points = [start["final"] if start else line["final"], *line["curve"], line["final"]]
    shared = min(len(point["right"]) for point in points)
    return {p["step"]: scores({**p, "right": p["right"][:shared]}, k).mean().item() for p in points}


def by_arm(lines):
    """{arm: {seed: line}}, arms in the order of the questions, seeds ascending. Raises BadInput for
    an arm that is in no question, and for one with final cells at two learning rates."""
    asked, found = sum(QUESTIONS.values(), FAMILIES), {}
    order = list(dict.fromkeys(arm for _, pairs, _ in asked for b, a in pairs for arm in (a, b)))
    if unknown := {line["cell"]["arm"] for line in lines} - {*order}:
        raise BadInput(f"arm {min(unknown)}: is in no family of cells.py.")
    for line in sorted(lines, key=lambda x: (order.index(x["cell"]["arm"]), x["cell"]["seed"])):
        if line["cell"]["phase"] == "final":
            arm, rate, seed = (line["cell"][k] for k in ("arm", "rate", "seed"))
            first = next(iter(found.get(arm, {}).values()), line)["cell"]["rate"]
            if rate != first:
                raise BadInput(f"arm {arm}: has final cells at two learning rates, {first:g} and "
                               f"{rate:g}; an arm is compared at one, so move the lines of the "
                               "other to a file of their own (study.py --out).")
            found.setdefault(arm, {})[seed] = line
    return found


def mean_curve(seeds, k, start):
    """The mean `curve` of an arm's {seed: line}."""
    return mean_of([curve(line, k, start) for line in seeds.values()])


def mean_cut_off(seeds, start):
    """The mean share of samples that were cut off, {step: share}, of an arm's {seed: line}."""
    first = [start["final"]] if start else []
    return mean_of([{point["step"]: point["truncated"]
                     for point in [*first, *line["curve"], line["final"]]}
                    for line in seeds.values()])


def mean_of(curves):
    """The mean of several {step: value} with the same steps."""
    return {step: sum(c[step] for c in curves) / len(curves) for step in curves[0]}


def untrained(lines):
    """The line of the untrained model, or None."""
    return next((line for line in lines if line["cell"]["phase"] == "start"), None)


def at_the_end(line, column):
    """Scores of the last step on all held-out problems, (N,); "curve": the curve's mean, (1,)."""
    if column == "curve":  # without its start, which is the same for all arms
        points = curve(line)
        return torch.tensor([sum(points.values()) / len(points)], dtype=torch.float64)
    point = line["greedy" if column == "greedy" else "final"]
    return scores(point, point["samples"] if column == "pass" else 1)


def stacked(seeds, column):
    """`at_the_end` of an arm's {seed: line}, (S, N)."""
    return torch.stack([at_the_end(line, column) for line in seeds.values()])


def compared(arms, b, a, column="sampled"):
    """B - A over the seeds that both have: a dict, or None with fewer than two such seeds.

    Differences are shares of 1. "d" holds those of every seed and problem, (S, N). "detectable" is
    for ten seeds, or for these if they are more.
    """
    seeds = [seed for seed in arms.get(b, {}) if seed in arms.get(a, {})]
    if len(seeds) < 2:
        return None
    x, y = (stacked({s: arms[arm][s] for s in seeds}, column) for arm in (b, a))  # (S, N) each
    d = (x - y).mean(1)                                                           # (S,)
    mean, low, high = t_interval(d)
    return dict(b=b, a=a, seeds=len(seeds), mean=mean, low=low, high=high, p=p_value(d),
                sd=d.std().item(), d=x - y,
                detectable=detectable(d.std().item(), max(10, len(seeds))))


# ------------------------------------------------------------------------------ the gain


def share_of_gain(arms, arm, column="curve", resamples=10_000):
    """What share of the oracle's gain over GRPO an arm reaches: (share, low, high), or None.

        share = (mean of the arm - mean of GRPO) / (mean of the oracle - mean of GRPO)

    The interval is the middle 95 % of the shares when the seeds are drawn with replacement, the
    same ones for all three. A ratio says nothing where its denominator may be 0: None if the oracle
    is not above GRPO in 97.5 % of the draws, or where an arm has less than two seeds.
    """
    three = [arms.get(name, {}) for name in (arm, "grpo", "oracle")]
    seeds = sorted(set.intersection(*(set(one) for one in three)))
    if len(seeds) < 2:
        return None
    x, grpo, oracle = (stacked({seed: one[seed] for seed in seeds}, column).mean(1)
                       for one in three)                                             # (S,) each
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(len(seeds), (resamples, len(seeds)), generator=generator)  # (R, S)
    gains = (oracle - grpo)[drawn].mean(1)                                           # (R,)
    if (gains <= 0).double().mean() > 0.025:
        return None
    shares = (x - grpo)[drawn].mean(1) / gains                                       # (R,)
    ends = torch.quantile(shares, torch.tensor([0.025, 0.975], dtype=shares.dtype))  # (2,)
    return ((x - grpo).mean() / (oracle - grpo).mean()).item(), *ends.tolist()


def at_tokens(line, tokens, start):
    """Accuracy on the curve's problems after so many sampled tokens, by linear interpolation
    between the curve's points; None beyond its end. Tokens of continuations count, too."""
    points = curve(line, start=start)  # {step: accuracy}
    spent = [0, *torch.tensor(line["tokens_by_step"]).cumsum(0).tolist()]
    known = [(spent[step], accuracy) for step, accuracy in sorted(points.items())]
    for (x0, y0), (x1, y1) in zip(known, known[1:]):
        if x0 <= tokens <= x1:
            return y0 + (y1 - y0) * (tokens - x0) / (x1 - x0)
    return None


# ------------------------------------------------------------------------------ for evaluate.py


def as_evaluated(line):
    """A final cell as the text of a file of evaluate.py: a header and a record for each sample,
    without its text. A cell only counts the right samples, so we write those first."""
    point = line["final"]
    header = {"data": "held-out", "samples": point["samples"], "problems": len(point["right"]),
              "study_sha256": line["settings"]["data_sha256"], **line["cell"]}
    records = [{"data": "held-out", "id": i, "sample": j, "strict": j < int(digit)}
               for i, digit in enumerate(point["right"]) for j in range(point["samples"])]
    return "".join(json.dumps(row) + "\n" for row in [{"header": header}, *records])


def main(argv=None):
    parser = argparse.ArgumentParser(description="The final cells as files of evaluate.py.")
    parser.add_argument("lines", help="a file of study.py, such as results/study_embedded.jsonl")
    parser.add_argument("folder", help="receives the files ARM-SEED.jsonl")
    args = parser.parse_args(argv)
    arms, folder = by_arm(read(args.lines)), Path(args.folder)
    if not arms:
        raise BadInput(f"{args.lines}: there is no such file, or no final cell in it.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{folder}: cannot be a folder ({error.strerror}).") from None
    for arm, seeds in arms.items():
        for seed, line in seeds.items():
            write(folder / f"{arm}-{seed}.jsonl", as_evaluated(line))
    print(f"{sum(map(len, arms.values()))} files in {folder}: {', '.join(arms)}")


if __name__ == "__main__":
    run_cli(main)
