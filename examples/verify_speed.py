"""Our verifier beside Math-Verify on the same answers: python examples/verify_speed.py FOLDER

FOLDER holds .jsonl files with an "answer" a line (gsm8k_test, math500). Of each, 334 answers are
boxed; every second one is judged against its own gold, the others against their neighbour's. Needs
`pip install "math-verify[antlr4_13_2]==0.9.0"` beside our packages.
"""
import json
import random
import sys
import time
from pathlib import Path

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse
from math_verify import verify as theirs

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from verify import verify

CONFIG = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]  # their README's


def math_verify(completion, gold):
    return bool(theirs(parse(f"${gold}$", CONFIG), parse(completion, CONFIG)))


def main():
    rng, pairs = random.Random(0), []
    for path in sorted(Path(sys.argv[1]).glob("*.jsonl")):
        golds = [json.loads(line)["answer"] for line in path.open(encoding="utf-8")]
        rng.shuffle(golds)
        golds = golds[:334]
        pairs += [(rf"The answer is \boxed{{{golds[i - (i % 2)]}}}.", gold)
                  for i, gold in enumerate(golds)]
    verdicts = {}
    for name, judge in {"ours": verify, "math-verify": math_verify}.items():
        began = time.perf_counter()
        verdicts[name] = [judge(*pair) for pair in pairs]
        print(f"{name:12} {time.perf_counter() - began:8.2f} s for {len(pairs)} pairs")
    print("agree on", sum(a == b for a, b in zip(*verdicts.values())))


if __name__ == "__main__":
    main()
