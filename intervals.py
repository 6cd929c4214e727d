"""What a number is worth: intervals that cover, and whether B really beats A.

    interval(scores[:, None])                                  # (N,) -> (2, 1): low and high
    python evaluate.py --compare a.jsonl b.jsonl               # with seeds: a0 a1 a2 vs b0 b1 b2

A score is one number a problem. Problems are drawn from a larger population, so intervals come from
them and not from the samples, which repeat a problem. The statistics above the files stand alone.

What we left out, on purpose: normal theory for large sets (the bootstrap needs none), Bayesian
intervals, corrections for many comparisons: state how many you made.
"""
import functools
import json
import math
from pathlib import Path

import mpmath  # comes with sympy
import torch

from engine.errors import BadInput, printable

Z = 1.959964  # 97.5 % point of the normal distribution


def t_outside(t, df):
    """P(|T| > t) of Student's t: the regularised incomplete beta function I_x(df / 2, 1 / 2).

    x = df / (df + t^2), t >= 0, df >= 1 (floats or ints) -> float, to about 15 digits.
    """
    return float(mpmath.betainc(df / 2, 0.5, 0, df / (df + t * t), regularized=True))


@functools.lru_cache
def t_quantile(df, inside=0.95):
    """The t with P(|T| <= t) = inside, 0 <= inside < 1, by bisection: 4.3027 at df = 2."""
    low, high = 0.0, 2.0
    while t_outside(high, df) > 1 - inside:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_outside(middle, df) > 1 - inside else (low, middle)
    return high


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
    return torch.quantile(draws, torch.tensor([0.025, 0.975], dtype=draws.dtype), dim=0)


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


# --------------------------------------------------------------------------- A against B


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
    """Exact two-sided sign test: (problems where B is better, worse, p). Ties have no sign.

    A tie is one up to rounding: two seeds' 0.1 + 0.2 is not 0.3 + 0.0 in any precision.
    """
    better, worse = int((d > 1e-9).sum()), int((d < -1e-9).sum())
    tail = sum(math.comb(better + worse, i) for i in range(min(better, worse) + 1))
    return better, worse, min(1.0, 2 * tail / 2 ** (better + worse))


def problems_needed(d):
    """Problems at which a true paired difference of 0.01 shows in 80 % of 5 % level tests."""
    return math.ceil(((Z + 0.841621) / 0.01) ** 2 * d.var().item())


# ---------------------------------------------------------------- files of samples, side by side


def read_samples(path):
    """{benchmark: (header, {id: its n records})} and the size of all whole lines, in bytes."""
    found, raw = {}, Path(path).read_bytes()
    whole = raw[:raw.rfind(b"\n") + 1]  # a run that was killed leaves half a line
    for number, line in enumerate(whole.split(b"\n")[:-1], 1):
        try:
            record = json.loads(line)
            if "header" in record:
                samples = record["header"]["samples"]
                if type(samples) is not int or samples < 1:
                    raise ValueError
                found[record["header"]["data"]] = record["header"], {}
            else:
                made = found[record["data"]][1].setdefault(record["id"], {})
                made[record["sample"]] = record
                if record["strict"] not in (True, False):
                    raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError):
            raise BadInput(f"{path}, line {number}: no sample of evaluate.py.") from None
    complete = {data: (header, {i: list(made.values()) for i, made in rows.items()
                                if len(made) == header["samples"]})
                for data, (header, rows) in found.items()}
    return complete, len(whole)


def asked_differently(old, new):
    """How the prompts of two headers differ, as a phrase; "" if they do not."""
    if None in (old.get("first_prompt"), new.get("first_prompt")):
        same = old.get("first_prompt") == new.get("first_prompt")
        return "" if same else "one of them, an older file, does not hold its prompts"
    a, b = (str(header["first_prompt"]) for header in (old, new))
    if a != b:
        at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        at = max(0, at - 20)
        return (f"the first prompt was ...{a[at:at + 60]!r}, and is now ...{b[at:at + 60]!r} "
                "(chat template?)")
    if old.get("prompts_sha256") != new.get("prompts_sha256"):
        return f"the prompts differ, though not the first (prompts_sha256 " \
               f"{old.get('prompts_sha256')!r} and {new.get('prompts_sha256')!r})"
    if old.get("tokens_sha256") != new.get("tokens_sha256"):
        a, b = (header.get("first_ids") or [] for header in (old, new))
        return (f"another tokenizer wrote the same prompts in other tokens (the first in {len(a)}, "
                f"now in {len(b)}, tokens_sha256 {old.get('tokens_sha256')!r} and "
                f"{new.get('tokens_sha256')!r})")
    reading = [header.get("reading_sha256") for header in (old, new)]
    if None not in reading and reading[0] != reading[1]:
        return ("another tokenizer reads the model's tokens as other text (reading_sha256 "
                f"{reading[0]!r} and {reading[1]!r})")
    return ""


def pools(sizes):
    """Rows of a table from {benchmark: N}: (title, benchmarks, weights), averages if several."""
    rows, total = [(name, [name], [1.0]) for name in sizes], sum(sizes.values())
    return rows if len(sizes) == 1 else rows + [
        ("average by benchmark", list(sizes), [1 / len(sizes)] * len(sizes)),
        ("average by problem", list(sizes), [n / total for n in sizes.values()])]


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
                print(f"note: {printable(name)}: {k} is {[file[name][0].get(k) for file in files]}")
        told = {asked_differently(files[0][name][0], file[name][0]) for file in files} - {""}
        for difference_of_prompts in sorted(told)[:1]:
            print(f"note: {printable(name)}: the files were asked differently: "
                  f"{difference_of_prompts}")
        if len(ids) > 1:
            scores[name] = torch.tensor(
                [[sum(r["strict"] for r in file[name][1][i]) / len(file[name][1][i]) for i in ids]
                 for file in files], dtype=torch.float64)                            # (files, N)
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
        print(f"{printable(r['name']):22}{r['problems']:8}{100 * r['a']:7.1f}{100 * r['b']:7.1f}"
              f"{100 * r['difference']:+8.1f}"
              + f"[{100 * r['low']:+.1f}, {100 * r['high']:+.1f}]".rjust(16)
              + f"{r['better']}/{r['worse']}".rjust(14)
              + f"{r['p']:8.3f}{r['needed']:8}  {r['verdict']}")
    print("\nneeded: problems at which a true difference of 1 point would show 4 times in 5")
