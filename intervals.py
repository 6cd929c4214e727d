"""Confidence intervals, and a test of whether B really beats A.

    interval(scores[:, None])                                  # (N,) -> (2, 1): low and high
    python evaluate.py --compare a.jsonl b.jsonl               # with seeds: a0 a1 a2 vs b0 b1 b2

A score is one number per problem. The problems are a random draw from a larger population, but
samples of one problem are not independent. So we resample problems, not samples.

What we left out, on purpose: normal theory for large sets (the bootstrap needs none), Bayesian
intervals, corrections for many comparisons. Report how many comparisons you made.
"""
import functools
import math

import mpmath  # comes with sympy
import torch

from engine.errors import BadInput, printable
from engine.lines import wrapped
from engine.samples import asked_differently, read_samples

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
    """Means of values (N, S), one column per statistic, over resampled problems: (R, S).

    `sizes` splits the N rows into benchmarks, and each is resampled on its own. For small n the
    percentile interval is too short, so deviations are widened by sqrt(n / (n - 1)) t / z
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

    By bootstrap over problems. With few problems (N < 200), or few right or wrong ones (sum below
    10), resampling misses the rare ones: 0 of 30 would give [0, 0]. Then it is Wilson's score
    interval with t in place of z, and with the n that explains the spread of the scores:

        n = m (1 - m) / (s^2 / N),    s^2 = variance over problems + 0.1 (m^2 + (1 - m)^2) / N

    The last term adds a tenth of a right and a tenth of a wrong problem that were not drawn.
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
    """Variance of a side's mean score that comes from its S training seeds: x (S, N, ...) -> (...).

    It is the variance between seeds minus the part from the seed x problem residual. That part is
    sampling noise, which the bootstrap over problems already includes. 0 for a single seed.
    """
    S, N = x.shape[:2]
    rest = x - x.mean(0, True) - x.mean(1, True) + x.mean((0, 1), True)              # (S, N, ...)
    noise = rest.square().sum((0, 1)) / (max(1, S - 1) * (N - 1) * N)
    return ((x.mean(1).var(0) - noise).clamp(min=0) / S) if S > 1 else noise * 0


def difference(a, b, sizes=None):
    """Draws of score(B) - score(A), (R, M), from a (S_a, N) or (S_a, N, M) and b, problems paired.

    Level one, problems: resample within each benchmark, both sides together. Level two, seeds: two
    or three are too few to resample (three give ten resamples), so we use Student's t.
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
    """Exact two-sided sign test: (problems where B is better, worse, p). Ties do not count.

    Ties are found up to rounding, because 0.1 + 0.2 of two seeds is not exactly 0.3 + 0.0.
    """
    better, worse = int((d > 1e-9).sum()), int((d < -1e-9).sum())
    tail = sum(math.comb(better + worse, i) for i in range(min(better, worse) + 1))
    return better, worse, min(1.0, 2 * tail / 2 ** (better + worse))


def problems_needed(d):
    """Problems needed to detect a true paired difference of 0.01: 5 % level, 80 % power."""
    return math.ceil(((Z + 0.841621) / 0.01) ** 2 * d.var().item())


# ---------------------------------------------------------------- files of samples, side by side


def pools(sizes):
    """Table rows of {benchmark: N}: (title, benchmarks, weights), with averages if several."""
    rows, total = [(name, [name], [1.0]) for name in sizes], sum(sizes.values())
    return rows if len(sizes) == 1 else rows + [
        ("average by benchmark", list(sizes), [1 / len(sizes)] * len(sizes)),
        ("average by problem", list(sizes), [n / total for n in sizes.values()])]


def compare(paths_a, paths_b):
    """Rows (dicts) of B against A in strict accuracy. Several files of a side are its seeds."""
    try:
        files = [read_samples(path)[0] for path in [*paths_a, *paths_b]]
    except OSError as error:
        raise BadInput(f"--compare {error.filename}: {error.strerror}.") from None

    scores = {}
    for name in files[0]:
        if all(name in file for file in files):
            say_what_differs(name, [file[name][0] for file in files])
            for side in (files[:len(paths_a)], files[len(paths_a):]):
                say_one_model(name, [file[name][0].get("weights_sha256") for file in side])
            samples = [file[name][1] for file in files]
            ids = [i for i in samples[0] if all(i in rows for rows in samples)]
            if len(ids) > 1:
                means = [[share_right(rows[i]) for i in ids] for rows in samples]
                scores[name] = torch.tensor(means, dtype=torch.float64)              # (files, N)
    if not scores:
        raise BadInput("--compare: no benchmark has two problems that are in every file.")

    rows = []
    for title, names, weights in pools({name: x.shape[1] for name, x in scores.items()}):
        sizes = [scores[name].shape[1] for name in names]
        x = torch.cat([scores[name] * (w * sum(sizes) / n)  # now the plain mean is weighted
                       for name, w, n in zip(names, weights, sizes)], 1)             # (files, N)
        rows.append({"name": title, **b_against_a(x[:len(paths_a)], x[len(paths_a):], sizes)})
    return rows


def share_right(records):
    """Share of one problem's samples that is right (strict)."""
    return sum(record["strict"] for record in records) / len(records)


def say_what_differs(name, headers):
    """Print a note for each setting of this benchmark in which the files differ."""
    for key in ("problems", "data_sha256", "samples", "temperature", "top_p", "top_k",
                "max_new_tokens", "thinking", "code_sha256"):
        values = [header.get(key) for header in headers]
        if any(value != values[0] for value in values):
            print(wrapped(f"note: {printable(name)}: {key} is {values}", 80))
    told = {asked_differently(headers[0], header) for header in headers} - {""}
    for difference_of_prompts in sorted(told)[:1]:
        print(wrapped(f"note: {printable(name)}: the files were asked differently: "
                      f"{difference_of_prompts}", 80))


def say_one_model(name, models):
    """Print a note if several files of a side are of one model. models: the hashes of weights."""
    known = [model for model in models if model]
    if len(set(known)) < len(known):
        print(wrapped(f"note: {printable(name)}: several files of a side are of the same weights, "
                      "so they are no training seeds, and the interval is too short.", 80))


def b_against_a(a, b, sizes):
    """A row of `compare` from scores a (S_a, N), b (S_b, N); `sizes`: problems per benchmark."""
    d = b.mean(0) - a.mean(0)                                                        # (N,)
    low, high = middle95(difference(a, b, sizes))[:, 0].tolist()
    better, worse, p = sign_test(d)
    verdict = "not distinguishable"
    if low > 0:
        verdict = "B better"
    if high < 0:
        verdict = "B worse"
    return dict(problems=len(d), a=a.mean().item(), b=b.mean().item(), difference=d.mean().item(),
                low=low, high=high, better=better, worse=worse, p=p, needed=problems_needed(d),
                verdict=verdict)


# ---------------------------------------------------------------- as a table of 80 columns


def fitted(name, width):
    """A name for a column of this width. A longer name is cut."""
    name = printable(name)
    return name if len(name) <= width else name[:width - 1] + "\u2026"


def print_results(results, ks, majority=False):
    """Print {benchmark: dict of evaluate} as tables of 80 columns: per cent, 95 % intervals."""
    wide = {"accuracy": "accuracy (strict)"} | {f"pass@{k}": f"Pass@{k}" for k in ks}
    slim = ["lenient", *["majority"] * majority, "truncated", "length"]
    heads = ["problems", *wide.values(), *slim]
    widths = [10, *[22] * len(wide), *[11] * len(slim)]

    rows = []
    for title, names, weights in pools({name: r["problems"] for name, r in results.items()}):
        per_problem = [results[name]["per_problem"] for name in names]
        mean, low, high = averaged(per_problem, weights, [*wide, *slim])
        cells = [f"{sum(results[name]['problems'] for name in names)}"]
        cells += [f"{100 * m:.1f} [{100 * a:.1f}, {100 * b:.1f}]"
                  for m, a, b in zip(mean, low, high)][:len(wide)]
        cells += [f"{m if column == 'length' else 100 * m:.1f}"
                  for column, m in zip(slim, mean[len(wide):])]
        rows.append((title, cells))

    first = 0
    while first < len(heads):  # as many columns side by side as fit
        last = first + 1
        while last < len(heads) and 23 + sum(widths[first:last + 1]) <= 80:
            last += 1
        print()
        for title, cells in [("benchmark", heads), *rows]:
            parts = [f"{cells[i]:>{widths[i]}}" for i in range(first, last)]
            print(f"{fitted(title, 22):23}" + "".join(parts))
        first = last


def averaged(per_problem, weights, columns):
    """Weighted mean of benchmarks and its interval: (mean, low, high), lists over columns.

    It combines the benchmarks' intervals (MOVER): the lower half is
    sqrt(sum_b (w_b (m_b - low_b))^2), the upper the same. So small sets keep their correction.
    """
    mean, below, above = 0, 0, 0
    for scores, w in zip(per_problem, weights):
        x = torch.tensor([scores[column] for column in columns], dtype=torch.float64)  # (S, N)
        m, (low, high) = x.mean(1), interval(x.T.clamp(max=1))                         # (S,) each
        mean = mean + w * m
        below = below + (w * (m - low)) ** 2
        above = above + (w * (high - m)) ** 2
    low = (mean - below.sqrt()).clamp(min=0)
    return mean.tolist(), low.tolist(), (mean + above.sqrt()).tolist()


def print_comparison(args):
    """Split the files of --compare into A and B and print what `compare` finds."""
    cut = args.index("vs") if "vs" in args else 1 if len(args) == 2 else 0
    a, b = args[:cut], args[cut + ("vs" in args):]
    if not a or not b:
        raise BadInput("--compare: give two files, or put the word vs between A's and B's files.")
    print(wrapped(f"A: {' '.join(a)}", 80))
    print(wrapped(f"B: {' '.join(b)}", 80))
    rows = compare(a, b)  # which prints notes of its own
    print(f"\n{'benchmark':32}{'problems':>9}{'A':>7}{'B':>7}{'B - A':>8}{'95 % interval':>17}")
    for r in rows:
        ends = f"[{100 * r['low']:+.1f}, {100 * r['high']:+.1f}]"
        p = f"{r['p']:.3f}" if r["p"] >= 0.001 else "<0.001"
        print(f"{fitted(r['name'], 31):32}{r['problems']:9}{100 * r['a']:7.1f}{100 * r['b']:7.1f}"
              f"{100 * r['difference']:+8.1f}{ends:>17}")
        print(f"  {r['verdict']}; better/worse {r['better']}/{r['worse']}; sign p {p}; "
              f"needed {r['needed']}")
    print("\nbetter/worse: number of problems; sign p: of the sign test on these two numbers\n"
          "needed: problems needed to detect a true difference of 1 point 4 times in 5")
    print(about_seeds(len(a), len(b)))


def about_seeds(a, b):
    """A sentence on what this number of runs per side can show."""
    if a == b == 1:
        return ("one run each: this compares two checkpoints, not two methods; give several seeds\n"
                "per side")
    if a == 1 or b == 1:
        side = "A" if a == 1 else "B"
        return (f"one run of {side}: the interval does not include how its seeds differ; give\n"
                "several seeds per side")
    return f"{a} runs of A, {b} of B: the interval is over problems and seeds"
