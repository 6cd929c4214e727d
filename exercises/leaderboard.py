"""Exercise 10's board: your credit against GRAIL's, 15 steps each from the same 3 seeds.

    python exercises/leaderboard.py entropy      # trains ex10_your_own_credit.py, enters it as that

Same start, same problems, same number of rollouts; then 500 held-out problems, 2 samples each.
Every run stays in runs/board/, and GRAIL's are made once: delete the folder after a change of the
project's own code. A good first entry is GRPO: torch.ones_like(forward.logprobs).
"""
import argparse
import contextlib
import io
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import ex10_your_own_credit

import grail
import problems
from engine import errors
from engine.errors import run_cli
from engine.flags import flags, parse
from evaluate import evaluate
from grpo import train
from intervals import compare

STEPS, SEEDS, PROBLEMS, SAMPLES = 15, (0, 1, 2), 500, 2
GRAIL = SimpleNamespace(as_released=False, activation="embeddings", reweight="wrong")
BOARD = Path(__file__).resolve().parent.parent / "runs" / "board"


def enter(name, credit, held_out):
    """Train and grade one credit from each seed; returns the files of graded samples."""
    files = []
    for seed in tqdm(SEEDS, desc=name, unit="run"):
        folder = BOARD / f"{name}-seed{seed}"
        config = parse(flags(name, ""), ["--steps", str(STEPS), "--seed", str(seed),
                                         "--eval-problems", "0", "--name", str(folder)])
        files.append(folder / "held_out.jsonl")
        if not (folder / "summary.json").exists():
            with contextlib.redirect_stdout(io.StringIO()):
                train(config, credit)
        model, tokenizer = problems.load_policy(folder / "checkpoint")
        evaluate(model, tokenizer, held_out, samples=SAMPLES, quiet=True, path=files[-1],
                 max_new_tokens=config.max_new_tokens)  # finished files are read, not made again
    return files


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", help="what to call this attempt: letters, digits, - and _")
    name = parser.parse_args().name
    if not re.fullmatch(r"[\w-]{1,40}", name) or name == "grail":
        raise errors.BadInput(f"{name!r} cannot be an attempt's name; take letters and digits.")
    if list(BOARD.glob(f"{name}-seed*")):
        raise errors.BadInput(f"{name!r} is on the board; give another name, or delete its runs "
                                f"in {BOARD}.")
    held_out = problems.load_problems("arithmetic", "test", PROBLEMS)
    theirs = enter("grail", grail.credit(GRAIL), held_out)
    row, = compare(theirs, enter(name, ex10_your_own_credit.your_own_credit, held_out))
    with open(BOARD / "board.jsonl", "a", encoding="utf-8") as board:
        board.write(json.dumps({**row, "name": name}) + "\n")
    rows = [json.loads(line) for line in open(BOARD / "board.jsonl", encoding="utf-8")]
    print(f"\n{'sampled accuracy, %':24}{'score':>7}{'over GRAIL':>12}   95 % interval\n"
          f"{'grail':24}{100 * row['a']:7.1f}")
    for row in sorted(rows, key=lambda row: -row["b"]):
        print(f"{row['name']:24}{100 * row['b']:7.1f}{100 * row['difference']:+12.1f}   "
              f"[{100 * row['low']:+.1f}, {100 * row['high']:+.1f}]  "
              f"{row['verdict'].removeprefix('B ')}")


if __name__ == "__main__":
    run_cli(main)
