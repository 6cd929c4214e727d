"""Our verifier beside Math-Verify on the same answers: python examples/verify_speed.py FOLDER

FOLDER holds .jsonl files with an "answer" per line (gsm8k_test, math500). Of each file, 334 answers
are boxed. Every second one is graded against its own gold answer, the others against their
neighbour's. Also needs `pip install "math-verify[antlr4_13_2]==0.9.0"`.
"""
import argparse
import json
import random
import sys
import time
from pathlib import Path

try:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse
    from math_verify import verify as theirs
except ImportError:
    print('Install it first: pip install "math-verify[antlr4_13_2]==0.9.0"', file=sys.stderr)
    sys.exit(2)

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.errors import BadInput, run_cli
from verify import verify

CONFIG = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]  # their README's


def math_verify(completion, gold):
    return bool(theirs(parse(f"${gold}$", CONFIG), parse(completion, CONFIG)))


def answers(path):
    """The answer of each line. Raises BadInput for a line without one."""
    found = []
    for n, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            found.append(json.loads(line)["answer"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise BadInput(f"{path}, line {n}: no JSON object with an answer.") from None
    return found


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("folder", type=Path, help="holds the .jsonl files")
    folder, rng, pairs = parser.parse_args(argv).folder, random.Random(0), []
    for path in sorted(folder.glob("*.jsonl")):
        golds = answers(path)
        rng.shuffle(golds)
        golds = golds[:334]
        pairs += [(rf"The answer is \boxed{{{golds[i - (i % 2)]}}}.", gold)
                  for i, gold in enumerate(golds)]
    if not pairs:
        parser.error(f"{folder}: there is no .jsonl file in it.")
    verdicts, mean = {}, {}
    for name, judge in {"ours": verify, "math-verify": math_verify}.items():
        judge(r"\boxed{x+1}", "2x")  # first fill imports and caches
        began, times, verdicts[name] = time.process_time(), [], []
        for pair in pairs:
            start = time.perf_counter()
            verdicts[name].append(judge(*pair))
            times.append(1000 * (time.perf_counter() - start))
        # The mean is CPU time, because other jobs on the machine slow both down at random.
        mean[name] = 1000 * (time.process_time() - began) / len(pairs)
        times.sort()
        print(f"{name:12} {len(pairs)} pairs: mean {mean[name]:.3f} ms of the processor, median "
              f"{times[len(times) // 2]:.3f} ms, 99th percentile "
              f"{times[int(.99 * len(times))]:.3f}")
    print(f"ratio of the means {mean['math-verify'] / mean['ours']:.0f}")
    print("agree on", sum(a == b for a, b in zip(*verdicts.values())))


if __name__ == "__main__":
    run_cli(main)
