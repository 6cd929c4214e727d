"""How good is it: accuracy, unbiased Pass@k, honest intervals, and whether B really beats A.

    python evaluate.py                                         # the tiny model, 1,000 problems x 8
    python evaluate.py --model Qwen/Qwen3-0.6B --data gsm8k,math500 --samples 8 --k 1,8
    python evaluate.py --compare a.jsonl b.jsonl               # with seeds: a0 a1 a2 vs b0 b1 b2
    python evaluate.py --model Qwen/Qwen3-4B --paper-protocol  # as GRAIL's release does

Accuracy is the mean over samples. It counts only answers in \boxed{} (strict), as the reward does
(which also pays nothing for a text that was cut off after two boxes). The lenient score also
accepts "the answer is 7" or a last number. If only the strict score rises, the model learned the
format. Every sample goes to a file at once. The same command continues a stopped evaluation, and
reads a finished one instead of repeating it.

What we left out, on purpose: model judges, few-shot prompts, several cards, bold type for winners.
"""
import argparse
import hashlib
import json
import math
import os
import time
from collections import Counter
from pathlib import Path

import torch
from tqdm import tqdm

import verify
from benchmarks import HUB
from engine.errors import BadInput, at_most, printable, run_cli
from engine.samples import describe, describe_prompts, resume
from intervals import interval, print_comparison, print_results
from problems import SETS, build_prompt, load_policy, load_problems, longest_prompt
from rollout import answers, sample, stop_ids

PAPER = dict(data="math500,amc23,aime24,college_math,olympiadbench,minerva", samples=3, k="1,3",
             temperature=0.6, top_p=0.95, top_k=20, max_new_tokens=8192)
SUBSETS = {"college_math": 200, "olympiadbench": 200}  # the release's sizes; we drew which 200


# --------------------------------------------------------------------------- one benchmark


def pass_at_k(correct, samples, k):
    """Chance that k of the n samples, drawn without replacement, include a right one.

        1 - C(n - c, k) / C(n, k)  =  1 - prod_{i < k} (n - c - i) / (n - i)    (Chen et al. 2021)

    correct c (N,) counts -> (N,) float64. The simple 1 - (1 - c/n)^k is biased: at p = 0.2, n = 8,
    k = 4 its mean is .517, but the truth is .590. Raises ValueError unless 1 <= k <= n.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"k = {k}: Pass@k needs 1 <= k <= n, and n is {samples}.")
    i = torch.arange(k)                                                              # (k,)
    wrong = (samples - correct.double()[..., None] - i) / (samples - i)              # (N, k)
    return 1 - wrong.prod(-1)                                                        # (N,)


def evaluate(model, tokenizer, problems, *, samples=1, temperature=1.0, top_p=1.0, top_k=0,
             max_new_tokens=512, batch_size=256, seed=0, ks=(1,), thinking=False, path=None,
             quiet=False, name="problems"):
    """Sample, grade and summarise one set of problems (dicts with id, problem, answer).

    Returns a dict: accuracy (also under the name strict) with low and high (95 %), lenient,
    majority, pass_at_k {k: (value, low, high)}, truncated (share cut off at max_new_tokens),
    mean_length (tokens with the stop token), problems, samples, tokens_per_second (of this call's
    sampling), per_problem {column: list of N}. `batch_size` counts rows. With `path`, samples go to
    that file at once, and samples already in it are kept. Ctrl-C raises KeyboardInterrupt(the dict
    so far). Raises BadInput: no problem, k > n, greedy with n > 1, a batch that does not fit;
    a file of other settings, not writable, not ours, or being written by another process.
    """
    decoding = dict(samples=samples, temperature=temperature, top_p=top_p, top_k=top_k,
                    max_new_tokens=max_new_tokens, seed=seed)
    refuse_the_impossible(name, problems, ks, **decoding)
    asked = {row["id"]: build_prompt(tokenizer, row["problem"], thinking) for row in problems}
    done, file, held = {}, None, None
    if path:
        header = describe(model, problems, data=name, thinking=thinking, **decoding)
        header |= describe_prompts(tokenizer, list(asked.values()))
        header |= {"stop_ids": stop_ids(model, tokenizer)}
        done, file, held = resume(Path(path), header)
    todo = [row for row in problems if row["id"] not in done]
    if todo:
        longest_prompt(model, tokenizer, [asked[row["id"]] for row in todo], max_new_tokens)

    right = sum(record["strict"] for records in done.values() for record in records)
    spoken, spent = 0, 1e-9  # tokens, seconds
    bar = progress(name, problems, done, quiet)
    per_batch = max(1, batch_size // samples)
    try:
        for start in range(0, len(todo), per_batch):
            batch = todo[start:start + per_batch]
            begun = time.perf_counter()
            rollouts = sample(model, tokenizer, [asked[row["id"]] for row in batch],
                              keys=[key(row) for row in batch], **decoding)
            spent += time.perf_counter() - begun

            records = grade(batch, rollouts, samples, name, tokenizer)
            if file:
                write_records(file, records)
            for i, row in enumerate(batch):
                done[row["id"]] = records[i * samples:(i + 1) * samples]
            right += sum(record["strict"] for record in records)
            spoken += sum(record["length"] for record in records)
            bar.update(len(batch))
            bar.set_postfix(accuracy=f"{100 * right / len(done) / samples:.1f}%")
    except torch.OutOfMemoryError:
        said = f"--batch-size {batch_size} does not fit on this card; halve it."
        if batch_size <= samples:
            said = f"--samples {samples}: one problem's do not fit on this card; take fewer."
        raise BadInput(said) from None
    except KeyboardInterrupt:
        so_far = [summarise(list(done.values()), ks)] if done else []
        raise KeyboardInterrupt(*so_far) from None
    finally:
        bar.close()
        for opened in filter(None, (file, held)):
            opened.close()
    result = summarise([done[row["id"]] for row in problems], ks)
    return result | {"tokens_per_second": spoken / spent}


def refuse_the_impossible(name, problems, ks, samples, temperature, top_p, top_k, max_new_tokens,
                          seed):
    """Raise BadInput for settings that cannot work, before hours of sampling."""
    if not problems:
        raise BadInput(f"{name}: there is no problem to evaluate.")
    sane = temperature == 0 or 1e-9 <= temperature < math.inf
    if not (sane and 0 < top_p <= 1 and top_k >= 0 and max_new_tokens > 0):
        raise BadInput(f"{name}: --temperature {temperature} --top-p {top_p} --top-k {top_k} "
                       f"--max-new-tokens {max_new_tokens}: one of them is impossible.")
    if not 0 <= seed < 2**40:
        raise BadInput(f"{name}: --seed {seed}: take one from 0 to 2^40.")
    if temperature == 0 and samples > 1:
        raise BadInput(f"--temperature 0 makes all {samples} samples equal; use --samples 1.")
    for k in ks:
        if not 1 <= k <= samples:
            raise BadInput(f"--k {k}: Pass@k needs 1 <= k <= --samples, which is {samples}.")


def progress(name, problems, done, quiet):
    """A progress bar over the problems. tqdm hides it if stderr is not a terminal."""
    hidden = True if quiet else None
    return tqdm(total=len(problems), initial=len(done), desc=name, unit="problem", disable=hidden)


def key(row):
    """The problem's key for the random numbers. It depends on this problem's id and text only."""
    name = f"{row['id']}\0{row['problem']}".encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:7], "big")


def grade(batch, rollouts, samples, name, tokenizer):
    """One record per row. The lenient pass only reads answers that the strict pass refused."""
    rows = [row for row in batch for _ in range(samples)]
    graded = answers(rollouts, tokenizer)
    triples = [(text, row["answer"], row["problem"]) for text, row in zip(graded, rows)]
    strict = verify.verify_all(triples, strict=True)
    refused = [triple for triple, right in zip(triples, strict) if not right]
    again = iter(verify.verify_all(refused, strict=False))

    records = []
    for i, (row, right) in enumerate(zip(rows, strict)):
        records.append({
            "data": name, "id": row["id"], "sample": i % samples, "gold": row["answer"],
            "strict": bool(right), "lenient": bool(right or next(again)),
            "text": rollouts.texts[i], "finished": bool(rollouts.finished[i]),
            "length": int(rollouts.lengths[i])})
        if graded[i] != rollouts.texts[i]:  # the text has a thought that is not graded
            records[i]["graded"] = graded[i]
    return records


def write_records(file, records):
    """Write one line per sample at once, so that a stop loses no finished batch."""
    file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    file.flush()


def summarise(records, ks):
    """The dict that `evaluate` returns, from N lists of n records."""
    def grid(column):  # (N, n)
        return torch.tensor([[r[column] for r in rows] for rows in records], dtype=torch.float64)

    strict, n = grid("strict"), len(records[0])
    columns = {"accuracy": strict.mean(1)}                                           # (N,) each
    columns |= {f"pass@{k}": pass_at_k(strict.sum(1), n, k) for k in ks}
    ends = interval(torch.stack(list(columns.values()), 1)).T.tolist()
    columns["lenient"] = grid("lenient").mean(1)
    columns["majority"] = majority_vote(records)
    columns["truncated"] = 1 - grid("finished").mean(1)
    columns["length"] = grid("length").mean(1)

    mean = {column: values.mean().item() for column, values in columns.items()}
    return {
        "accuracy": mean["accuracy"], "low": ends[0][0], "high": ends[0][1],
        "strict": mean["accuracy"],
        "lenient": mean["lenient"],
        "majority": mean["majority"],
        "truncated": mean["truncated"],
        "pass_at_k": {k: (mean[f"pass@{k}"], *ends[i]) for i, k in enumerate(ks, 1)},
        "mean_length": mean["length"],
        "problems": len(records),
        "samples": n,
        "per_problem": {column: values.tolist() for column, values in columns.items()},
    }


def majority_vote(records):
    """Chance that the most common boxed answer is right, ties broken at random: (N,) float64.

    All right answers form one camp, because each equals the gold. Wrong answers share a camp if the
    verifier calls them equal. A completion without a box does not vote.
    """
    chance = []
    for rows in records:
        right = sum(r["strict"] for r in rows)
        texts = [r.get("graded", r["text"]) for r in rows if not r["strict"]]
        boxes = [verify.extract(text, strict=True) for text in texts]
        wrong = Counter(box for box in boxes if box)
        camps = Counter()
        if 0 < right <= wrong.total():  # otherwise the vote is already clear
            for box, votes in wrong.items():
                same = [camp for camp in camps if verify.equivalent(box, camp)]
                camps[same[0] if same else box] += votes
        top = max(camps.values(), default=0)
        tied = list(camps.values()).count(top) if right == top else 0
        chance.append(1 / (1 + tied) if right and right >= top else 0.0)
    return torch.tensor(chance, dtype=torch.float64)  # .double() would round to fp32 first


def percent(value, low, high):
    return f"{100 * value:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


def ask(model, tokenizer, held_out, config, **how):
    """What `evaluate` returns on a run's held-out problems, in batches as large as a step's."""
    try:
        return evaluate(model, tokenizer, held_out, max_new_tokens=config.max_new_tokens,
                        seed=config.seed, quiet=True, thinking=config.thinking,
                        batch_size=config.prompts * config.group, **how)
    except BadInput as mistake:
        said = str(mistake).replace("--batch-size", "--prompts x --group")
        raise BadInput(said.replace("--samples", "--eval-samples")) from None


def measure(model, tokenizer, held_out, config, when):
    """Print and return (dict) the accuracy on held-out problems, sampled at T = 1 and greedy."""
    if not held_out:
        return None
    k = config.eval_samples
    sampled = ask(model, tokenizer, held_out, config, samples=k, ks=(k,))
    greedy = ask(model, tokenizer, held_out, config, temperature=0.0)

    scores = {"sampled": sampled, "greedy": greedy}
    shown = [f"{name} {percent(score['accuracy'], score['low'], score['high'])}"
             for name, score in scores.items()]
    print(f"{when}: {', '.join(shown)},\n        Pass@{k} {percent(*sampled['pass_at_k'][k])} "
          f"of {len(held_out)} held-out problems", flush=True)
    return {name: {column: value for column, value in score.items() if column != "per_problem"}
            for name, score in scores.items()}


def point(model, tokenizer, held_out, config, run):
    """A step's metrics on held-out problems, {} if none are due: sampled accuracy and its interval.

    It comes after the step was saved. The last step has none, because `measure` follows it.
    """
    every = config.eval_every
    due = held_out and every and run.step % every == 0 and run.step < config.steps
    if not due or run.signal:
        return {}
    run.evaluating = True  # for what a signal or an error says
    found = ask(model, tokenizer, held_out, config, samples=config.eval_samples)
    run.evaluating = False
    return {"held_out": found["accuracy"], "held_out_low": found["low"],
            "held_out_high": found["high"]}


# --------------------------------------------------------------------------- the command line


def several(text):
    """The problem sets in --data, separated by commas. A path may contain commas, too."""
    parts, found = text.split(","), []
    while parts:
        n = words_of_the_first(parts)
        found.append(os.path.expanduser(",".join(parts[:n])))
        del parts[:n]
    return found


def words_of_the_first(parts):
    """How many of `parts` belong to one path: the longest that is a file; else up to the first
    set name or .jsonl; else all."""
    for n in range(len(parts), 0, -1):
        if os.path.isfile(os.path.expanduser(",".join(parts[:n]))):
            return n
    for n, part in enumerate(parts, 1):
        if part in (*SETS, *HUB) or part.endswith(".jsonl"):
            return n
    return len(parts)


def flags():
    """The parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--model", default="tiny", type=os.path.expanduser,
        help="hub id or folder; tiny is the embedded one")
    add("--data", default="arithmetic", help="sets of problems.py or .jsonl files, comma-separated")
    add("--limit", type=int, help="use only the first problems of each set, at most this many")
    add("--samples", type=int, default=8, help="n, completions per problem")
    add("--k", default="", help="Pass@k for these k, comma-separated; empty: --samples")
    add("--temperature", type=float, default=1.0, help="0 is greedy")
    add("--top-p", type=float, default=1.0, help="1: off")
    add("--top-k", type=int, default=0, help="0: off")
    add("--max-new-tokens", type=int, default=512, help="longer completions are cut (truncated)")
    add("--batch-size", type=int, default=256,
        help="rows at a time, at least one problem's samples; changes memory, not the texts")
    add("--seed", type=int, default=0, help="seed of the samples")
    add("--thinking", action="store_true", help="leave Qwen3's thinking mode on")
    add("--majority", action="store_true", help="add a column: the majority vote of the samples")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    add("--out", default="", type=os.path.expanduser,
        help="file for the samples; empty: one in runs/evaluate/")
    add("--paper-protocol", action="store_true", help="as GRAIL's release evaluates: " + str(PAPER))
    add("--compare", nargs="+", metavar="FILE", type=os.path.expanduser,
        help="compare files of samples: A B, or with several seeds: A A A vs B B B")
    return parser


def read_flags(argv):
    """Parse the command line. --paper-protocol changes defaults; an explicit flag still wins."""
    parser = flags()
    args = parser.parse_args(argv)
    if args.paper_protocol:
        parser.set_defaults(**PAPER)
        args = parser.parse_args(argv)
    return args


def problem_sets(args):
    """{name: its problems} of --data."""
    sets = {}
    for data in several(args.data):
        rows = load_problems(data, "test", args.limit)
        name = printable(Path(data).stem) if data.endswith(".jsonl") else data
        if name in sets:
            raise BadInput(f"--data {args.data}: two sets would be called {name}.")
        if args.paper_protocol:
            rows = sorted(rows, key=key)[:SUBSETS.get(name)]
        sets[name] = rows
    return sets


def main(argv=None):
    args = read_flags(argv)
    if args.compare:
        return print_comparison(args.compare)
    if args.limit is not None and args.limit < 1 or args.samples < 1 or args.batch_size < 1:
        raise BadInput(f"--limit {args.limit} --samples {args.samples} --batch-size "
                       f"{args.batch_size}: each must be at least 1.")
    try:
        ks = sorted({int(k) for k in (args.k or str(args.samples)).split(",")})
    except ValueError:
        raise BadInput(f"--k {args.k}: give whole numbers, separated by commas.") from None

    sets = problem_sets(args)
    model, tokenizer = load_policy(args.model, args.device)
    size = f"{args.limit or 'all'}x{args.samples}"
    model_name = at_most(args.model.strip("/").replace("/", "-"), 150)
    out = args.out or f"runs/evaluate/{model_name}-{size}-seed{args.seed}.jsonl"
    decoding = {name: getattr(args, name) for name in (
        "samples", "temperature", "top_p", "top_k", "seed", "max_new_tokens", "batch_size",
        "thinking")}
    results = {}
    try:
        for name, rows in sets.items():
            results[name] = evaluate(model, tokenizer, rows, ks=ks, path=out, name=name, **decoding)
    except KeyboardInterrupt as stop:
        if stop.args:
            results[name] = stop.args[0]
        print("\nstopped; the same command continues. So far:")
        raise
    finally:
        if results:
            print_results(results, ks, args.majority)

    speed = ", ".join(f"{name} {r['tokens_per_second']:,.0f}" for name, r in results.items())
    print("\nstrict: only answers in \\boxed{}. lenient: also \"the answer is\", or a last number.")
    print(f"tokens/s on {args.device}: {speed} (0: read from file)")
    print(f"every sample: {out}")


if __name__ == "__main__":
    run_cli(main)
