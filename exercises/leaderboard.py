"""Exercise 10's board: your credit against GRAIL's and GRPO's, 15 steps each from the same 3 seeds.

    python exercises/leaderboard.py entropy      # trains ex10_your_own_credit.py as "entropy"

All have the same start, problems and number of rollouts. Then 500 held-out problems follow, with 2
samples each. A run takes about half a minute on two idle cores. The first entry makes nine runs.
Six of them are GRAIL's and GRPO's, which stay, so a later entry makes three. It prints an estimate
first. All runs are in runs/board/: delete the folder if you change the project's own code.
"""
import argparse
import contextlib
import io
import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from attempts import load
from expected import Wrong

import grail
import problems
from engine.errors import BadInput, run_cli
from engine.flags import flags, parse
from evaluate import evaluate
from grpo import train, uniform
from intervals import compare

STEPS, SEEDS, PROBLEMS, SAMPLES = 15, (0, 1, 2), 500, 2
SECONDS = 25  # a run of that size and its evaluation, on two idle cores
# Its defaults.
GRAIL = SimpleNamespace(as_released=False, activation="embeddings", reweight="wrong")
BASELINES = {"grail": grail.credit(GRAIL), "grpo": uniform}
COLUMNS = {"name", "a", "b", "difference", "low", "high", "verdict", "needed"}  # that are shown
BOARD = Path(__file__).resolve().parent.parent / "runs" / "board"


def finished(name, seed):
    """Has this run done its steps? `evaluate` makes what is missing of its graded samples."""
    try:
        summary = json.loads((BOARD / f"{name}-seed{seed}" / "summary.json").read_text("utf-8"))
        return summary["step"] == STEPS
    except (OSError, ValueError, KeyError, TypeError):  # gone or damaged
        return False


def run(name, seed, credit, held_out):
    """Train and grade one credit from one seed; returns its file of graded samples."""
    folder = BOARD / f"{name}-seed{seed}"
    # No pages of single steps: for those a run of GRAIL needs the flags of grail.py.
    config = parse(flags(name, ""), ["--steps", str(STEPS), "--seed", str(seed),
                                     "--eval-problems", "0", "--pages-every", "0",
                                     "--name", str(folder)])
    if not finished(name, seed):
        shutil.rmtree(folder, ignore_errors=True)  # the half of a run that was stopped
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                train(config, credit)
        except NotImplementedError:
            raise BadInput("ex10_your_own_credit.py has no answer yet; write one, and "
                           "mark it before you train it.") from None
    samples = folder / "held_out.jsonl"
    model, tokenizer = problems.load_policy(folder / "checkpoint")
    evaluate(model, tokenizer, held_out, samples=SAMPLES, quiet=True, path=samples,
             max_new_tokens=config.max_new_tokens)  # finished files are read, not made again
    return samples


def entries():
    """The board's rows, one a credit. Raises BadInput for a line that is none, half a line say."""
    path, rows = BOARD / "board.jsonl", []
    text = path.read_text("utf-8", "replace") if path.exists() else ""
    for number, line in enumerate(text.split("\n"), 1):
        if not line:
            continue
        try:
            row = json.loads(line)
            whole = COLUMNS <= row.keys()
        except (ValueError, AttributeError):
            whole = False
        if not whole:
            raise BadInput(f"{path}, line {number}: it is no entry of the board; delete the line "
                           "and enter that attempt again.")
        rows.append(row)
    return rows


def enter(row):
    """Add a row to the board."""
    BOARD.mkdir(parents=True, exist_ok=True)
    with open(BOARD / "board.jsonl", "a", encoding="utf-8") as board:
        board.write(json.dumps(row) + "\n")


def show(rows):
    print(f"\n{'sampled accuracy, %':24}{'score':>7}{'over GRAIL':>12}   95 % interval, and the "
          "problems that would show one point\n"
          f"{'grail':24}{100 * rows[0]['a']:7.1f}")
    for row in sorted(rows, key=lambda row: -row["b"]):
        print(f"{row['name']:24}{100 * row['b']:7.1f}{100 * row['difference']:+12.1f}   "
              f"[{100 * row['low']:+.1f}, {100 * row['high']:+.1f}]  "
              f"{row['verdict'].removeprefix('B ')}, {row['needed']:,}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", help="what to call this attempt: letters, digits, - and _")
    name = parser.parse_args().name
    if not re.fullmatch(r"[\w-]{1,40}", name) or name in BASELINES:
        raise BadInput(f"{name!r} cannot be an attempt's name; take letters and digits.")
    if name in [row["name"] for row in entries()]:
        raise BadInput(f"{name!r} is on the board; give another name.")
    try:
        credit = load("ex10_your_own_credit").function
    except Wrong as error:
        raise BadInput(str(error)) from None
    for seed in SEEDS:  # a name that was stopped before it was on the board, of older code perhaps
        shutil.rmtree(BOARD / f"{name}-seed{seed}", ignore_errors=True)
    credits = BASELINES | {name: credit}
    wanted = [(who, seed) for who in (name, *BASELINES) for seed in SEEDS]
    missing = sum(not finished(*one) for one in wanted)
    print(f"{missing} runs of {STEPS} steps to make: about {missing * SECONDS / 60:.0f} minutes on "
          "two idle cores")
    held_out = problems.load_problems("arithmetic", "test", PROBLEMS)
    files = {}
    for who, seed in tqdm(wanted, unit="run"):  # yours first: a mistake in it shows at once
        files.setdefault(who, []).append(run(who, seed, credits[who], held_out))
    for who in ("grpo", name):
        if who not in [row["name"] for row in entries()]:
            row, = compare(files["grail"], files[who])
            enter({**row, "name": who})
    show(entries())


if __name__ == "__main__":
    run_cli(main)
