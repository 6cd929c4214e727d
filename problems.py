r"""Problem sets, prompts, and the policy that answers them.

A problem set is a list of dicts, each with "id", "problem" and "answer" (three strings) and any
other columns of its source. It comes from one of three places:

    arithmetic              data/arithmetic_{train,test}.jsonl beside this file (no network);
                            arithmetic-long: data/tiny_long/, long chains
    some/file.jsonl         your own, one {"problem": ..., "answer": ...} a line
    gsm8k, math500, ...     the table HUB of benchmarks.py, fetched through `datasets`

    python problems.py gsm8k                      # how many gold answers are usable, and a prompt
    python problems.py mine.jsonl --model Qwen/Qwen3-0.6B

Loading grades every gold answer against itself. If it fails, no completion could earn the reward,
so the problem is dropped; a message says how many and why. In your own file the answer may be a
whole solution: `short_gold` takes the answer out. A message also names repeated problems.

What we left out, on purpose: streaming, mixtures of sets, few-shot prompts, system prompts, remote
code. A set that needs more is best turned into a .jsonl file first.
"""

import argparse
import functools
import hashlib
import json
import os
import sys
from pathlib import Path

import verify
from benchmarks import HUB, fetch, short_gold
from engine.context import longest_row
from engine.errors import BadInput, printable, run_cli
from models import load_policy, refuse_what_is_not_made
from rollout import refuse_beyond_context

HERE = Path(__file__).resolve().parent

# The problem sets that come with this project, or that data/make_tiny.py makes.
SETS = {"arithmetic": HERE / "data", "arithmetic-long": HERE / "data" / "tiny_long"}

# Raw string: without the r, "\b" is a backspace and the model is asked for "oxed{}".
SUFFIX = r" Please reason step by step, and put your final answer within \boxed{}."


def same_problem(row):
    """The words of the problem. Two rows with the same words ask the same."""
    return " ".join(row["problem"].split())


def load_problems(data, split="train", limit=None):
    """Load a problem set as a list of dicts with at least "id", "problem" and "answer" (strings).

    `data`: a name in SETS or HUB, or a path ending in .jsonl (its only split is the file).
    `limit`: keep at most this many usable problems. Prints a line about the gold answers to stderr.
    Raises BadInput: unknown name, missing or empty file, a line that is not JSON, a missing column,
    a problem that is not text, no such split, or no usable gold answer.
    """
    if str(data).endswith(".jsonl"):
        rows = read_jsonl(Path(data))
    elif data in SETS:
        refuse_what_is_not_made(f"--data {data}", SETS[data])
        rows = read_jsonl(SETS[data] / f"arithmetic_{split}.jsonl")
    elif data in HUB:
        rows = fetch(data, split)
    else:
        names = ", ".join([*SETS, *HUB])
        raise BadInput(f"--data {data}: neither a path ending in .jsonl nor one of {names}.")

    usable, dropped = [], {}  # dropped: reason -> rows
    for row in rows:
        boxed = r"\boxed{" + row["answer"] + "}"
        why = row.pop("no_gold", "")
        if not why and verify.verify(boxed, row["answer"], strict=True) is not True:
            why = "their gold answer cannot be graded"
        (dropped.setdefault(why, []) if why else usable).append(row)
    part = "" if str(data).endswith(".jsonl") else f" {split}"  # a file is its own only split
    line = f"{data}{part}: {len(usable):,} problems"
    reasons = [f"{len(some):,} because {why} ({some[0]['id']}: {some[0]['answer'][:60]!r})"
               for why, some in dropped.items()]
    if reasons:
        line += f", {len(rows) - len(usable):,} dropped: {', '.join(reasons)}"
    if not usable:
        raise BadInput(f"--data {line}; no problem is left.")
    print(printable(line), file=sys.stderr)
    say_repeated(usable, f"{data}{part}")
    return usable[:limit]


def say_repeated(rows, where):
    """Print how many rows repeat a problem, and a problem with two different gold answers."""
    first, repeated, torn = {}, 0, []
    for row in rows:
        before = first.setdefault(same_problem(row), row)
        repeated += before is not row
        if before["answer"] != row["answer"]:
            if not verify.equivalent(before["answer"], row["answer"]):
                torn.append((before, row))
    if repeated:
        print(printable(f"{where}: {repeated:,} rows repeat a problem of another row"),
              file=sys.stderr)
    if torn:
        a, b = torn[0]
        print(printable(f"{where}: {len(torn):,} of them contradict it, the first is {b['id']}: "
                        f"{b['answer'][:60]!r}, where {a['id']} says {a['answer'][:60]!r}"),
              file=sys.stderr)


def load_split(config):
    """(training rows, held-out rows). Of a .jsonl file, at most a tenth is held out.

    The choice depends only on the problems' texts. So a sorted file is not split by its order, and
    runs of different seeds hold out the same problems and can be compared. No problem is in both:
    a training row that repeats a held-out one is left out, and a message says so.
    """
    own = config.data.endswith(".jsonl")
    rows, wanted = load_problems(config.data, "train"), config.eval_problems
    if own:
        different = list({same_problem(row): row for row in rows}.values())
        n = min(wanted, len(different) // 10)
        different.sort(key=lambda row: hashlib.sha256(same_problem(row).encode()).digest())
        held_out = different[:n]
        if held_out:
            print(printable(f"{config.data}: {n:,} problems are held out, drawn from the whole "
                            "file; every --seed gets the same"), file=sys.stderr)
        if wanted and not n:
            print(printable(f"{config.data}: fewer than ten different problems, so none is held "
                            "out and accuracy is not measured"), file=sys.stderr)
    else:
        held_out = load_problems(config.data, "test")[:wanted] if wanted else []
    kept = set(map(same_problem, held_out))
    train = [row for row in rows if same_problem(row) not in kept]
    repeats = len(rows) - len(train) - len(held_out) * own
    if repeats:
        print(printable(f"{config.data}: {repeats:,} rows that repeat a held-out problem are not "
                        "trained on"), file=sys.stderr)
    if not train:
        raise BadInput(f"--data {config.data}: all its problems are held out; none is left.")
    return train, held_out


def read_jsonl(path):
    """Read a problem file. `load_problems` says what it must hold."""
    if not os.path.isfile(path):  # not path.is_file(), which raises for a name that is too long
        raise BadInput(f"--data {path}: there is no such file.")
    rows, seen, taken = [], {}, []
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise BadInput(f"--data {path}: byte {error.start} is not UTF-8 text.") from None
    except OSError as error:
        raise BadInput(f"--data {path}: cannot be read ({error.strerror}).") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"--data {path}, line {number}"
        try:
            row = json.loads(line)
            json.dumps(row, ensure_ascii=False).encode()  # fails on half a surrogate pair
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{where}: not JSON in UTF-8 ({error}).") from None
        if not isinstance(row, dict):
            raise BadInput(f"{where}: a {type(row).__name__}, not an object with named columns.")
        for column in ("problem", "answer"):
            if column not in row:
                raise BadInput(f"{where}: no column {column!r} (it has {', '.join(row)}).")
        if not isinstance(row["problem"], str) or not row["problem"].strip():
            raise BadInput(f"{where}: the problem is {row['problem']!r}, not a text.")
        answer = row["answer"]
        if isinstance(answer, bool) or not isinstance(answer, (str, int, float, type(None))):
            raise BadInput(f"{where}: the answer is {answer!r}, neither text nor a number.")
        row["answer"], row["no_gold"] = short_gold(answer)
        if isinstance(answer, str) and row["answer"] != answer.strip():
            row["solution"] = row.get("solution") or answer  # for scrl.py
            taken.append(row["answer"])
        row["id"] = None if no_id(row.get("id")) else str(row["id"])
        if row["id"] in seen:
            raise BadInput(f"{where}: id {row['id']!r} was used in line {seen[row['id']]}.")
        if row["id"] is not None:
            seen[row["id"]] = number
        rows.append(row)
    if not rows:
        raise BadInput(f"--data {path}: the file is empty.")
    if taken:
        print(printable(f"{path}: the answer was taken out of {len(taken):,} longer texts, the "
                        f"first is {taken[0][:60]!r}"), file=sys.stderr)
    give_ids(rows, path.stem)
    return rows


def give_ids(rows, stem):
    """Name a row without an id after the file and its place, unless that id is already used."""
    own = {row["id"] for row in rows}
    for i, row in enumerate(rows):
        if row["id"] is None:
            row["id"] = f"{stem}-{i}"
            while row["id"] in own:
                row["id"] += "'"


def no_id(value):
    """Is this None, NaN or blank text? Tables write these if there is no id."""
    return value is None or value != value or isinstance(value, str) and not value.strip()


def build_prompt(tokenizer, problem, thinking=False, suffix=SUFFIX):
    """The model's full prompt as text. Tokenise it with add_special_tokens=False.

    With a chat template: one user message and the start of the reply. `thinking` sets the
    template's switch, which only models like Qwen3 have. Without a template (base models): a plain
    question, after the BOS token if the tokenizer adds one. Raises BadInput for a template that
    fails, or that leaves out the problem.
    """
    if tokenizer.chat_template:
        prompt = from_template(tokenizer, problem + suffix, thinking)
        unmoved = thinking and prompt == from_template(tokenizer, problem + suffix, False)
    else:
        first = tokenizer("a").input_ids[:1]
        bos = tokenizer.bos_token if first == [tokenizer.bos_token_id] else ""
        prompt, unmoved = f"{bos}Question: {problem}{suffix}\nAnswer:", thinking
    if unmoved:
        note(f"--thinking changes nothing: --model {tokenizer.name_or_path} has no chat template "
             "with a switch called enable_thinking or thinking.")
    return prompt


def from_template(tokenizer, message, thinking):
    """Apply the chat template to one user message: as a string, or else as a list of parts, which
    some templates expect. Raises BadInput if the text does not include the message."""
    reasons = []
    for content in (message, [{"type": "text", "text": message}]):
        # tokenize=False, because transformers 5 otherwise returns a dict of ids. Tokenise the text
        # later without special tokens, or it gets a second BOS.
        try:
            prompt = tokenizer.apply_chat_template(
                [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True,
                enable_thinking=thinking, thinking=thinking)
        except Exception as error:  # a template is a program, and may fail in any way
            reason = str(error).strip().partition("\n")[0]
            reasons.append(f"refuses a user's message alone ({type(error).__name__}: {reason})")
            continue
        if message.strip() in prompt:
            return prompt
        reasons.append(f"leaves the problem out: it makes {prompt[:60]!r} of {message[:60]!r}")
    raise BadInput(f"--model {tokenizer.name_or_path}: its chat template {reasons[0]}.")


@functools.cache
def note(text):
    """Print this to stderr, once."""
    print(printable(text), file=sys.stderr)


def say_unread(tokenizer, prompts):
    """Print which characters of the prompts the tokenizer drops or has no token for."""
    letters = "".join(sorted(set("".join(prompts))))
    ids = tokenizer(letters, add_special_tokens=False).input_ids
    doubtful = set(letters) - set(tokenizer.decode(ids))
    for prompt in prompts if doubtful else ():
        ids = tokenizer(prompt, add_special_tokens=False).input_ids
        lost = sorted(doubtful & set(prompt) - set(tokenizer.decode(ids)))
        if lost:
            note(f"the tokenizer of --model {tokenizer.name_or_path} does not know {lost[0]!r}, so "
                 f"the model is asked without it: {tokenizer.decode(ids)[:200]!r}")
            return


def longest_prompt(model, tokenizer, prompts, new_tokens=1):
    """Number of tokens of the longest prompt. Raises BadInput if a token has no embedding, or if
    the model's context has no room for new_tokens after the prompt."""
    say_unread(tokenizer, prompts)
    context, _ = longest_row(model.config)
    rows = len(model.get_input_embeddings().weight)
    counted = prompts
    if max(tokenizer.get_vocab().values()) < rows:
        # A token has at least one byte, so prompts of fewer bytes than the context surely fit.
        counted = [prompt for prompt in prompts if len(prompt.encode()) + new_tokens >= context]
        counted = counted or [max(prompts, key=len)]
    tokens = tokenizer(counted, add_special_tokens=False).input_ids
    largest = max((token for some in tokens for token in some), default=0)
    if largest >= rows:
        raise BadInput(f"--model {model.name_or_path}: its tokenizer writes token {largest}, but "
                       f"it has only {rows} embeddings.")
    most = max(tokens, key=len)
    if len(most) >= context:
        text = tokenizer.decode(most)
        raise BadInput(f"--data: a prompt of {len(most):,} tokens leaves no room for an answer in "
                       f"the model's {context:,}; leave it out: {text[:60]!r}...")
    refuse_beyond_context(model.config, len(most), new_tokens)
    return len(most)


def main(argv=None):
    parser = argparse.ArgumentParser(description="Show a problem set and the prompt made from it.")
    parser.add_argument("data", nargs="?", default="arithmetic", type=os.path.expanduser,
                        help="a name or a .jsonl file")
    parser.add_argument("--split", default="train", choices=["train", "test"])
    parser.add_argument("--model", default="tiny", type=os.path.expanduser,
                        help="whose chat template to use")
    parser.add_argument("--thinking", action="store_true", help="let Qwen3 think first")
    args = parser.parse_args(argv)
    row = load_problems(args.data, args.split)[0]
    _, tokenizer = load_policy(args.model)
    print(printable(build_prompt(tokenizer, row["problem"], args.thinking)))
    print(printable(f"\n--- gold answer: {row['answer']}"))


if __name__ == "__main__":
    run_cli(main)
