r"""Public benchmarks: where each is on the hub, and how its rows become problems and gold answers.

    rows = benchmarks.fetch("gsm8k", "test")       # a list of dicts: id, problem, answer, ...
    benchmarks.short_gold("7 + 5 = 12. #### 12")   # ("12", ""): what a box can equal

The table HUB is at the end. Repositories change without notice, so it has the expected number of
rows, and an error names a missing column. `problems.load_problems` drops gold answers that cannot
be graded.

What we left out, on purpose: repositories that come with their own code.
"""
import re
import sys
from typing import Callable, NamedTuple

import verify
from engine.errors import BadInput, reason


def after_hashes(solution):
    """GSM8K: the text after the last `####`, without thousands separators."""
    return solution.rpartition("####")[2].strip().replace(",", "") if "####" in solution else ""


def last_box(solution):
    r"""MATH, Minerva: the content of the last box; `\fbox{x}` and `\boxed 7` occur in both."""
    solution = solution.replace(r"\fbox{", r"\boxed{")
    span = verify.last_boxed(solution)
    if span:
        return solution[span[0] : span[1]].partition("{")[2][:-1].strip()
    bare = re.findall(r"\\boxed\s+([\w./-]*\w)", solution)
    return bare[-1] if bare else ""


def strip_dollars(answer):
    """A value, or a list of values (OlympiadBench), without `$` around it. 27.0 becomes 27."""
    if isinstance(answer, list):
        return ", ".join(strip_dollars(one) for one in answer)
    text = str(answer).strip()
    if len(text) > 1 and text[0] == text[-1] == "$" and "$" not in text[1:-1]:
        text = text[1:-1].strip()
    return text[:-2] if re.fullmatch(r"-?\d+\.0", text) else text


# What tables write for a missing answer. "none" is not here: it can be an answer.
MISSING = {"", "nan", "-nan", "inf", "+inf", "-inf", "None", "null", "n/a", "#n/a", "<na>", "nat",
           "NA", "NULL", "?", "-", "--", "tbd", "todo", "unknown", "missing", "#ref!", "#div/0!",
           "#value!", "#name?", "#num!"}
# Words of a sentence: a claim, or a step of an argument.
CLAIMS = re.compile(r"\b(is|are|was|were|has|have|had|equals?|gives?|gets?|so|thus|therefore|"
                    r"hence)\b", re.I)


def short_gold(answer):
    r"""The answer in a column that may hold a whole solution: (gold, "" or why there is none).

    Takes the first that it finds: the text after the last `####` (GSM8K), the content of the last
    box (MATH), that of the last `<answer>`, the text after "answer is". Otherwise the gold is the
    text itself. A sentence or a text of several lines is no gold, because no box equals it.
    """
    text = "" if answer is None else str(answer).strip()
    marked = re.findall(r"<answer>(.*?)</answer>", text, re.S)
    several = "\n" in without_braces(text) and r"\begin{" not in text
    found = text
    if "####" in text:
        found = text.rpartition("####")[2].strip().partition("\n")[0]
        found = last_box(found) or found.strip()
    elif last_box(text):
        found = last_box(text)
    elif marked:
        found = marked[-1].strip()
    elif several or re.search(r"answer(?: is|:)", text, re.I):
        found = verify.extract(text)
    if found is None:
        return text, "it is a text of several lines, without #### or a box to mark the answer"
    found = re.sub(r"^(\*\*|`)(.*)\1$", r"\2", found).strip()  # of Markdown
    if found in MISSING or found.lower() in MISSING - {"None", "NA", "NULL"}:
        return text, "no answer is given"
    if is_sentence(found):
        return text, "it is a sentence, without #### or a box to mark the answer"
    return found, ""


def is_sentence(text):
    """Is this a sentence around a number ("There are 12 ways to do it")? A box holds only the
    number, so it would not equal this. Units and words in LaTeX's braces do not count."""
    text = without_braces(text)
    words = re.findall(r"[A-Za-z]{2,}", re.sub(r"\\[A-Za-z]+", " ", text))
    return bool(re.search(r"\d", text)) and (
        len(words) > 5 or len(words) > 2 and bool(CLAIMS.search(text)))


def without_braces(text):
    """The text, at most 2,000 characters, with 0 for each pair of LaTeX's braces."""
    text = text[:2000]
    inner = re.compile(r"\{[^{}]*\}")
    while inner.search(text):
        text = inner.sub(" 0 ", text)
    return text


class Source(NamedTuple):
    hub: str  # repository on the Hugging Face hub
    config: str | None
    splits: dict  # our split -> (the hub's split, expected rows)
    problem: Callable  # row -> question
    answer: Callable  # row -> gold answer


# `math` is a mirror: hendrycks/competition_math was taken down, and this copy holds the same 7,500
# and 5,000 problems of github.com/hendrycks/math (MIT). `deepmath` is the copy GRAIL trained on,
# made from zwhe99/DeepMath-103K without its 5 GB of solutions. Sets with no "train" are for
# evaluation only; some repositories call their only split "train", hence the second name.
HUB = {
    "gsm8k": Source("openai/gsm8k", "main", {"train": ("train", 7473), "test": ("test", 1319)},
                    lambda row: row["question"], lambda row: after_hashes(row["answer"])),
    "math": Source("DigitalLearningGmbH/MATH-lighteval", "default",
                   {"train": ("train", 7500), "test": ("test", 5000)},
                   lambda row: row["problem"], lambda row: last_box(row["solution"])),
    "math500": Source("HuggingFaceH4/MATH-500", None, {"test": ("test", 500)},
                      lambda row: row["problem"], lambda row: strip_dollars(row["answer"])),
    "aime24": Source("HuggingFaceH4/aime_2024", None, {"test": ("train", 30)},
                     lambda row: row["problem"], lambda row: strip_dollars(row["answer"])),
    "aime25": Source("math-ai/aime25", None, {"test": ("test", 30)},
                     lambda row: row["problem"], lambda row: strip_dollars(row["answer"])),
    "amc23": Source("math-ai/amc23", None, {"test": ("test", 40)},
                    lambda row: row["question"], lambda row: strip_dollars(row["answer"])),
    "minerva": Source("svc-huggingface/minerva-math", None, {"test": ("test", 272)},
                      lambda row: row["problem"], lambda row: last_box(row["solution"])),
    "olympiadbench": Source("Hothan/OlympiadBench", "OE_TO_maths_en_COMP", {"test": ("train", 674)},
                            lambda row: row["question"],
                            lambda row: strip_dollars(row["final_answer"])),
    "college_math": Source("di-zhang-fdu/College_Math_Test", None, {"test": ("test", 2818)},
                           lambda row: row["question"], lambda row: strip_dollars(row["answer"])),
    "deepmath": Source("trl-lib/DeepMath-103K", None,
                       {"train": ("train", 97870), "test": ("test", 5152)},
                       lambda row: row["prompt"][-1]["content"],
                       lambda row: strip_dollars(row["solution"])),
}


def fetch(name, split):
    """Fetch a set of HUB as the table says. Prints a note if the number of rows is not expected."""
    source = HUB[name]
    if split not in source.splits:
        raise BadInput(f"--data {name}: it has no {split} split, only {', '.join(source.splits)}.")
    hub_split, expected = source.splits[split]
    try:  # anything can fail here: the import, a proxy, a script, a table of another shape
        import datasets  # here, not above: it takes 1.5 s, which local files do not need

        table = datasets.load_dataset(source.hub, source.config, split=hub_split)
    except Exception as error:
        raise BadInput(f"--data {name}: {source.hub} could not be loaded ({reason(error)}); check "
                       "the network or pass a .jsonl file.") from None
    if len(table) != expected:
        print(f"{name}: {source.hub} has {len(table):,} rows, not {expected:,}", file=sys.stderr)
    rows = []
    for i, row in enumerate(table):
        try:
            found = {"problem": source.problem(row), "answer": source.answer(row)}
        except KeyError as column:
            raise BadInput(f"--data {name}: {source.hub} has no column {column} (it has "
                           f"{', '.join(row)}); was it changed?") from None
        except (TypeError, ValueError, AttributeError, IndexError) as error:
            raise BadInput(f"--data {name}: row {i} of {source.hub} has another shape than it had "
                           f"({error}); was it changed?") from None
        # GSM8K's answer column is a solution with calculator marks, which scrl.py reads.
        rows.append({"solution": row.get("answer"), **row, **found, "id": f"{name}-{split}-{i}"})
    return rows
