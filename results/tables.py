r"""The study's tables and figures, made only from its JSONL lines.

    python results/tables.py        # rewrites the tables of the pages here, and their figures

cells.py says what a line holds and how it is used.

What we left out, on purpose: bold type for winners.
"""
import argparse
import math
import re
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
from cells import (
    FAMILIES,
    at_the_end,
    at_tokens,
    by_arm,
    compared,
    families_of,
    mean_curve,
    mean_cut_off,
    read,
    share_of_gain,
    stacked,
    untrained,
)
from paired import Z, both_levels, detectable, holm, t_interval

from engine.errors import run_cli

# ------------------------------------------------------------------------------ the text


def table(head, rows):
    """A Markdown table of lists of strings."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def percent(mean, *ends, sign=""):
    """A share of 1 in per cent, with its interval if given."""
    return f"{100 * mean:{sign}.1f}" + (" " + bracket(*ends, sign) if ends else "")


def bracket(low, high, sign="+"):
    """An interval in per cent."""
    if not math.isfinite(low):
        return "[one seed]"
    return f"[{100 * low:{sign}.1f}, {100 * high:{sign}.1f}]"


def p_text(p):
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def what_was_run(lines):
    """How many cells of which phase, where, how long."""
    phases = Counter(line["cell"]["phase"] for line in lines)
    names = {"start": "of the untrained model", "sweep": "of the learning-rate sweep",
             "final": "of the comparison"}
    cells = ", ".join(f"{phases[k]} {name}" for k, name in names.items() if phases[k])
    hours = sum(sum(line["seconds"].values()) for line in lines) / 3600
    made = [line["made_on"] for line in lines]  # cuda:0 or cuda:1: either card of a machine
    where = {f"{on['device'].partition(':')[0]}, torch {on['torch']}" for on in made}
    return (f"{len(lines)} cells ({cells}); {' and '.join(sorted(where))}; {hours:.2f} "
            "process-hours.")


def sweep_table(lines):
    """Mean validation accuracy by arm and learning rate, the chosen one marked; "" if no sweep."""
    found, chosen = {}, {line["cell"]["arm"]: line["cell"]["rate"] for line in lines
                         if line["cell"]["phase"] == "final"}
    swept = [line for line in lines if line["cell"]["phase"] == "sweep"]
    column = "sampled"
    if any(line["curve"] for line in swept):  # the sweep looked at the curve
        column = "curve"
    for line in swept:
        by_rate = found.setdefault(line["cell"]["arm"], {})
        by_rate.setdefault(line["cell"]["rate"], []).append(at_the_end(line, column).mean().item())
    if not found:
        return ""
    rates = sorted({rate for by_rate in found.values() for rate in by_rate})
    rows = [[arm, *(percent(sum(by[r]) / len(by[r])) + " *" * (chosen.get(arm) == r)
                    if r in by else "" for r in rates)] for arm, by in found.items()]
    edge = [arm for arm, by in found.items() if chosen.get(arm) in (min(by), max(by))]
    note = f" At the edge of the sweep: {', '.join(edge)}." if edge else ""
    taken = "; * is taken" if chosen else ""
    counts = sorted({len(seeds) for by_rate in found.values() for seeds in by_rate.values()})
    many = f" ({counts[0]} to {counts[-1]} a rate)" if len(counts) > 1 else ""
    what = {"sampled": "accuracy", "curve": "mean accuracy along the curve"}[column]
    return (f"\n**Learning rates**: {what} in per cent on the validation split, mean over the "
            f"sweep's own seeds{many}{taken}.{note}\n\n"
            + table(["arm", *(f"{rate:g}" for rate in rates)], rows) + "\n")


def main_table(arms, start=None):
    """Every arm at its last step, and the untrained model (the line `start`) if it was asked."""
    rows = [["untrained", "", "", *(percent(at_the_end(start, column).mean().item())
                                    for column in ("sampled", "greedy", "pass")), "", "", ""]
            ] if start else []
    for arm, seeds in arms.items():
        tokens = sum(line["tokens"] for line in seeds.values()) / len(seeds)
        cells = [percent(*t_interval(stacked(seeds, column).mean(1)))
                 for column in ("sampled", "greedy", "pass", "curve")]
        rate = sorted({line["cell"]["rate"] for line in seeds.values()})
        weight = sum(line["weight_mean"] for line in seeds.values()) / len(seeds)
        rows.append([arm, ", ".join(f"{r:g}" for r in rate), str(len(seeds)), *cells,
                     f"{weight:.2f}", f"{tokens / 1000:.0f} k"])
    final = next(iter(next(iter(arms.values())).values()))["final"]
    return ("\n**At the last step**, per cent with 95 % t intervals over seeds; "
            f"{len(final['right']):,} held-out problems x {final['samples']} samples at T = 1, and "
            "greedy; curve: the mean of the curve's points after the start.\n\n"
            + table(["arm", "lr", "seeds", "sampled", "greedy", f"Pass@{final['samples']}", "curve",
                     "mean weight", "tokens sampled"], rows) + "\n")


def verdict(row, adjusted, column):
    """A difference in plain words."""
    b, a, points = row["b"], row["a"], percent(row["mean"], row["low"], row["high"], sign="+")
    if adjusted < 0.05:
        side = "above" if row["mean"] > 0 else "below"
        verb = "is" if column == "curve" else "ends"
        return f"{b} {verb} {side} {a}, {column}: {points} points."
    more = (f" {row['seeds']} seeds say little." if row["seeds"] < 5 else
            " One interval of so many may leave out 0 by chance." if row["p"] < 0.05 else "")
    return f"{b} is not distinguishable from {a}, {column}: {points} points.{more}"


def how_many(seeds):
    """The number of seeds that the detectable difference is for, in words."""
    return "ten" if seeds <= 10 else str(seeds)


def family_table(title, pairs, column, arms):
    """One family of paired comparisons, `column` tested, and the verdicts; "" if none was run."""
    rows = [row for b, a in pairs if (row := compared(arms, b, a, column))]
    if not rows:
        return ""
    adjusted = holm([row["p"] for row in rows])
    others = [name for name in ("sampled", "greedy", "pass", "curve") if name != column]
    cells = []
    for row, p in zip(rows, adjusted):
        beside = [compared(arms, row["b"], row["a"], name) for name in others]
        cells.append([f"{row['b']} - {row['a']}", str(row["seeds"]),
                      percent(row["mean"], row["low"], row["high"], sign="+"),
                      bracket(*both_levels(row["d"])), p_text(row["p"]), p_text(p),
                      *(percent(o["mean"], o["low"], o["high"], sign="+") for o in beside),
                      f"{100 * row['sd']:.1f}", f"{100 * row['detectable']:.1f}"])
    samples = next(iter(arms[rows[0]["b"]].values()))["final"]["samples"]
    names = [f"Pass@{samples}" if name == "pass" else name for name in others]
    counts = {how_many(row["seeds"]) for row in rows}
    detect = f"{counts.pop()} seeds" if len(counts) == 1 else "these seeds, at least ten,"
    head = ["B - A", "seeds", column, "both", "p", f"Holm, {len(rows)}", *names, "sd over seeds",
            f"{detect} detect"]
    said = "\n".join(f"- {verdict(row, p, column)}" for row, p in zip(rows, adjusted))
    return f"\n**{title}**, points, paired over seeds.\n\n{table(head, cells)}\n\n{said}\n"


def curve_table(arms, start):
    """Accuracy and Pass@k along the curve, means over seeds."""
    points = [point for seeds in arms.values() for line in seeds.values()
              for point in line["curve"] + [line["final"]]]
    k, shared = (min(sizes) for sizes in zip(*((p["samples"], len(p["right"])) for p in points)))
    found = {arm: [mean_curve(seeds, i, start) for i in (1, k)] for arm, seeds in arms.items()}
    steps = sorted({step for one, _ in found.values() for step in one})
    rows = [[arm, *(f"{percent(one[step])} / {percent(many[step])}" for step in steps)]
            for arm, (one, many) in found.items()]
    return (f"\n**Along the curve**: accuracy / Pass@{k} after so many steps, mean over seeds, the "
            f"first {shared} held-out problems.\n\n{table(['arm', *map(str, steps)], rows)}\n")


def cut_off_table(arms, start):
    """The share of samples that were cut off, along the curve; "" if it stays below 5 %."""
    found = {arm: mean_cut_off(seeds, start) for arm, seeds in arms.items()}
    if max(max(shares.values()) for shares in found.values()) < 0.05:
        return ""
    steps = sorted({step for shares in found.values() for step in shares})
    rows = [[arm, *(percent(shares[step]) for step in steps)] for arm, shares in found.items()]
    return ("\n**Cut off**: per cent of the samples that reached the limit of tokens without an "
            "end, on all problems asked after so many steps, mean over seeds.\n\n"
            f"{table(['arm', *map(str, steps)], rows)}\n")


def gain_table(arms):
    """What share of the oracle's gain each arm reaches; "" where no oracle was run."""
    if not {"oracle", "grpo"} <= set(arms):
        return ""
    rows = []
    for arm, seeds in arms.items():
        shares = [share_of_gain(arms, arm, column) for column in ("curve", "sampled")]
        texts = ["-" if one is None else f"{one[0]:.2f} [{one[1]:.2f}, {one[2]:.2f}]"
                 for one in shares]
        if arm in ("grpo", "oracle"):
            texts = [f"{float(arm == 'oracle'):.0f}"] * 2  # by definition
        common = set(seeds) & set(arms["grpo"]) & set(arms["oracle"])
        rows.append([arm, str(len(common)), *texts])
    return ("\n**Share of the oracle's gain over GRPO**: 0 is GRPO, 1 is the oracle; 95 % "
            "bootstrap intervals over seeds.\n\n"
            + table(["arm", "seeds", "mean of the curve", "at the end, sampled"], rows) + "\n")


def token_table(arms, start):
    """Accuracy at equal numbers of tokens sampled; "" if a line does not count them by step, or if
    `vine` was not run, because no other arm samples more than its completions."""
    counted = all("tokens_by_step" in line for seeds in arms.values() for line in seeds.values())
    if not {"vine", "grpo"} <= set(arms) or start is None or not counted:
        return ""
    whole = min(line["tokens"] for line in arms["grpo"].values())
    budgets = [whole // 4, whole // 2, whole]
    rows = []
    for arm, seeds in arms.items():
        texts = []
        for budget in budgets:
            found = [at_tokens(line, budget, start) for line in seeds.values()]
            known = [x for x in found if x is not None]
            texts.append(percent(sum(known) / len(known)) if len(known) == len(found) else "-")
        spent = sum(line["tokens"] for line in seeds.values()) / len(seeds)
        rows.append([arm, *texts, f"{spent / 1000:,.0f} k"])
    return ("\n**At equal tokens sampled**, continuations included: accuracy in per cent, mean "
            "over seeds, straight between the points of the curve; - where an arm had ended.\n\n"
            + table(["arm", *(f"{budget / 1000:.0f} k" for budget in budgets), "in all"], rows)
            + "\n")


def drawn(families):
    """The families that the figure and the paragraph on power use: the first and the third of
    FAMILIES, or all if a file has its own."""
    return families[::2][:2] if families is FAMILIES else families


def power(arms, families):
    """A paragraph: what difference ten seeds could show, or all seeds if they are more, from the
    sd measured here. It uses only the measure of the first question: others vary differently."""
    column = families[0][2]
    rows = [row for _, pairs, tested in drawn(families) if tested == column for b, a in pairs
            if (row := compared(arms, b, a, column))]
    if not rows:
        return ""
    counts = sorted(row["seeds"] for row in rows)
    fewest = counts[0]
    seen = sorted(100 * detectable(row["sd"], max(10, fewest)) for row in rows)
    span = " to ".join(dict.fromkeys(f"{end:.1f}" for end in (seen[0], seen[-1])))
    spread = sorted(100 * stacked(seeds, column).mean(1).std().item()
                    for seeds in arms.values() if len(seeds) > 1)
    alone = (Z + 0.841621) * math.sqrt(2) * sum(spread) / len(spread)
    more = " or more" * (counts[-1] > fewest)
    rough = f" (of {fewest} seeds{more}, so roughly)" * (fewest < 10)
    which = "accuracy" if column == "sampled" else f"{column} accuracy"
    return (f"\n**Power.** One arm's {which} varies from seed to seed with an sd of "
            f"{spread[0]:.1f} to {spread[-1]:.1f} points. With {how_many(fewest)} seeds an arm, "
            f"the paired t test at 5 % would show a true difference of {span} points 4 times in 5, "
            f"by the sd of the differences above{rough}; with one run an arm it would have to be "
            f"{alone:.0f} points, were the sd known.\n")


def with_enough_seeds(arms):
    """The arms with at least half as many seeds as the arm with the most."""
    most = max(map(len, arms.values()), default=0)
    return {arm: seeds for arm, seeds in arms.items() if 2 * len(seeds) >= most}


def render(lines, families=FAMILIES):
    """The whole section of a file of cells, Markdown."""
    every = by_arm(lines)
    arms = with_enough_seeds(every)
    parts = [what_was_run(lines) + "\n", sweep_table(lines)]
    if missing := [arm for arm in every if arm not in arms]:
        parts.append("\n**Not complete**, with less than half of the seeds of the fullest arm, and "
                     f"left out below: {', '.join(missing)}.\n")
    if arms:
        start = untrained(lines)
        parts += [main_table(arms, start), gain_table(arms), token_table(arms, start),
                  *(family_table(*family, arms) for family in families),
                  curve_table(arms, start), cut_off_table(arms, start),
                  power(arms, families)]
    return "".join(parts)


# ------------------------------------------------------------------------------ the figure

# Okabe and Ito's palette, with dashes for those who print in grey.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
DASHES = ["", "6 3", "2 3", "9 3 2 3"]


def figure(lines, families=FAMILIES):
    """SVG: curves, mean over seeds, and differences with their t intervals. An interval that
    reaches 20 points is written as text: drawn to scale, it would make the others too small."""
    arms = with_enough_seeds(by_arm(lines))
    baseline = families[0][1][0][1]
    shown = dict.fromkeys(arm for _, pairs, _ in families for b, a in pairs if a == baseline
                          for arm in (a, b))
    curves = {arm: mean_curve(arms[arm], 1, untrained(lines)) for arm in shown if arm in arms}
    blocks = [[row | {"column": column} for b, a in pairs if (row := compared(arms, b, a, column))]
              for _, pairs, column in drawn(families)]
    rows = [row for block in blocks for row in block]
    ticks = sorted({step for points in curves.values() for step in points})
    height = max(12, len(curves), len(rows) + sum(map(bool, blocks)))  # lines of text
    out, bottom = [], 42 + 22 * height

    def reach(row):
        return max(abs(row["low"]), abs(row["high"]))

    def text(x, y, words, anchor="start"):
        out.append(f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{words}</text>')

    def line(x1, y1, x2, y2, style):
        out.append(f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" {style}/>')

    grid = 'stroke="#999" stroke-width="0.5"'
    text(40, 20, "held-out accuracy, sampled, %, by step")
    for share in (0, 0.2, 0.4, 0.6, 0.8, 1.0):
        y = bottom - (bottom - 40) * share
        line(40, y, 340, y, grid)
        text(36, y + 4, f"{100 * share:.0f}", "end")
    for i, (arm, points) in enumerate(curves.items()):
        style = (f'fill="none" stroke="{COLOURS[i % 7]}" stroke-width="2" '
                 f'stroke-dasharray="{DASHES[i // 7 % 4]}"')
        path = "L".join(f"{40 + 300 * step / ticks[-1]:.1f} {bottom - (bottom - 40) * share:.1f}"
                        for step, share in sorted(points.items()))
        out.append(f'<path d="M{path}" {style}/>')
        y = 44 + 22 * i
        line(355, y - 4, 385, y - 4, style)
        text(390, y, f"{arm} ({len(arms[arm])})")
    for step in ticks:
        text(40 + 300 * step / ticks[-1], bottom + 18, str(step), "middle")
    if rows:
        widest, y = max([0.01, *(reach(row) for row in rows if reach(row) < 0.2)]), 44
        text(630, 20, "differences, points, 95 %")
        line(830, 30, 830, bottom, grid)
        for block in filter(None, blocks):
            measure = f", {block[0]['column']}" * (len({row["column"] for row in rows}) > 1)
            alike = len({row["a"] for row in block}) == 1
            text(710, y, (f"minus {block[0]['a']}" if alike else "differences") + measure, "end")
            for row in block:
                y += 22
                text(710, y, row["b"] + f" - {row['a']}" * (not alike), "end")
                if reach(row) >= 0.2:
                    text(720, y, percent(row["mean"], row["low"], row["high"], sign="+"))
                    continue
                low, mean, high = (830 + 110 * row[k] / widest for k in ("low", "mean", "high"))
                line(low, y - 4, high, y - 4, 'stroke="#000" stroke-width="1.5"')
                out.append(f'<circle cx="{mean:.1f}" cy="{y - 4}" r="4"/>')
            y += 22
        for sign in (-1, 0, 1):
            text(830 + 110 * sign, bottom + 18, f"{100 * sign * widest:+.1f}", "middle")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 {bottom + 40}" '
            'font-family="sans-serif" font-size="13">\n'
            f'<rect width="960" height="{bottom + 40}" fill="#fff"/>\n' + "\n".join(out)
            + "\n</svg>\n")


# ------------------------------------------------------------------------------ the pages

SECTION = re.compile(r"(<!-- made of (\S+\.jsonl) by tables\.py -->\n).*?(<!-- end -->)", re.S)


def section(name):
    """The text between a page's two marks for this file of cells."""
    lines = read(HERE / name)
    if not lines:
        return f"Not run yet: there is no results/{name}.\n"
    picture = f"\n![curves and differences]({Path(name).stem}.svg)\n" if by_arm(lines) else ""
    return render(lines, families_of(name)) + picture


def main(argv=None):
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args(argv)
    names = []
    for page in sorted(HERE.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        names += [name for _, name, _ in SECTION.findall(text)]
        page.write_text(SECTION.sub(lambda m: m[1] + section(m[2]) + m[3], text), encoding="utf-8")
    for name in names:
        lines = read(HERE / name)
        if by_arm(lines):
            (HERE / name).with_suffix(".svg").write_text(
                figure(lines, families_of(name)), encoding="utf-8")
        print(f"results/{name}: {len(lines)} cells")


if __name__ == "__main__":
    run_cli(main)
