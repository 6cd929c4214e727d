"""How good is it: accuracy, unbiased Pass@k, honest intervals, and whether B really beats A.

    python evaluate.py                                         # the tiny model, 1,000 problems x 8
    python evaluate.py --model Qwen/Qwen3-0.6B --data gsm8k,math500 --samples 8 --k 1,8
    python evaluate.py --compare a.jsonl b.jsonl               # with seeds: a0 a1 a2 vs b0 b1 b2
    python evaluate.py --model Qwen/Qwen3-4B --paper-protocol  # the six sets of the GRAIL paper

Accuracy is the mean over samples and counts boxed answers only (strict), as the reward does. The
lenient score beside it also takes "the answer is 7" or a last number: a gain in the first alone is
a gain in format. Every sample is appended to a file as it is made, so the same command continues a
stopped evaluation and reads a finished one instead of repeating it.

What we left out, on purpose: model judges, few-shot prompts, several cards, bold type for winners.
"""
import argparse
import hashlib
import json
import math
import subprocess
import time
from collections import Counter
from pathlib import Path

import torch
import transformers
from tqdm import tqdm

import verify
from problems import BadInput, build_prompt, last_box, load_policy, load_problems, run
from rollout import sample

Z = 1.959964  # 97.5 % point of the normal distribution
PAPER = dict(data="math500,amc23,aime24,college_math,olympiadbench,minerva", samples=3, k="1,3",
             temperature=0.6, top_p=0.95, top_k=20, max_new_tokens=8192)
SUBSETS = {"college_math": 200, "olympiadbench": 200}  # the release's sizes; which 200 is our draw

# --------------------------------------------------------------------------- statistics


def pass_at_k(correct, samples, k):
    """Chance that k of the n samples, drawn without replacement, hold a right one.

        1 - C(n - c, k) / C(n, k)  =  1 - prod_{i < k} (n - c - i) / (n - i)    (Chen et al. 2021)

    correct c (N,) counts -> (N,) float64. The plug-in 1 - (1 - c/n)^k is biased: at p = 0.2, n = 8,
    k = 4 it expects .517 where the truth is .590. Raises BadInput when k > n.
    """
    if not 1 <= k <= samples:
        raise BadInput(f"--k {k}: Pass@k needs 1 <= k <= --samples, which is {samples}.")
    i = torch.arange(k)                                                              # (k,)
    wrong = (samples - correct.double()[..., None] - i) / (samples - i)              # (N, k)
    return 1 - wrong.prod(-1)                                                        # (N,)


def t_quantile(df):
    """97.5 % point of Student's t, Cornish-Fisher series: 3 % low at df = 2, exact from 10 on."""
    return (Z + (Z**3 + Z) / (4 * df) + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * df**2)
            + (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / (384 * df**3))


def bootstrap(values, sizes=None, resamples=2000):
    """Means of values (N, S), one statistic a column, over problems drawn with replacement: (R, S).

    `sizes` splits the N rows into benchmarks, each resampled on its own. Deviations are widened by
    sqrt(n / (n - 1)) t / z, without which the percentile interval is too short for small n
    (Hesterberg 2015, "expanded percentile").
    """
    generator, means, spread = torch.Generator().manual_seed(0), [], []
    sizes = sizes or [len(values)]
    for part in values.split(sizes):
        n, centre = len(part), part.mean(0)
        spread.append(centre + (part - centre) * math.sqrt(n / (n - 1)) * t_quantile(n - 1) / Z)
    for _ in range(0, resamples, 100):
        drawn = torch.cat([torch.randint(n, (100, n), generator=generator) + sum(sizes[:b])
                           for b, n in enumerate(sizes)], 1)                         # (100, N)
        counts = torch.zeros(drawn.shape).scatter_add_(1, drawn, torch.ones(drawn.shape))
        means.append(counts.double() @ torch.cat(spread) / len(values))              # (100, S)
    return torch.cat(means)                                                          # (R, S)


def middle95(draws):
    """The 2.5 % and 97.5 % points of draws (R, S): (2, S)."""
    return torch.quantile(draws, torch.tensor([0.025, 0.975]).double(), dim=0)


def interval(values):
    """95 % interval for the mean of scores in [0, 1] over problems: (N, S) -> (2, S).

    By bootstrap over problems. Below 200 problems, or where the right or the wrong ones are worth
    fewer than 10, resampling cannot see the rare ones (0 of 30 would give [0, 0]). There it is
    Wilson's score interval with t for z and with the n that explains the spread of the scores:

        n = m (1 - m) / (s^2 / N),    s^2 = variance over problems + 0.1 (m^2 + (1 - m)^2) / N

    The last term stands for a tenth of a right and a tenth of a wrong problem that were not drawn.
    """
    N, m = len(values), values.mean(0)                                               # (S,)
    if N < 2:
        return torch.stack([m * 0, m * 0 + 1])                                       # (2, S)
    t, spread = t_quantile(N - 1), values.var(0) + 0.1 * (m**2 + (1 - m) ** 2) / N   # (S,)
    n = (m * (1 - m) * N / spread).where((m > 0) & (m < 1), m * 0 + N)               # (S,)
    middle, half = m + t**2 / (2 * n), t * (m * (1 - m) / n + t**2 / (4 * n**2)).sqrt()
    score = torch.stack([middle - half, middle + half]) / (1 + t**2 / n)             # (2, S)
    few = (torch.minimum(m, 1 - m) * N < 10) | torch.tensor(N < 200)                 # (S,)
    return (score if few.all() else score.where(few, middle95(bootstrap(values)))).clamp(0, 1)


# --------------------------------------------------------------------------- one benchmark


def evaluate(model, tokenizer, problems, *, samples=1, temperature=1.0, top_p=1.0, top_k=0,
             max_new_tokens=512, batch_size=256, seed=0, ks=(1,), thinking=False, path=None,
             quiet=False, name="problems"):
    """Sample, grade and summarise one set of problems (dicts with id, problem, answer).

    Returns a dict: accuracy with low and high (95 %), the same again as strict, lenient, majority,
    pass_at_k {k: (value, low, high)}, truncated (share cut off at max_new_tokens), mean_length
    (tokens, stop token included), problems, samples, tokens_per_second of the sampling done now,
    and per_problem {column: list of N}.
    `batch_size` counts rows. With `path` samples go there at once, and those already there are not
    made again. Ctrl-C raises KeyboardInterrupt(the dict so far). Raises BadInput: no problem,
    k > n, greedy with n > 1, a file of other settings or not writable, a batch that does not fit.
    """
    if not problems:
        raise BadInput(f"{name}: there is no problem to evaluate.")
    if temperature < 0 or not 0 < top_p <= 1 or top_k < 0 or max_new_tokens < 1:
        raise BadInput(f"{name}: --temperature {temperature} --top-p {top_p} --top-k {top_k} "
                       f"--max-new-tokens {max_new_tokens}: one of them is impossible.")
    if temperature == 0 and samples > 1:
        raise BadInput(f"--temperature 0 makes all {samples} samples equal; use --samples 1.")
    for k in ks:
        pass_at_k(torch.zeros(1), samples, k)  # refuse before hours of sampling, not after
    decoding = dict(samples=samples, temperature=temperature, top_p=top_p, top_k=top_k,
                    max_new_tokens=max_new_tokens, seed=seed)
    done, file = {}, None
    if path:
        header = describe(model, problems, data=name, thinking=thinking, **decoding)
        done, file = resume(Path(path), header)
    todo = [row for row in problems if row["id"] not in done]
    right = sum(record["strict"] for records in done.values() for record in records)
    spoken, spent = 0, 1e-9  # tokens, seconds
    bar = tqdm(total=len(problems), initial=len(done), desc=name, unit="problem",
               disable=True if quiet else None)
    per_batch = max(1, batch_size // samples)
    try:
        for start in range(0, len(todo), per_batch):
            batch = todo[start:start + per_batch]
            prompts = [build_prompt(tokenizer, row["problem"], thinking) for row in batch]
            begun = time.perf_counter()
            rollouts = sample(model, tokenizer, prompts, keys=list(map(key, batch)), **decoding)
            spent += time.perf_counter() - begun
            records = grade(batch, rollouts, samples, name)
            if file:
                file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
                file.flush()
            done |= {r["id"]: records[i * samples:][:samples] for i, r in enumerate(batch)}
            right += sum(record["strict"] for record in records)
            spoken += sum(record["length"] for record in records)
            bar.update(len(batch))
            bar.set_postfix(accuracy=f"{100 * right / len(done) / samples:.1f}%")
    except torch.OutOfMemoryError:
        raise BadInput(f"--batch-size {batch_size} does not fit on this card; halve it.") from None
    except KeyboardInterrupt:
        raise KeyboardInterrupt(*[summarise(list(done.values()), ks)] * bool(done)) from None
    finally:
        bar.close()
        if file:
            file.close()
    result = summarise([done[row["id"]] for row in problems], ks)
    return result | {"tokens_per_second": spoken / spent}


def key(row):
    """The problem's key for the random numbers, from its text: no other problem can move it."""
    name = f"{row['id']}\0{row['problem']}".encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:7], "big")


def grade(batch, rollouts, samples, name):
    """One record a row; the lenient pass reads again only what the strict pass refused."""
    pairs = [(text, batch[i // samples]["answer"]) for i, text in enumerate(rollouts.texts)]
    strict = verify.verify_all(pairs, strict=True)
    again = iter(verify.verify_all([p for p, ok in zip(pairs, strict) if not ok], strict=False))
    return [{"data": name, "id": batch[i // samples]["id"], "sample": i % samples, "gold": gold,
             "strict": bool(ok), "lenient": bool(ok or next(again)), "text": text,
             "finished": bool(rollouts.finished[i]), "length": int(rollouts.lengths[i])}
            for i, ((text, gold), ok) in enumerate(zip(pairs, strict))]


def summarise(records, ks=(1,)):
    """The dict of `evaluate` from N lists of n records."""
    def grid(column):  # (N, n)
        return torch.tensor([[float(r[column]) for r in rows] for rows in records]).double()

    strict, n = grid("strict"), len(records[0])
    columns = {"accuracy": strict.mean(1)}                                           # (N,) each
    columns |= {f"pass@{k}": pass_at_k(strict.sum(1), n, k) for k in ks}
    ends = interval(torch.stack(list(columns.values()), 1)).T.tolist()
    columns |= {"lenient": grid("lenient").mean(1), "majority": majority_vote(records),
                "truncated": 1 - grid("finished").mean(1), "length": grid("length").mean(1)}
    mean = {column: values.mean().item() for column, values in columns.items()}
    return dict(accuracy=mean["accuracy"], low=ends[0][0], high=ends[0][1], strict=mean["accuracy"],
                lenient=mean["lenient"], majority=mean["majority"], truncated=mean["truncated"],
                pass_at_k={k: (mean[f"pass@{k}"], *ends[i]) for i, k in enumerate(ks, 1)},
                mean_length=mean["length"], problems=len(records), samples=n,
                per_problem={column: values.tolist() for column, values in columns.items()})


def majority_vote(records):
    """Chance that the commonest boxed answer is right, ties broken at random: (N,) float64.

    Right answers are one camp, for each equals the gold; wrong ones join where the verifier calls
    them equal. A completion without a box does not vote.
    """
    chance = []
    for rows in records:
        right, camps = sum(r["strict"] for r in rows), Counter()
        wrong = Counter(box for r in rows if not r["strict"] and (box := last_box(r["text"])))
        for box, votes in wrong.items() if 0 < right <= wrong.total() else ():
            camps[next((c for c in camps if verify.equivalent(box, c)), box)] += votes
        top = max(camps.values(), default=0)
        tied = list(camps.values()).count(top) if right == top else 0
        chance.append(1 / (1 + tied) if right and right >= top else 0.0)
    return torch.tensor(chance).double()


# --------------------------------------------------------------------------- the file of samples


def describe(model, problems, **settings):
    """The header of a file: what the numbers depend on and, as made_on, what they should not."""
    weights, code, here = hashlib.sha256(), hashlib.sha256(), Path(__file__).resolve().parent
    for title, tensor in model.state_dict().items():
        flat = tensor.detach().reshape(-1)  # some 4,096 numbers of each: training moves nearly all
        some = flat[::len(flat) // 4096 + 1].float().cpu()
        weights.update(title.encode() + some.numpy().tobytes())
    for module in ("problems", "rollout", "verify"):  # they ask, sample and grade
        code.update((here / f"{module}.py").read_bytes())
    rows = json.dumps([[row["id"], row["problem"], row["answer"]] for row in problems])
    try:
        git = ["git", "-C", here, "describe", "--always", "--dirty"]
        commit = subprocess.check_output(git, stderr=subprocess.DEVNULL, text=True).strip()
    except (OSError, subprocess.CalledProcessError):  # no git, or not a checkout
        commit = None
    return {**settings, "problems": len(problems), "model": model.name_or_path,
            "revision": getattr(model.config, "_commit_hash", None),
            "weights_sha256": weights.hexdigest()[:16], "code_sha256": code.hexdigest()[:16],
            "data_sha256": hashlib.sha256(rows.encode()).hexdigest()[:16],
            "made_on": {"commit": commit, "device": str(model.device), "torch": torch.__version__,
                        "transformers": transformers.__version__}}


def read_samples(path):
    """{benchmark: (header, {id: its n records})} and the size of all whole lines, in bytes."""
    found, raw = {}, Path(path).read_bytes()
    whole = raw[:raw.rfind(b"\n") + 1]  # a run that was killed leaves half a line
    for number, line in enumerate(whole.split(b"\n")[:-1], 1):
        try:
            record = json.loads(line)
            if "header" in record:
                found[record["header"]["data"]] = record["header"], {}
            else:
                made = found[record["data"]][1].setdefault(record["id"], {})
                made[record["sample"]] = record
        except (ValueError, KeyError, TypeError):
            raise BadInput(f"{path}, line {number}: no sample of evaluate.py.") from None
    complete = {data: (header, {i: list(made.values()) for i, made in rows.items()
                                if len(made) == header["samples"]})
                for data, (header, rows) in found.items()}
    return complete, len(whole)


def resume(path, header):
    """Open `path` for appending after its last whole line: (finished problems, file)."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        found, size = read_samples(path) if path.exists() else ({}, 0)
        old, done = found.get(header["data"], (None, {}))
        for k in header if done else ():
            if k != "made_on" and old.get(k) != header[k]:
                raise BadInput(f"--out {path}: it holds {header['data']} with {k} {old.get(k)!r}, "
                               f"not {header[k]!r}; choose another file.")
        file = path.open("a", encoding="utf-8")
        file.truncate(size)
    except OSError as error:
        raise BadInput(f"--out {path}: cannot be written ({error.strerror}).") from None
    if not done:
        file.write(json.dumps({"header": header}) + "\n")
    return done, file


# --------------------------------------------------------------------------- A against B


def pools(sizes):
    """Rows of a table from {benchmark: N}: (title, benchmarks, weights), averages if several."""
    rows, total = [(name, [name], [1.0]) for name in sizes], sum(sizes.values())
    return rows if len(sizes) == 1 else rows + [
        ("average by benchmark", list(sizes), [1 / len(sizes)] * len(sizes)),
        ("average by problem", list(sizes), [n / total for n in sizes.values()])]


def seed_variance(x):
    """Variance of a side's mean score due to its S training seeds alone: x (S, N, ...) -> (...).

    The variance between seeds, less what the residual of seed x problem explains: that is sampling
    noise, which the bootstrap over problems has already. 0 for a single seed.
    """
    S, N = x.shape[:2]
    rest = x - x.mean(0, True) - x.mean(1, True) + x.mean((0, 1), True)              # (S, N, ...)
    noise = rest.square().sum((0, 1)) / (max(1, S - 1) * (N - 1) * N)
    return ((x.mean(1).var(0) - noise).clamp(min=0) / S) if S > 1 else noise * 0


def difference(a, b, sizes=None):
    """Draws of score(B) - score(A), (R, M), from a (S_a, N) or (S_a, N, M) and b, problems paired.

    Level one, problems: resampled within each benchmark, both sides together. Level two, seeds: two
    or three are too few to resample (three give ten resamples), so theirs is Student's t.
    """
    draws = bootstrap((b.mean(0) - a.mean(0)).reshape(a.shape[1], -1), sizes)        # (R, M)
    df = len(a) + len(b) - 2
    if df:
        fixed = torch.Generator().manual_seed(1)
        normal = torch.randn(len(draws), 1 + df, generator=fixed).double()           # (R, 1 + df)
        student = normal[:, 0] / normal[:, 1:].square().mean(1).sqrt()               # (R,)
        draws = draws + student[:, None] * (seed_variance(a) + seed_variance(b)).sqrt()
    return draws


def sign_test(d):
    """Exact two-sided sign test: (problems where B is better, worse, p). Ties have no sign."""
    better, worse = int((d > 0).sum()), int((d < 0).sum())
    tail = sum(math.comb(better + worse, i) for i in range(min(better, worse) + 1))
    return better, worse, min(1.0, 2 * tail / 2 ** (better + worse))


def problems_needed(d):
    """Problems at which a true paired difference of 0.01 shows in 80 % of 5 % level tests."""
    return math.ceil(((Z + 0.841621) / 0.01) ** 2 * d.var().item())


def compare(paths_a, paths_b):
    """Rows (dicts) of B against A in strict accuracy; several files of a side are its seeds."""
    try:
        files = [read_samples(path)[0] for path in [*paths_a, *paths_b]]
    except OSError as error:
        raise BadInput(f"--compare {error.filename}: {error.strerror}.") from None
    scores, rows = {}, []
    for name in [name for name in files[0] if all(name in file for file in files)]:
        ids = [i for i in files[0][name][1] if all(i in file[name][1] for file in files)]
        for k in ("problems", "data_sha256", "samples", "temperature", "top_p", "top_k",
                  "max_new_tokens", "thinking", "code_sha256"):
            if len({file[name][0].get(k) for file in files}) > 1:
                print(f"note: {name}: {k} is {[file[name][0].get(k) for file in files]}")
        if len(ids) > 1:
            scores[name] = torch.tensor(
                [[sum(r["strict"] for r in file[name][1][i]) / len(file[name][1][i]) for i in ids]
                 for file in files]).double()                                        # (files, N)
    if not scores:
        raise BadInput("--compare: no benchmark has two problems that are in every file.")
    for title, names, weights in pools({name: x.shape[1] for name, x in scores.items()}):
        sizes = [scores[name].shape[1] for name in names]
        x = torch.cat([scores[name] * (w * sum(sizes) / n)  # so the plain mean is the weighted one
                       for name, w, n in zip(names, weights, sizes)], 1)             # (files, N)
        a, b = x[:len(paths_a)], x[len(paths_a):]
        d = b.mean(0) - a.mean(0)                                                    # (N,)
        low, high = middle95(difference(a, b, sizes))[:, 0].tolist()
        better, worse, p = sign_test(d)
        rows.append(dict(
            name=title, problems=len(d), a=a.mean().item(), b=b.mean().item(), low=low, high=high,
            difference=d.mean().item(), better=better, worse=worse, p=p, needed=problems_needed(d),
            verdict="B better" if low > 0 else "B worse" if high < 0 else "not distinguishable"))
    return rows


# --------------------------------------------------------------------------- the command line


def print_results(results, ks, majority=False):
    """The table of {benchmark: dict of evaluate}, in per cent, with 95 % intervals.

    An average's interval adds up those of its benchmarks (MOVER): its lower half is
    sqrt(sum_b (w_b (m_b - low_b))^2), the upper alike, so small sets keep their correction.
    """
    wide = {"accuracy": "accuracy (strict)"} | {f"pass@{k}": f"Pass@{k}" for k in ks}
    slim = ["lenient", *["majority"] * majority, "truncated", "length"]
    print(f"\n{'benchmark':22}{'problems':>8}" + "".join(f"{head:>20}" for head in wide.values())
          + "".join(f"{head:>11}" for head in slim))
    for title, names, weights in pools({name: r["problems"] for name, r in results.items()}):
        mean, below, above = 0, 0, 0
        for name, w in zip(names, weights):
            columns = results[name]["per_problem"]
            x = torch.tensor([columns[column] for column in [*wide, *slim]]).double()  # (S, N)
            m, (low, high) = x.mean(1), interval(x.T.clamp(max=1))                   # (S,) each
            mean = mean + w * m
            below, above = below + (w * (m - low)) ** 2, above + (w * (high - m)) ** 2
        low, high = (mean - below.sqrt()).clamp(min=0), mean + above.sqrt()          # (S,) each
        print(f"{title:22}{sum(results[name]['problems'] for name in names):8}" + "".join(
            f"{100 * mean[i]:.1f} [{100 * low[i]:.1f}, {100 * high[i]:.1f}]".rjust(20)
            for i in range(len(wide))) + "".join(
            f"{value if column == 'length' else 100 * value:11.1f}"
            for column, value in zip(slim, mean[len(wide):])))


def print_comparison(args):
    """Split the files of --compare into A and B and print what `compare` finds."""
    cut = args.index("vs") if "vs" in args else 1 if len(args) == 2 else 0
    sides = args[:cut], args[cut + ("vs" in args):]
    if not all(sides):
        raise BadInput("--compare: give two files, or the word vs between those of A and of B.")
    print(f"A: {' '.join(sides[0])}\nB: {' '.join(sides[1])}\n")
    print(f"{'benchmark':22}{'problems':>8}{'A':>7}{'B':>7}{'B - A':>8}{'95 % interval':>16}"
          f"{'better/worse':>14}{'sign p':>8}{'needed':>8}")
    for r in compare(*sides):
        print(f"{r['name']:22}{r['problems']:8}{100 * r['a']:7.1f}{100 * r['b']:7.1f}"
              f"{100 * r['difference']:+8.1f}"
              + f"[{100 * r['low']:+.1f}, {100 * r['high']:+.1f}]".rjust(16)
              + f"{r['better']}/{r['worse']}".rjust(14)
              + f"{r['p']:8.3f}{r['needed']:8}  {r['verdict']}")
    print("\nneeded: problems at which a true difference of 1 point would show 4 times in 5")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--model", default="tiny", help="hub id or folder; tiny is the embedded one")
    add("--data", default="arithmetic", help="names of problems.py or .jsonl files, comma between")
    add("--limit", type=int, help="the first so many problems of each")
    add("--samples", type=int, default=8, help="n, completions a problem")
    add("--k", default="", help="Pass@k for these, comma between; empty: --samples")
    add("--temperature", type=float, default=1.0, help="0 is greedy")
    add("--top-p", type=float, default=1.0, help="1: off")
    add("--top-k", type=int, default=0, help="0: off")
    add("--max-new-tokens", type=int, default=512, help="longer completions are cut: truncated")
    add("--batch-size", type=int, default=256, help="rows at a time; changes memory, not the texts")
    add("--seed", type=int, default=0, help="of the samples")
    add("--thinking", action="store_true", help="leave Qwen3's thinking mode on")
    add("--majority", action="store_true", help="one more column: the vote of the samples")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    add("--out", default="", help="file of samples; empty: runs/evaluate/MODEL-seedN.jsonl")
    add("--paper-protocol", action="store_true", help="as GRAIL was evaluated: " + str(PAPER))
    add("--compare", nargs="+", metavar="FILE", help="A B, or with seeds: A A A vs B B B")
    args = parser.parse_args()
    if args.paper_protocol:
        parser.set_defaults(**PAPER)
        args = parser.parse_args()
    if args.compare:
        return print_comparison(args.compare)
    try:
        ks = sorted({int(k) for k in (args.k or str(args.samples)).split(",")})
    except ValueError:
        raise BadInput(f"--k {args.k}: not whole numbers with commas between.") from None
    sets, results = {}, {}
    for data in args.data.split(","):
        rows = load_problems(data, "test", args.limit)
        name = Path(data).stem if data.endswith(".jsonl") else data
        if name in sets:
            raise BadInput(f"--data {args.data}: two sets would be called {name}.")
        sets[name] = sorted(rows, key=key)[:SUBSETS.get(name)] if args.paper_protocol else rows
    model, tokenizer = load_policy(args.model, args.device)
    out = f"runs/evaluate/{args.model.strip('/').replace('/', '-')}-seed{args.seed}.jsonl"
    decoding = {k: getattr(args, k) for k in ("samples", "temperature", "top_p", "top_k", "seed",
                                              "max_new_tokens", "batch_size", "thinking")}
    try:
        for name, rows in sets.items():
            results[name] = evaluate(model, tokenizer, rows, ks=ks, path=args.out or out, name=name,
                                     **decoding)
    except KeyboardInterrupt as stop:
        if stop.args:
            results[name] = stop.args[0]
        print("\nstopped; the same command continues. So far:")
        raise
    finally:
        if results:
            print_results(results, ks, args.majority)
    speed = ", ".join(f"{name} {r['tokens_per_second']:,.0f}" for name, r in results.items())
    print("\nstrict: boxed answers only. lenient: also \"the answer is\", or a last number.")
    print(f"tokens/s on {args.device}: {speed} (0: read from file)")
    print(f"every sample: {args.out or out}")


if __name__ == "__main__":
    run(main)
