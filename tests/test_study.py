"""The study: arms that differ where they should, statistics by closed form, tables of its lines."""
import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "results"), str(ROOT / "examples")]
import arms
import cells
import fidelity
import paired
import pool
import study
import tables

import grail
import intervals
import problems
import released
import saliency
from logprobs import forward_pass
from problems import BadInput

EVERY_ARM = [*arms.ARMS, *arms.ABLATIONS]

# ------------------------------------------------------------------ statistics over seeds


def test_a_t_interval_by_hand():
    """1, 2, 6: mean 3, sd sqrt 7, so 3 +- 4.302653 sqrt(7 / 3). With the population's sd, or z for
    t, it would be shorter by a fifth or a half."""
    mean, low, high = paired.t_interval(torch.tensor([1.0, 2, 6]).double())
    half = 4.302653 * math.sqrt(7 / 3)
    assert (mean, low, high) == pytest.approx((3, 3 - half, 3 + half), rel=1e-6)
    assert paired.t_interval(torch.tensor([0.5]).double())[1:] == (-math.inf, math.inf)


def test_p_is_0_05_where_the_interval_touches_0():
    """Interval and p are of one test: they may not contradict each other in a table."""
    x = torch.tensor([0.1, 0.4, 0.3, -0.2, 0.7]).double()
    mean, low, _ = paired.t_interval(x)
    assert paired.p_value(x - low) == pytest.approx(0.05, abs=1e-6)
    assert paired.p_value(torch.zeros(3).double()) == 1
    assert paired.p_value(torch.ones(3).double()) == 0


def test_holm_by_hand():
    """0.01 x 3, then 0.03 x 2, then 0.04 x 1, which may not fall below the one before it."""
    assert paired.holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert paired.holm([0.9, 0.6]) == [1, 1]


@pytest.mark.parametrize("seeds", [3, 10])
def test_the_detectable_difference_is_detected_four_times_in_five(seeds):
    """20,000 simulated studies: the sum of two quantiles stands for the noncentral t, and gives
    79.5 % at 10 seeds and 77 % at 3. With z for t it would give 70 and 35 %."""
    torch.manual_seed(0)
    true = paired.detectable(1.0, seeds)
    d = true + torch.randn(20000, seeds).double()
    seen = d.mean(1) / (d.std(1) / seeds ** 0.5) > intervals.t_quantile(seeds - 1)
    assert abs(seen.double().mean() - 0.8) < 0.04


def test_both_levels_see_seeds_and_problems():
    """Where only problems differ the interval is that of a mean of N numbers; where only seeds
    differ it is the t interval; one that resampled problems alone would say 0 there."""
    generator = torch.Generator().manual_seed(3)
    problem = torch.randn(1, 400, generator=generator).double().expand(10, 400)
    low, high = paired.both_levels(problem)
    assert (high - low) / 2 == pytest.approx(1.96 * problem[0].std().item() / 20, rel=0.06)
    seed = torch.randn(10, 1, generator=generator).double().expand(10, 400)
    low, high = paired.both_levels(seed)
    _, t_low, t_high = paired.t_interval(seed[:, 0])
    assert (high - low) == pytest.approx(t_high - t_low, rel=0.1)


# ------------------------------------------------------------------ lines and tables


def line(arm, seed, right, samples=4, phase="final", rate=1e-4, greedy=None, curve=()):
    def point(step, samples, digits):
        return {"step": step, "samples": samples, "right": digits, "lenient": digits,
                "truncated": 0.0}

    made = {"cell": {"phase": phase, "arm": arm, "rate": rate, "seed": seed},
            "settings": {"data_sha256": "x"}, "final": point(40, samples, right),
            "curve": [point(step, 4, digits) for step, digits in curve],
            "tokens": 1000, "weight_mean": 1, "seconds": {"train": 5, "evaluate": 1},
            "made_on": {"device": "cpu", "torch": "x"}}
    if phase != "sweep":
        made["greedy"] = point(40, 1, greedy or "0" * len(right))
    return made


def write(path, lines):
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


def test_a_difference_is_paired_by_seed():
    """Seeds vary by 50 points and B is 25 above A in each: paired, the sd of the difference is 0.
    Seed 7 has no partner and is left out; unpaired, it would move the mean."""
    lines = [line("grpo", 0, "00"), line("grpo", 1, "22"), line("grail", 1, "33"),
             line("grail", 0, "11"), line("grail", 7, "44")]
    row = cells.compared(cells.by_arm(lines), "grail", "grpo")
    assert (row["seeds"], row["mean"], row["sd"]) == (2, 0.25, 0)
    assert cells.compared(cells.by_arm(lines), "delta", "grpo") is None


def test_columns_by_hand():
    """4 samples, 1 and 3 right: accuracy 1/2, Pass@2 by counting pairs (3 + 6) / 12; the curve is
    compared on the problems that all of its points have, here the first alone."""
    one = line("grpo", 0, "13", greedy="01", curve=[(10, "4")])
    assert cells.at_the_end(one, "sampled").tolist() == [0.25, 0.75]
    assert cells.scores(one["final"], 2).mean().item() == pytest.approx((3 + 6) / 12)
    assert cells.at_the_end(one, "pass").tolist() == [1, 1]
    assert cells.at_the_end(one, "greedy").tolist() == [0, 1]
    assert cells.curve(one) == {10: 1.0, 40: 0.25}
    assert cells.stacked({0: one}, "curve").tolist() == [[0.625]]
    drawn = tables.main_table({"grpo": {0: one}}, line("grpo", 0, "12", greedy="11", phase="start"))
    assert "| untrained |  |  | 37.5 | 100.0 | 100.0 |  |  |  |\n| grpo |" in drawn


def test_the_share_of_a_gain_by_hand():
    """GRPO 1/4, the oracle 3/4, the arm 1/2 in each of four seeds: half of the gain, whatever is
    drawn. Where the oracle gains in two seeds and loses in two, no share is given."""
    levels = {"grpo": "11", "oracle": "33", "vine": "22"}
    lines = [line(arm, seed, digits) for arm, digits in levels.items() for seed in range(4)]
    arms = cells.by_arm(lines)
    assert cells.share_of_gain(arms, "vine", "sampled") == pytest.approx((0.5, 0.5, 0.5))
    assert cells.share_of_gain(arms, "grail", "sampled") is None
    for seed in (0, 1):
        arms["oracle"][seed] = line("oracle", seed, "00")
    assert cells.share_of_gain(arms, "vine", "sampled") is None
    assert "| oracle | 4 | 1 | 1 |" in tables.gain_table(cells.by_arm(lines))


def test_a_share_has_the_interval_of_its_draws():
    """The arm gains 0, 1, 2 or 3 tenths of a problem where the oracle gains 5 in every seed: the
    interval of the share is that of a mean of four draws of 0, .2, .4, .6."""
    lines = [line("grpo", seed, "2" * 10) for seed in range(4)]
    lines += [line("oracle", seed, "4" * 10) for seed in range(4)]
    lines += [line("vine", seed, "4" * seed + "2" * (10 - seed)) for seed in range(4)]
    share, low, high = cells.share_of_gain(cells.by_arm(lines), "vine", "sampled")
    means = sorted(sum(draw) / 40 for draw in itertools.product(range(4), repeat=4))
    assert share == pytest.approx(0.15)
    assert low == pytest.approx(means[6], abs=0.026)
    assert high == pytest.approx(means[249], abs=0.026)


def test_accuracy_at_equal_tokens_by_hand():
    """Steps cost 10, 30 and 60 tokens; accuracy is 0, 1/2 after step 2 and 1 after step 3."""
    one = line("vine", 0, "44", curve=[(2, "22")]) | {"tokens_by_step": [10, 30, 60]}
    one["final"]["step"] = 3
    start = line("grpo", 0, "00", phase="start")
    start["final"]["step"] = 0
    found = [cells.at_tokens(one, tokens, start) for tokens in (0, 20, 40, 70, 100, 101)]
    assert found == [0, 0.25, 0.5, 0.75, 1, None]


def test_no_table_of_tokens_where_a_line_does_not_count_them():
    """Lines from before the counting, here one of four, have no place in that table."""
    steps = {"tokens_by_step": [25] * 40}
    counted = [line(arm, seed, "12") | steps for arm in ("grpo", "vine") for seed in (0, 1)]
    start = line("grpo", 0, "01", phase="start")
    start["final"]["step"] = 0
    assert "At equal tokens" in tables.render([start, *counted])
    for i, one in enumerate(counted):
        older = {k: v for k, v in one.items() if k != "tokens_by_step"}
        text = tables.render([start, *counted[:i], older, *counted[i + 1:]])
        assert "| vine |" in text and "At equal tokens" not in text


def test_the_share_that_is_cut_off_by_hand():
    """Two seeds, 2 and 10 % at step 10, 4 and 20 % at step 40; the untrained model 3 %. Where
    nothing reaches 5 %, there is no table."""
    start = line("grpo", 0, "11", phase="start")
    start["final"] |= {"step": 0, "truncated": 0.03}
    arms = {"grail": {seed: line("grail", seed, "11", curve=[(10, "11")]) for seed in (0, 1)}}
    assert tables.cut_off_table(arms, start) == ""
    for seed, (first, last) in enumerate([(0.02, 0.04), (0.10, 0.20)]):
        arms["grail"][seed]["curve"][0]["truncated"] = first
        arms["grail"][seed]["final"]["truncated"] = last
    text = tables.cut_off_table(arms, start)
    assert "| arm | 0 | 10 | 40 |" in text and "| grail | 3.0 | 6.0 | 12.0 |" in text


def uneven():
    """{arm: {seed: line}} with 12 seeds of grail, 14 of the oracle and 20 of the others."""
    seeds = {"grpo": 20, "oracle": 14, "vine": 20, "grail": 12}
    digits = {"grpo": "11", "oracle": "33", "vine": "12", "grail": "21"}
    return cells.by_arm([line(arm, seed, digits[arm][seed % 2] + "1")
                         for arm, n in seeds.items() for seed in range(n)])


def test_a_head_that_names_seeds_is_true_of_each_row():
    """12 and 20 seeds in one table: "12 seeds detect" stood above what 20 seeds do. With up to ten
    seeds, each row says what ten do."""
    pairs = [("grail", "grpo"), ("vine", "grpo")]

    def head(arms):
        return tables.family_table("Title", pairs, "sampled", arms).splitlines()[3].split(" | ")[-1]

    arms = uneven()
    assert head(arms) == "these seeds, at least ten, detect |"
    arms["vine"] = {seed: arms["vine"][seed] for seed in range(12)}
    assert head(arms) == "12 seeds detect |"
    arms["vine"] = {seed: arms["vine"][seed] for seed in range(5)}
    assert head(arms) == "these seeds, at least ten, detect |"
    arms["grail"] = {seed: arms["grail"][seed] for seed in range(8)}
    assert head(arms) == "ten seeds detect |"


def test_power_is_of_the_seeds_that_it_names():
    """GRAIL's 12 differences are 1/8 and 0 in turn, vine's 20 are 0 and 1/8: with 12 seeds, which
    is what the text says, each detects (2.20099 + 0.87553) sd / sqrt(12). By hand from t tables
    with 11 degrees of freedom. Of 5 seeds and more it says so."""
    families, arms = [("", [("grail", "grpo"), ("vine", "grpo")], "sampled")], uneven()
    low, high = (100 * (2.20099 + 0.87553) * sd / 12 ** 0.5
                 for sd in (0.0625 * (20 / 19) ** 0.5, 0.0625 * (12 / 11) ** 0.5))
    text = tables.power(arms, families)
    assert "With 12 seeds an arm" in text and f"of {low:.1f} to {high:.1f} points" in text
    arms["grail"] = {seed: arms["grail"][seed] for seed in range(5)}
    assert "(of 5 seeds or more, so roughly)" in tables.power(arms, families)
    arms["vine"] = {seed: arms["vine"][seed] for seed in range(5)}
    assert "(of 5 seeds, so roughly)" in tables.power(arms, families)


def test_a_share_is_of_the_seeds_that_all_three_have():
    """Vine and GRPO have 20 seeds and the oracle 14, so a share of its gain is of 14."""
    rows = [row.split(" | ")[:2] for row in tables.gain_table(uneven()).splitlines()[5:]]
    found = {arm.strip("| "): int(seeds) for arm, seeds in rows}
    assert found == {"grpo": 14, "oracle": 14, "vine": 14, "grail": 12}


def test_an_edge_is_of_the_arm_s_own_rates():
    """SCRL alone was swept at 4e-4 and 2e-5, so 1e-4 and 2e-4 are edges of the others, and for SCRL
    they are not."""
    rates = {"grpo": (5e-5, 1e-4, 2e-4), "grail": (1e-4, 2e-4, 3e-4), "delta": (1e-4, 2e-4, 3e-4),
             "scrl": (2e-5, 1e-4, 2e-4, 4e-4)}
    chosen = {"grpo": 2e-4, "grail": 1e-4, "delta": 2e-4, "scrl": 2e-4}
    lines = [line(arm, 100, "1", phase="sweep", rate=rate) for arm in rates for rate in rates[arm]]
    lines += [line(arm, 0, "1", rate=rate) for arm, rate in chosen.items()]
    assert "At the edge of the sweep: grpo, grail.\n" in tables.sweep_table(lines)


def test_an_arm_with_few_of_the_seeds_is_left_out_and_named():
    lines = [line("grpo", seed, "12") for seed in range(4)] + [line("grail", 0, "12")]
    text = tables.render(lines)
    assert "left out below: grail." in text and "| grail |" not in text
    assert "Not complete" not in tables.render(lines + [line("grail", 1, "12")])


def test_the_text_says_what_the_numbers_say():
    """B 50 points above A in ten seeds, with little spread, is "above"; of two seeds that disagree
    it is "not distinguishable", whatever the mean. A is the second of the pair, not the first."""
    def seeds(high):
        return [line("grpo", s, "1" * 20) for s in range(len(high))] + [
            line("grail", s, str(digit) * 20) for s, digit in enumerate(high)]

    clear = tables.render(seeds([3, 3, 3, 3, 3, 3, 3, 3, 3, 4]))
    assert "grail ends above grpo, sampled: +52.5" in clear and "not distinguishable" not in clear
    assert "grail ends below grpo" in tables.render(seeds([0, 0, 0, 0, 0]))
    assert "grail is not distinguishable from grpo" in tables.render(seeds([4, 0, 3]))


def test_cells_are_files_for_evaluate_py(tmp_path):
    """1 and 3 of 4 right against 0 and 2: 50 and 25 per cent in each seed, so B is 25 points below;
    a record for every sample, or evaluate.py would take the problem for unfinished."""
    lines = [line(arm, seed, right) | {"settings": {"data_sha256": "x"}}
             for arm, right in (("grpo", "13"), ("grail", "02")) for seed in (0, 1)]
    cells.main([str(write(tmp_path / "a.jsonl", lines)), str(tmp_path / "out")])
    sides = [[tmp_path / f"out/{arm}-{seed}.jsonl" for seed in (0, 1)] for arm in ("grpo", "grail")]
    row, = intervals.compare(*sides)
    assert (row["problems"], row["a"], row["b"], row["difference"]) == (2, 0.5, 0.25, -0.25)
    header = json.loads(sides[1][1].read_text().splitlines()[0])["header"]
    assert (header["problems"], header["samples"], header["arm"], header["seed"]) == (
        2, 4, "grail", 1)
    for bad, said in (([], "no final cell"), ([line("nope", 0, "1")], "arm nope"),
                      ([{"cell": lines[0]["cell"]}], "line 1: no cell")):
        with pytest.raises(BadInput, match=said):
            cells.main([str(write(tmp_path / "b.jsonl", bad)), str(tmp_path / "out")])


def test_one_that_is_far_off_does_not_flatten_the_figure():
    """GRAIL is 5 points below GRPO, a coin 45, a change of GRAIL 10 above it: the axis is the
    change's, the coin's figure is written. With the coin alone there is nothing to draw."""
    digits = {"grpo": "2" * 20, "grail": "1" * 4 + "2" * 16, "random": "0" * 18 + "2" * 2,
              "grail-both": "2" * 16 + "3" * 4}
    lines = [line(arm, seed, right, curve=[(0, right)])
             for arm, right in digits.items() for seed in (0, 1)]
    drawn = tables.figure(lines)
    assert drawn.count("<circle") == 2 and "+10.0</text>" in drawn
    assert "minus grpo</text>" in drawn and "minus grail</text>" in drawn
    assert "-45.0 [-45.0, -45.0]</text>" in drawn
    assert "<circle" not in tables.figure([one for one in lines if one["cell"]["arm"] in (
        "grpo", "random")])


def test_a_sweep_takes_the_best_mean_and_says_so_at_the_edge():
    """Rate 2e-4 has the best single run and 1e-4 the best mean; of two alike the lower is taken; a
    rate with a seed missing chooses nothing yet."""
    setup = {"rates": [1e-4, 2e-4], "rate_of": {"grail-both": "grail"},
             "arms": ["grpo", "grail", "grail-both"]}
    found = {1e-4: "222", 2e-4: "041"}
    lines = [line("grail", seed, digit, phase="sweep", rate=rate) for rate, digits in found.items()
             for seed, digit in zip(study.SWEEP_SEEDS, digits)]
    assert study.best_rates(setup, lines)["grail"] == 1e-4
    assert study.best_rates(setup, lines)["grail-both"] == 1e-4
    assert study.best_rates(setup, lines[:-1])["grail"] is None
    assert study.best_rates(setup, lines)["grpo"] is None
    alike = [{**one, "final": lines[0]["final"]} for one in lines]
    assert study.best_rates(setup, alike)["grail"] == 1e-4
    text = tables.sweep_table(lines + [line("grail", 0, "1", rate=1e-4)])
    assert "| grail | 50.0 * | 41.7 |" in text and "edge of the sweep: grail" in text
    assert "own seeds; * is taken" in text
    assert "own seeds (2 to 3 a rate).\n" in tables.sweep_table(lines[:-1])


def test_a_sweep_of_one_seed_and_of_more_at_some_rates():
    """One seed is enough if asked for. Two more at one rate alone: its mean is 6 right of 12, where
    the other has 3 of 4. A sweep of three seeds then lacks two at the other."""
    one = setup(arms=["grpo"], rates=[1e-4, 2e-4], sweep_seeds=1, first_seed=0)
    three = one | {"sweep_seeds": 3}
    assert [cell["seed"] for cell in study.cells_of("sweep", one, [])] == [100, 100]
    lines = [line("grpo", 100, "4", phase="sweep"),
             line("grpo", 100, "3", phase="sweep", rate=2e-4)]
    assert study.best_rates(one, lines[:1])["grpo"] is None
    assert study.best_rates(one, lines)["grpo"] == 1e-4
    lines += [line("grpo", seed, "1", phase="sweep") for seed in (101, 102)]
    assert study.best_rates(one, lines)["grpo"] == 2e-4
    assert study.best_rates(three, lines)["grpo"] is None
    more = study.cells_of("sweep", three, lines)
    assert [(cell["rate"], cell["seed"]) for cell in more] == [(2e-4, 101), (2e-4, 102)]


def test_two_cards_of_one_machine_are_one_place():
    lines = [line("grpo", seed, "1") for seed in (0, 1)]
    for seed, one in enumerate(lines):
        one["made_on"] = {"device": f"cuda:{seed}", "torch": "2.11.0"}
    said = tables.what_was_run(lines)
    assert said == "2 cells (2 of the comparison); cuda, torch 2.11.0; 0.00 process-hours."


def test_an_arm_is_compared_at_one_rate():
    """Seeds 0 and 1 at one rate and 1 and 2 at another are three seeds of nothing; with one seed,
    the later line would have hidden the other. An arm alone may have its own rate."""
    two = [line("grpo", 0, "1"), line("grpo", 0, "2", rate=1e-3)]
    for lines in (two, [two[0], line("grpo", 1, "2", rate=1e-3)]):
        with pytest.raises(BadInput, match="arm grpo: .* 0.0001 and 0.001; .*--out"):
            cells.by_arm(lines)
    assert len(cells.by_arm([two[0], line("grail", 0, "1", rate=1e-3)])) == 2


def test_a_rate_that_changes_stops_before_a_cell_runs():
    """The file has a final cell of grpo at 1e-4. Refused: a rate given, a sweep that chooses
    another, and one without 1e-4 before it is done. The same rate goes on, and so does grail."""
    setup = dict(arms=["grpo"], rate_of={}, seeds=2, first_seed=0)
    final = line("grpo", 0, "1")
    swept = [line("grpo", seed, digit, phase="sweep", rate=rate) for seed in study.SWEEP_SEEDS
             for rate, digit in ((1e-4, "1"), (1e-3, "2"))]
    for rates, lines in (([1e-3], []), ([1e-4, 1e-3], swept), ([1e-3, 1e-2], [])):
        with pytest.raises(BadInput, match="grpo have lr 0.0001, and now .* 0.001"):
            study.cells_of("final", {**setup, "rates": rates}, [final, *lines])
    for rates in ([1e-4], [1e-4, 1e-3]):  # the second is not swept yet, and may choose either
        assert study.cells_of("final", {**setup, "rates": rates}, [final])
    other = {**setup, "arms": ["grail"], "rates": [1e-3]}
    assert len(study.cells_of("final", other, [final])) == 2


def test_half_a_line_is_no_cell_and_a_doubled_one_is_an_error(tmp_path):
    """A run that was killed while it wrote must not stop the next; a cell counted twice would make
    a seed of one's own."""
    path = write(tmp_path / "a.jsonl", [line("grpo", 0, "1")])
    with path.open("a") as file:
        file.write('{"cell": {"ph')
    assert len(cells.read(path)) == 1
    with pytest.raises(BadInput, match="twice"):
        cells.read(write(path, [line("grpo", 0, "1")] * 2))
    path.write_text('{"cell": 3}\n')
    with pytest.raises(BadInput, match="line 1"):
        cells.read(path)


def changed(path, value):
    """A line of study.py in which one part is another; None: it is not there."""
    one = line("grpo", 0, "13", curve=[(10, "4")]) | {"tokens_by_step": [1] * 40}
    part = one
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    if value is None:
        del part[path[-1]]
    return one


@pytest.mark.parametrize("path, value", [
    *(([key], None) for key in ("cell", "settings", "final", "curve", "seconds", "made_on",
                                "tokens", "weight_mean", "greedy")),
    (["cell", "seed"], [1]), (["cell", "seed"], "1"), (["cell", "arm"], []),
    (["cell", "phase"], "end"), (["cell", "rate"], math.nan), (["settings"], "x"),
    (["seconds", "train"], "5"), (["seconds", "train"], math.nan), (["seconds"], [5]),
    (["tokens_by_step"], [1] * 39), (["curve"], 3), (["final", "samples"], 10),
    (["final", "samples"], 2), (["final", "right"], "xyz"), (["final", "right"], ""),
    (["final", "right"], ["1", "3"]), (["final", "right"], "1\u00b3"), (["final", "step"], "40"),
    (["final", "lenient"], "133"), (["final", "lenient"], "19"), (["greedy", "right"], "02"),
    (["curve", 0, "right"], "5"), (["curve", 0, "step"], -1),
    (["curve", 0, "truncated"], None), (["final", "truncated"], "0"), (["final", "truncated"], 1.5),
    (["final", "truncated"], math.nan)])
def test_a_line_that_is_none_of_the_study_s_is_refused(tmp_path, path, value):
    """What is not a digit was taken for one, and the page had -102961733.3 per cent."""
    file = write(tmp_path / "a.jsonl", [line("grpo", 1, "13", curve=[(10, "4")])])
    assert len(cells.read(file)) == 1
    with file.open("a") as end:
        end.write(json.dumps(changed(path, value)) + "\n")
    with pytest.raises(BadInput, match="a.jsonl, line 2: no cell of study.py"):
        cells.read(file)


def test_a_line_of_no_json_or_of_too_deep_json_is_refused(tmp_path):
    for text in ("{}", "[]", "3", "", "null", "\x00", "[" * 100_000):
        (tmp_path / "a.jsonl").write_text(text + "\n")
        with pytest.raises(BadInput, match="line 1: no cell of study.py"):
            cells.read(tmp_path / "a.jsonl")


def test_a_file_of_someone_else_without_a_newline_is_refused(tmp_path):
    """It looked like the half line of a killed run, which is cut off."""
    for text, ours in (('{"mine": 1}', False), ("x", False), ('{"cell": {"pha', True), ("", True)):
        (tmp_path / "a.jsonl").write_text(text)
        if ours:
            assert cells.read(tmp_path / "a.jsonl") == []
            continue
        with pytest.raises(BadInput, match="line 1: no cell of study.py"):
            cells.read(tmp_path / "a.jsonl")


def test_the_lines_of_a_file_are_of_one_study(tmp_path):
    """Two files that somebody joined: other settings, or other points, cannot be in one table. A
    sweep has points of its own, and a line from before a setting lacks it."""
    first = line("grpo", 0, "13")
    older = line("grpo", 1, "13") | {"settings": {"data_sha256": "x", "weights_sha256": "w"}}
    swept = line("grpo", 100, "123", phase="sweep")
    assert len(cells.read(write(tmp_path / "a.jsonl", [first, older, swept]))) == 3
    for other, said in (({"data_sha256": "y"}, "data_sha256 'y', .* 'x'"),
                        ({"data_sha256": "x", "weights_sha256": "v"}, "weights_sha256 'v'")):
        one = line("grpo", 2, "13") | {"settings": other}
        with pytest.raises(BadInput, match=f"line 3: was made with {said}"):
            cells.read(write(tmp_path / "a.jsonl", [first, older, one]))
    for one in (line("grpo", 2, "133"), line("grpo", 2, "13", samples=8),
                line("grpo", 2, "13", curve=[(10, "1")])):
        with pytest.raises(BadInput, match="line 2: was made with final .step, problems, samples."):
            cells.read(write(tmp_path / "a.jsonl", [first, one]))


@pytest.mark.slow
def test_the_page_is_what_its_lines_say():
    """Every table and figure of the pages in results/, made again: nobody typed one."""
    text = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "results").glob("*.md"))
    sections = list(tables.SECTION.finditer(text))
    files = sorted(path.name for path in tables.HERE.glob("study_*.jsonl"))
    assert sorted(m[2] for m in sections) == files  # each on one page, once
    for m in sections:
        assert m[0] == m[1] + tables.section(m[2]) + m[3], f"run results/tables.py: {m[2]}"
        lines, picture = cells.read(tables.HERE / m[2]), (tables.HERE / m[2]).with_suffix(".svg")
        if cells.by_arm(lines):  # a sweep alone has no curves yet
            asked = cells.families_of(m[2])
            assert picture.read_text(encoding="utf-8") == tables.figure(lines, asked), m[2]
    for arm in EVERY_ARM:
        assert f"`{arm}`" in text


def test_every_arm_is_in_a_question():
    """An arm that no family names would be trained for hours and shown nowhere."""
    asked = [*cells.FAMILIES, *(one for own in cells.QUESTIONS.values() for one in own)]
    assert {arm for _, pairs, _ in asked for pair in pairs for arm in pair} == set(EVERY_ARM)
    assert set(study.GRIDS["embedded"]["arms"]) == set(EVERY_ARM) - set(study.LATER)


def test_a_file_with_questions_of_its_own_answers_no_other():
    """B is 25 points above A greedily and 25 below sampled, in ten seeds each: the page of
    study_greedy tests greedily first and says above. Of study_fresh the same lines get the
    families that are there for all, which test sampled accuracy."""
    lines = [line(arm, seed, digits, greedy=greedy) for seed in range(10) for arm, digits, greedy in
             (("grpo", "2222", "0011"), ("grail-correct", "1111", "0111"))]
    asked = cells.families_of("results/study_greedy.jsonl")
    assert cells.families_of("study_fresh.jsonl") is cells.FAMILIES
    text = tables.render(lines, asked)
    said = [row for row in text.splitlines() if row.startswith("- ")]
    assert said[0] == "- grail-correct ends above grpo, greedy: +25.0 [+25.0, +25.0] points."
    assert said[1].startswith("- grail-correct ends below grpo, sampled: -25.0") and len(said) == 2
    assert "| B - A | seeds | greedy | both | p | Holm, 1 | sampled | Pass@4 | curve |" in text
    assert "grail-correct - grpo" not in tables.render(lines)
    assert "minus grpo, greedy" in tables.figure(lines, asked)
    assert cells.compared(cells.by_arm(lines), "grail-correct", "grpo", "pass")["mean"] == 0


def test_power_is_of_one_measure_and_the_figure_of_all_questions():
    """Greedily the differences are 5 or 0 points in all ten seeds: their sd is 0, and so is what
    they detect. Sampled they vary, which was once in the same range. Of the questions that are
    there for all files the figure draws the first's arms, and no change of GRAIL among them."""
    def ten(arm, digits, greedy):
        return [line(arm, s, digits[s % 2] + "1" * 19, greedy=greedy + "0" * 19,
                     curve=[(0, "1" * 20)]) for s in range(10)]

    lines = [one for arm, digits, greedy in (("grpo", "11", "0"), ("grail-correct", "13", "1"),
                                             ("correct-level", "11", "0"))
             for one in ten(arm, digits, greedy)]
    asked = cells.families_of("study_greedy.jsonl")
    assert "would show a true difference of 0.0 points 4 times" in tables.render(lines, asked)
    drawn = tables.figure(lines, asked)
    assert drawn.count("<circle") == 6
    for arm in ("grpo", "grail-correct", "correct-level"):
        assert f">{arm} (10)</text>" in drawn
    general = tables.figure(lines + ten("grail", "11", "0"))
    assert ">grail (10)</text>" in general and ">grail-correct (10)</text>" not in general


def test_more_seeds_than_ten_detect_less():
    """20 seeds whose differences are 0 and 50 points in turn: sd 25.6, so (2.0930 + 0.8610) 25.6 /
    sqrt(20) by the printed quantiles of t with 19 degrees of freedom; the table says how many."""
    lines = [line(arm, seed, "0" if arm == "grpo" else "02"[seed % 2]) for seed in range(20)
             for arm in ("grpo", "grail")]
    row = cells.compared(cells.by_arm(lines), "grail", "grpo")
    assert row["detectable"] == pytest.approx((2.09302 + 0.86095) * row["sd"] / 20 ** 0.5, rel=1e-4)
    assert "| 20 seeds detect |" in tables.render(lines)
    assert "With 20 seeds an arm" in tables.render(lines)


def test_workers_take_the_visible_cards_in_turn(monkeypatch):
    """Two cards, workers 0 to 3: 0, 1, 0, 1. A card named by number, or one alone, stays."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    taken = []
    for worker in "0123":
        monkeypatch.setenv("WORKER", worker)
        taken.append(study.card("cuda"))
    assert taken == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
    assert (study.card("cuda:1"), study.card("cpu")) == ("cuda:1", "cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert study.card("cuda") == "cuda"


def test_rates_of_one_s_own(tmp_path, monkeypatch):
    """They replace the grid's in the sweep, and no other number is taken for one."""
    monkeypatch.chdir(tmp_path)
    args = SimpleNamespace(grid="embedded", model="", data="", out="", test="",
                           also="", device="cpu", arms="grpo", seeds=1, first_seed=0,
                           rates="5e-5,2.5e-5", sweep_seeds=0)
    asked, _ = study.prepare(args)
    assert {cell["rate"] for cell in study.cells_of("sweep", asked, [])} == {2.5e-5, 5e-5}
    for bad in ("", "x", "0", "1e-4,nan", "1e-4,-1"):
        args.rates = bad or ","
        with pytest.raises(BadInput, match="--rates"):
            study.prepare(args)


def test_a_cell_trains_at_the_rate_of_its_line():
    """With six digits, two rates that differ in the seventh shared a folder, and neither ran at
    what its line says. Rates as people write them look as before."""
    cells = [dict(phase="sweep", arm="grpo", rate=rate, seed=100)
             for rate in (1e-4, 1.0000001e-4, 2.5e-6)]
    given = [study.arguments(cell, setup())[-1] for cell in cells]
    assert given == ["0.0001", "0.00010000001", "2.5e-06"]
    assert len({study.folder_of(cell, {"work": "x"}) for cell in cells}) == 3


# ------------------------------------------------------------------ the arms


def setup(**changed):
    grid = study.GRIDS["embedded"]
    return {**grid, "model": "tiny", "device": "cpu", "train": "arithmetic", "also": "", **changed}


def test_fresh_seeds_begin_where_they_are_told_to():
    """Two seeds from 10 on, of which one has its line: 11 is left. The sweep's seeds stay."""
    asked = setup(arms=["grpo"], rates=[1e-4], seeds=2, first_seed=10)
    left = study.cells_of("final", asked, [line("grpo", 10, "1")])
    assert [cell["seed"] for cell in left] == [11]
    swept = study.cells_of("sweep", asked | {"rates": [1e-4, 2e-4]}, [])
    assert {cell["seed"] for cell in swept} == set(study.SWEEP_SEEDS)


@pytest.mark.parametrize("arm", EVERY_ARM)
def test_every_arm_has_the_same_budget(arm, monkeypatch):
    """The config that reaches grpo.train, arm by arm: the same but for the method's own flags. A
    default that differs in one script would be a second change in its comparison."""
    script, seen = (arms.ARMS | arms.ABLATIONS)[arm][0], []
    monkeypatch.setattr(script, "train", lambda config, *_, **__: seen.append(config))
    monkeypatch.setattr(grail.show, "last_steps", lambda *about: None)
    study.train(dict(phase="final", arm=arm, rate=4e-4, seed=3), setup())
    reference = vars(study.parse(study.flags("grpo", ""), ["--seed", "3", "--lr", "4e-4"]))
    own = {"method", "name", "scale_by_std", "credit", "reward", "snapshot_every", "eval_problems",
           "device", "save_every"}
    config = vars(seen[0])
    if arm == "grail-rounding":
        reference["tokens_per_microbatch"] = 1280
    if arm.endswith("-recipe"):
        reference |= {"loss": "constant", "num_iterations": 4, "mask_truncated": True}
    assert {k: config[k] for k in reference if k not in own} == {
        k: v for k, v in reference.items() if k not in own}
    assert config["scale_by_std"] == (arm in ("scrl", "grpo-std"))
    credit = arm if arm in ("shuffled", "oracle", "entropy") else "method"
    assert config["credit"] == credit
    assert config["reward"] == ("random" if arm == "random" else "outcome")


@pytest.fixture(scope="module")
def forward():
    """A live forward of six completions: five that take steps, three of them with A < 0, and one
    that answers at a glance, with a single token before the box."""
    model, tokenizer = problems.load_policy("tiny")
    prompt = problems.build_prompt(tokenizer, "Start with 13, times 4, minus 8, add 9.")
    rollouts = study.evaluate.sample(model, tokenizer, [prompt], samples=30, max_new_tokens=60)
    starts = [span and span[0] for span in (
        saliency.answer_span(tokenizer, ids, text)
        for ids, text in zip(rollouts.sampled, rollouts.texts))]
    rows = [i for i, start in enumerate(starts) if start and start > 4][:5] + [starts.index(1)]
    return forward_pass(model, rollouts, rows, 1.0, tokenizer=tokenizer,
                             texts=[rollouts.texts[i] for i in rows], rewards=torch.zeros(6),
                             advantages=torch.tensor([-1, -1, -1, 1.0, 1, -1]))


def credit_of(arm, forward):
    config = SimpleNamespace(reweight="wrong", activation="embeddings", as_released=False)
    chosen = (arms.ARMS | arms.ABLATIONS)[arm][2:] or [grail.credit]
    return chosen[0](config)(forward)


def place(forward):
    """(before, content) masks (b, T) of the boxes, and GRAIL's weights."""
    spans = saliency.answer_spans(forward)
    t = torch.arange(forward.completion_mask.shape[1])
    before = (t < spans[:, :1]) | (spans[:, :1] < 0)
    content = (t >= spans[:, 1:2]) & (t < spans[:, 2:3])
    return before, content, credit_of("grail", forward)


def test_level_keeps_each_completion_s_pull_and_no_more(forward):
    """The sum of a completion's weights is GRAIL's, and within it all are alike: what is left is
    the size of the step. A mean over the padded row would shrink short completions."""
    w, mask, level = place(forward)[2], forward.completion_mask, credit_of("level", forward)
    torch.testing.assert_close(level.sum(1), w.sum(1))
    assert (w[:3].std(1) > 0.1).all() and (level * ~mask).abs().max() == 0
    for row, on in zip(level, mask):
        assert row[on].max() == row[on].min()


def test_without_the_boost_only_the_content_changes(forward):
    """5 becomes 1 on the content of wrong completions' boxes and nothing else moves."""
    _, content, w = place(forward)
    changed = credit_of("grail-no-boost", forward)
    boosted = w == 5
    assert boosted[:3].any() and (content[:3] <= boosted[:3]).all()
    torch.testing.assert_close(changed, torch.where(content & boosted, 1.0, w))


def test_with_the_boost_everywhere_the_content_of_right_boxes_gets_5_too(forward):
    """Nothing else moves. The last row's box starts at its token 1, so GRAIL leaves it alone."""
    _, content, w = place(forward)
    changed = credit_of("grail-boost-all", forward)
    assert (w[3:][content[3:]] == 1).all() and content[3:].any(1).all()
    torch.testing.assert_close(changed, torch.where(content, 5.0, w))


def test_statistics_over_all_tokens_by_hand(forward):
    """Before the box: clip(1 + z / 2) with mean and std over the whole completion; from the box on
    as GRAIL. The zeros after the box pull the mean down and flatten z."""
    before, _, w = place(forward)
    changed = credit_of("grail-all-tokens", forward)
    torch.testing.assert_close(changed[3:], w[3:])
    torch.testing.assert_close(changed * ~before, w * ~before)
    spans = saliency.answer_spans(forward)
    spans[3:] = -1
    s = saliency.gradient_activation(forward, spans).double()
    for i in range(3):
        n = len(forward.sampled[i])
        logs = (s[i, :n] + 1e-8 * s[i].max()).log()
        z = (logs - logs.mean()) / logs.std(unbiased=False)
        expected = (1 + z / 2).clamp(0.5, 5)[:spans[i][0]]
        torch.testing.assert_close(changed[i, :spans[i][0]], expected.float(), rtol=1e-4, atol=1e-4)


def test_predictor_reads_one_position_before(forward):
    """With the alignment changed and all else as it was, the weights are those of the shifted
    saliency; without the change they are GRAIL's, and the ablation would compare it with itself."""
    w, changed = place(forward)[2], credit_of("grail-predictor", forward)
    assert (w - changed).abs().max() > 0.05
    spans = saliency.answer_spans(forward)
    wrong = spans.clone()
    wrong[3:] = -1
    s = released.gradient_activation(forward, wrong)
    expected = grail.grail_credit(s, forward.completion_mask, spans, forward.advantages)
    torch.testing.assert_close(changed, expected)


# ------------------------------------------------------------------ the correction for noise


def test_the_truth_comes_out_at_one_where_there_is_no_noise():
    """Effects that differ and 20,000 draws of each: true and seen ones have the same ranks, so both
    columns say 1, in a right completion and in a wrong one."""
    right = torch.tensor([10000, 18000, 4000, 5000, 12000, 11600, 2000, 2200])  # of 20,000
    verdicts = (torch.arange(20000) < right[:, None]).double()                  # (8, K)
    found = fidelity.of_the_truth([verdicts, verdicts], [1, -1], draws=5)
    assert found == pytest.approx({"size": 1, "toward": 1}, abs=0.02)


# ------------------------------------------------------------------ cells and workers


JOBS = """
import os, signal, time

def double(cell):
    if cell["n"] == 8:
        time.sleep(60)
    if cell["n"] == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if cell["n"] == 4:
        raise RuntimeError("a bug")
    if cell["n"] == 5:
        raise LookupError("five")
    return 2 * cell["n"]

def beat(cell):
    for _ in range(300):
        with open("beats", "a") as file:
            file.write(".")
        time.sleep(0.1)

if __name__ == "__main__":
    import pool
    pool.run_all([{"n": 1}], beat, 1, None, LookupError)
"""


def test_a_killed_worker_costs_its_cell_and_no_other(monkeypatch, tmp_path):
    """The operating system kills one of two workers and a bug ends another: every other cell is
    done, once, and the lost ones are named. concurrent.futures would have given up on all."""
    (tmp_path / "jobs_of_a_test.py").write_text(JOBS)  # a module without imports: workers are quick
    monkeypatch.syspath_prepend(tmp_path)
    from jobs_of_a_test import double
    found = {}
    lost = pool.run_all([{"n": n} for n in (1, 2, 3, 4, 6, 7)], double, 2,
                        lambda cell, line: found.update({cell["n"]: line}), LookupError)
    assert sorted(cell["n"] for cell in lost) == [3, 4] and found == {1: 2, 2: 4, 6: 12, 7: 14}
    with pytest.raises(LookupError, match="5: .*five"):
        pool.run_all([{"n": 5}], double, 1, None, LookupError)
    with pytest.raises(LookupError, match="three workers died"):
        pool.run_all([{"n": 3}] * 9, double, 2, None, LookupError)


def test_a_mistake_is_told_before_the_other_workers_have_ended(monkeypatch, tmp_path, capsys):
    (tmp_path / "jobs_of_a_test.py").write_text(JOBS)
    monkeypatch.syspath_prepend(tmp_path)
    from jobs_of_a_test import double
    with pytest.raises(LookupError, match="^5: five$"):
        pool.run_all([{"n": 8}, {"n": 5}], double, 2, None, LookupError)
    assert "5: five Cells that still end their step: 1." in capsys.readouterr().out


@pytest.mark.slow
def test_workers_do_not_outlive_the_one_who_started_them(tmp_path):
    """That one is killed, by a time limit say. Workers that went on would train in a folder that
    the next call of the same command removes under them."""
    (tmp_path / "jobs_of_a_test.py").write_text(JOBS)
    beats, path = tmp_path / "beats", os.pathsep.join([str(ROOT / "results"), str(tmp_path)])
    main = subprocess.Popen([sys.executable, "jobs_of_a_test.py"], cwd=tmp_path,
                            env={**os.environ, "PYTHONPATH": path})
    deadline = time.time() + 20
    while not beats.exists() and time.time() < deadline:
        time.sleep(0.05)
    main.kill()
    main.wait()
    time.sleep(2)
    heard = beats.stat().st_size
    time.sleep(0.5)
    assert 0 < heard == beats.stat().st_size


@pytest.fixture
def here(monkeypatch, tmp_path):
    """An empty folder, and cells that run in this process: a new one takes seconds to import."""
    monkeypatch.chdir(tmp_path)
    ran = []

    def run_all(cells, job, jobs, done, mistake):
        for cell in cells:
            ran.append((cell["phase"], cell["arm"], cell["rate"], cell["seed"]))
            done(cell, job(cell))
        return []

    monkeypatch.setattr(study, "run_all", run_all)
    small = dict(arms=["grpo", "shuffled"], seeds=1, rates=[1e-4, 1e-3], steps=3, every=1,
                 validation=6, curve=3, final=5, samples=2, save_every=0,
                 rate_of={"shuffled": "grpo"})
    monkeypatch.setitem(study.GRIDS, "real", study.GRIDS["real"] | small)
    monkeypatch.setattr(study, "SWEEP_SEEDS", (100,))
    for part, n in (("train", 40), ("test", 8)):
        rows = (ROOT / f"data/arithmetic_{part}.jsonl").read_text().splitlines(keepends=True)[:n]
        (tmp_path / f"{part}.jsonl").write_text("".join(rows))
    argv = ["--grid", "real", "--model", str(ROOT / "data/tiny"), "--data", "train.jsonl", "--test",
            "test.jsonl", "--out", "out.jsonl",
            "--also=--max-new-tokens 40 --prompts 2 --group 4 --warmup 1"]
    return argv, ran, tmp_path / "out.jsonl"


def study_args(argv, **other):
    """The arguments of `study.prepare` for the command line of `here`."""
    known = dict(grid="real", model=argv[3], data="train.jsonl", out="",
                 test="test.jsonl", device="cpu", arms="", seeds=0, first_seed=0, rates="",
                 sweep_seeds=0, also=argv[-1][7:])
    return SimpleNamespace(**known | other)


def gsm8k_args(argv, **other):
    """The arguments of `study.prepare` for the grid "gsm8k" with the files of `here`."""
    return study_args(argv, **{"grid": "gsm8k", "also": "", **other})


def test_the_gsm8k_grid_lists_its_cells(here):
    """9 sweep cells of GRPO; then five arms with five seeds and vine with three, all at the rate
    of that sweep."""
    argv, _, _ = here
    setup, out = study.prepare(gsm8k_args(argv))
    assert out.name == "study_gsm8k.jsonl"
    study.SWEEP_SEEDS = (100, 101, 102)  # `here` cuts them, and gives them back
    swept = study.cells_of("sweep", setup, [])
    assert {(c["arm"], c["rate"], c["seed"]) for c in swept} == set(itertools.product(
        ["grpo"], [1e-6, 3e-6, 5e-6], [100, 101, 102])) and len(swept) == 9
    wanted = dict.fromkeys(setup["arms"], 5e-6)
    point = {"samples": 4, "step": 200}
    lines = [dict(cell=cell, curve=[], final=point | {
        "right": "44" if cell["rate"] == 5e-6 else "11"}) for cell in swept]
    final = study.cells_of("final", setup, lines)
    assert {cell["arm"]: cell["rate"] for cell in final} == wanted
    seeds = {arm: [c["seed"] for c in final if c["arm"] == arm] for arm in wanted}
    assert seeds.pop("vine") == [0, 1, 2] and all(s == [0, 1, 2, 3, 4] for s in seeds.values())


def test_the_grid_of_rates_sweeps_every_arm_of_its_own(here):
    """5 arms x 3 rates with one seed, and then each arm at the rate that was its best. Two seeds of
    the sweep if asked for."""
    setup, _ = study.prepare(gsm8k_args(here[0], grid="gsm8k-rates"))
    study.SWEEP_SEEDS = (100, 101, 102)
    swept = study.cells_of("sweep", setup, [])
    arms, rates = ["grpo", "grail", "oar-g", "delta", "shuffled"], [5e-7, 1e-6, 3e-6]
    assert len(swept) == 15
    assert {(c["arm"], c["rate"], c["seed"]) for c in swept} == set(
        itertools.product(arms, rates, [100]))
    best = {"grpo": 1e-6, "grail": 5e-7, "oar-g": 1e-6, "delta": 3e-6, "shuffled": 1e-6}
    point = {"samples": 4, "step": 200}
    lines = [dict(cell=cell, curve=[], final=point | {
        "right": "44" if cell["rate"] == best[cell["arm"]] else "11"}) for cell in swept]
    final = study.cells_of("final", setup, lines)
    assert {cell["arm"]: cell["rate"] for cell in final} == best and len(final) == 25
    setup, _ = study.prepare(gsm8k_args(here[0], grid="gsm8k-rates", sweep_seeds=2))
    more = study.cells_of("sweep", setup, lines)
    assert {cell["seed"] for cell in more} == {101} and len(more) == 15


def test_the_flags_of_the_page_ask_for_the_cells_that_it_names(here):
    """The table of real_model.md, with lines in which GRAIL's best rate is 2.5e-7, and all other
    arms' is 1e-6. The last two rows are the final cells."""
    page = (ROOT / "results/real_model.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .+ \| `(--phases .+)` \|$", page, re.M)
    study.SWEEP_SEEDS = (100, 101, 102)
    best = dict.fromkeys(["grpo", "grail", "oar-g", "delta", "shuffled"], 1e-6) | {"grail": 2.5e-7}
    lines = [line(arm, 100, "4" if rate == best[arm] else "1", phase="sweep", rate=rate)
             for arm in best for rate in (2.5e-7, 5e-7, 1e-6, 3e-6)]
    asked = []
    for row in rows:
        args = study.read_flags(row.split())
        setup, _ = study.prepare(gsm8k_args(here[0], grid="gsm8k-rates", arms=args.arms,
                                            rates=args.rates, sweep_seeds=args.sweep_seeds))
        left = study.missing(args.phases.split(","), setup, lines)
        asked.append([(c["phase"], c["arm"], c["rate"], c["seed"]) for c in left])
    assert asked[0] == []
    assert asked[1] == [("sweep", "grail", rate, seed) for seed in (101, 102)
                        for rate in (2.5e-7, 5e-7)]
    assert asked[2] == [("final", "grail", 2.5e-7, seed) for seed in range(5)]
    assert asked[3] == [("final", arm, 1e-6, seed) for seed in range(5)
                        for arm in ("grpo", "oar-g", "delta", "shuffled")]


@pytest.mark.parametrize("arm", study.GRIDS["gsm8k"]["arms"])
@pytest.mark.parametrize("phase", ["sweep", "final"])
def test_a_gsm8k_cell_s_command_line_parses(here, monkeypatch, arm, phase):
    """What reaches the training loop: 200 steps of 8 x 8, at most 512 tokens, weights kept at steps
    50, 100, 150 and 200, no checkpoint before the end; vine draws 4 continuations a line."""
    argv, seen = here[0], []
    script = arms.ARMS[arm][0]
    monkeypatch.setattr(script, "train", lambda config, *_, **__: seen.append(config))
    monkeypatch.setattr(grail.show, "last_steps", lambda *about: None)
    study.train(dict(phase=phase, arm=arm, rate=3e-6, seed=1),
                study.prepare(gsm8k_args(argv))[0])
    config = seen[0]
    assert (config.prompts, config.group, config.steps, config.lr) == (8, 8, 200, 3e-6)
    assert (config.max_new_tokens, config.snapshot_every, config.save_every) == (512, 50, 0)
    assert arm != "vine" or (config.continuations, config.cut) == (4, "newline")
    assert config.credit == ("shuffled" if arm == "shuffled" else "method")


def test_studies_that_differ_share_no_folder(here, monkeypatch):
    """Other lines, data, device, model or settings: another folder, so neither a training file nor
    a checkpoint of one is ever taken for the other's. The same again, and another card of the same
    kind, find their own."""
    argv, _, _ = here
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    rows = Path("train.jsonl").read_text().splitlines(keepends=True)
    Path("other.jsonl").write_text("".join(rows[1:]))
    write(Path("solved.jsonl"), [{**json.loads(row), "solution": "by hand"} for row in rows])
    Path("held.jsonl").write_text(Path("test.jsonl").read_text().partition("\n")[2])

    def folder(**changed):
        return study.prepare(study_args(argv, **changed))[0]["work"]

    folders = [folder(), folder(out="b.jsonl"), folder(data="other.jsonl"),
               folder(data="solved.jsonl"), folder(test="held.jsonl"), folder(device="cuda"),
               folder(model=str(ROOT / "data/tiny_long/tiny")), folder(also="--warmup 3")]
    assert len(set(folders)) == len(folders)
    assert folder() == folders[0] and folder(device="cuda:1") == folders[5]
    assert folder(out=os.path.abspath("b.jsonl")) == folders[1]
    assert all(name.startswith("runs/study/real-") for name in folders)


def test_no_problem_is_in_two_parts(here, capsys):
    """20 problems of which 4 validate. The first is a test problem but for a space, two others are
    validation problems but for a line's end: 16 are trained on, and it is said why."""
    rows = [json.loads(text) for text in Path("train.jsonl").read_text().splitlines()][:20]
    held = [json.loads(text) for text in Path("test.jsonl").read_text().splitlines()]
    first = {**held[0], "problem": held[0]["problem"].replace(" ", "  ")}
    repeats = [{**row, "problem": row["problem"] + "\n"} for row in rows[-2:]]
    write(Path("more.jsonl"), [first, *repeats, *rows])
    train, validation, test = study.split("more.jsonl", "test.jsonl", 100)
    assert [len(part) for part in (train, validation, test)] == [16, 4, 8]
    assert [row["problem"] for row in train + validation] == [row["problem"] for row in rows]
    said = capsys.readouterr().out
    assert "1 problems are in --test, too" in said and "2 problems are among the valid" in said


@pytest.mark.parametrize("n, left", [(0, 0), (4, 0), (5, 4), (10, 8)])
def test_a_file_too_small_to_validate_is_refused(here, n, left):
    """Fewer than 5: a fifth is no problem, and rows[:-0] none to train on. With none but test
    problems there is nothing at all; 5 copies of one problem would validate on what they train."""
    argv, ran, _ = here
    rows = Path("train.jsonl").read_text().splitlines(keepends=True)[:n]
    Path("few.jsonl").write_text("".join(rows) + Path("test.jsonl").read_text())
    if left:
        assert len(study.split("few.jsonl", "test.jsonl", 100)[0]) == left
        return
    with pytest.raises(BadInput, match=f"--data few.jsonl: has {n} problems .* none to validate"):
        study.main([*argv, "--data", "few.jsonl"])
    write(Path("few.jsonl"), [{"problem": "Start with 1, add 1.", "answer": "2"}] * 5)
    with pytest.raises(BadInput, match="none to train on"):
        study.main([*argv, "--data", "few.jsonl"])
    assert not ran


@contextmanager
def locked(path):
    """Another process holds this lock file."""
    code = ("import fcntl, sys; file = open(sys.argv[1], 'a'); fcntl.lockf(file, fcntl.LOCK_EX); "
            "print(1, flush=True); sys.stdin.read()")
    with subprocess.Popen([sys.executable, "-c", code, path], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        try:
            yield
        finally:
            other.stdin.close()


def test_one_process_at_a_time_runs_a_study(here, monkeypatch):
    """Two would train in one folder, each remove what the other trains in, and write every line
    twice. From another folder, by a link, it is the same study; another --out is another, and a
    plan may be asked for at any time."""
    argv, ran, out = here
    Path("link.jsonl").symlink_to(out)
    monkeypatch.setattr(study, "run_all", lambda cells, *_: ran.append(cells) or cells)
    with locked("out.jsonl.lock"):
        for name in (str(out), "link.jsonl"):
            with pytest.raises(BadInput, match=f"--out {name}: another process is running"):
                study.main([*argv, "--out", name])
        assert not ran and not Path("runs").exists()
        study.main([*argv, "--plan"])
        with pytest.raises(BadInput, match="cells were lost"):
            study.main([*argv, "--out", "b.jsonl"])
    with pytest.raises(BadInput, match="cells were lost"):
        study.main(argv)
    assert len(ran) == 2 and len(list(Path("runs/study").iterdir())) == 2


def test_a_cell_that_another_process_trains_is_left_alone(here, monkeypatch):
    """A worker whose parent was killed ends its step, for minutes on a real model, and has no
    checkpoint before that. The next call may not remove its folder; later it starts again."""
    argv, _, _ = here
    setup, _ = study.prepare(study_args(argv))
    cell = dict(phase="final", arm="grpo", rate=1e-3, seed=0)
    folder = study.folder_of(cell, setup)
    folder.mkdir(parents=True)
    monkeypatch.setattr(study, "train", lambda *_: (
        folder.mkdir(), (folder / "metrics.jsonl").touch()))
    with locked(folder / "lock"):
        with pytest.raises(BadInput, match="another process is training"):
            study.train_on(cell, setup)
        assert (folder / "lock").exists()
    assert study.train_on(cell, setup) == ([], 0) and not (folder / "lock").exists()


def test_seconds_of_earlier_calls_are_those_up_to_the_checkpoint(here, monkeypatch):
    """Steps of 10, 20 and 40 seconds and a checkpoint at the second: 30. The third runs now, and
    the clock of this call has it."""
    setup, _ = study.prepare(study_args(here[0]))
    cell = dict(phase="final", arm="grpo", rate=1e-3, seed=0)
    folder = study.folder_of(cell, setup)
    (folder / "checkpoint").mkdir(parents=True)
    (folder / "checkpoint/manifest.json").write_text('{"step": 2, "files": {}}')
    steps = [{"step": step, "seconds": s} for step, s in ((1, 10), (2, 20), (3, 40))]
    ran = []
    monkeypatch.setattr(study, "train", lambda *given: (
        ran.append(given[-2:]), write(folder / "metrics.jsonl", steps)))
    assert study.train_on(cell, setup) == (steps, 30) and ran == [("--resume", folder)]


def test_gsm8k_cells_of_another_batch_or_card_are_not_mixed(here):
    argv, _, out = here
    setup = study.prepare(gsm8k_args(argv))[0]
    write(out, [line("grpo", 100, "11", phase="sweep") | {"settings": setup["settings"]}])
    assert study.load(out, setup)
    other = study.prepare(gsm8k_args(argv, also="--prompts 16"))[0]
    with pytest.raises(BadInput, match="also"):
        study.load(out, other)
    for name, value in (("card", "another card"), ("steps", 100), ("flags_of", {})):
        with pytest.raises(BadInput, match=name):
            study.load(out, {**setup, "settings": {**setup["settings"], name: value}})


@pytest.mark.parametrize("grid", ["embedded", "gsm8k"])
@pytest.mark.parametrize("flags, said", [
    (["--device", "bogus"], "--device bogus: no device"), (["--device", "cuda"], "no CUDA card"),
    (["--also=--warmup '1"], "--also --warmup '1: .*No closing quotation"),
    (["--also=--prompts 0"], "--prompts 0: must be at least 1")])
def test_what_no_cell_could_run_with_is_refused_at_once(here, monkeypatch, grid, flags, said):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for more in ([], ["--plan"]):
        with pytest.raises(BadInput, match=said):
            study.main([*here[0][:-1], "--grid", grid, *flags, *more])
    assert not Path("runs").exists()


@pytest.mark.parametrize("flags, name", [
    ("--seed 5", "seed"), ("--seed=5", "seed"), ("--see 5", "seed"), ("--se=5", "seed"),
    ("--lr 1e-3", "lr"), ("--warmup 1 --steps 160", "steps"), ("--data x", "data"),
    ("--device cuda", "device"), ("--model tiny", "model"), ("--name x", "name"),
    ("--res x", "resume"), ("--save-e 2", "save-every"), ("--sn 5", "snapshot-every"),
    ("--eval-p 3", "eval-problems"), ("--credit uniform", "credit"),
    ("--seed 5 --lr 1", "lr, --seed")])
def test_also_sets_nothing_that_a_cell_sets(here, flags, name):
    """It comes last on the command line: each cell would be another than its line says."""
    argv, ran, _ = here
    for more in ([], ["--plan"]):
        with pytest.raises(BadInput, match=f"--also {flags}: the cells set --{name} themselves"):
            study.main([*argv[:-1], f"--also={flags}", *more])
    assert not ran


def test_also_may_set_what_no_arm_of_the_grid_does(here):
    """--credit is shuffled's and --tokens-per-microbatch is grail-rounding's own; of the other arms
    they change all cells alike. A grid's own --also may be replaced; its file names it."""
    asked = "--credit uniform --tokens-per-microbatch 64 --max-new-tokens 30"
    setup, _ = study.prepare(study_args(here[0], arms="grpo,vine", also=asked))
    assert setup["settings"]["also"] == asked
    for arm, flag in (("shuffled", "credit"), ("grail-rounding", "tokens-per-microbatch")):
        with pytest.raises(BadInput, match=f"the cells set --{flag} themselves"):
            study.prepare(study_args(here[0], arms=f"grpo,{arm}", also=asked))
    assert study.prepare(gsm8k_args(here[0], also="--prompts 16"))


def test_a_final_cell_has_no_seed_of_the_sweep(here):
    """Seed 100 is the sweep's (`here` leaves it one): 99 and 100 are refused, 98 and 99 are not,
    nor are 101 and 102. The grid's own number of seeds counts, too."""
    argv, ran, _ = here
    for first, seeds in ((99, 2), (100, 0), (0, 101), (100, 1)):
        with pytest.raises(BadInput, match=f"--first-seed {first} --seeds .* seed 100 the sweep"):
            study.main([*argv, "--first-seed", str(first), "--seeds", str(seeds)])
    for first in (98, 101):
        study.main([*argv, "--first-seed", str(first), "--seeds", "2", "--plan"])
    assert not ran


def test_every_grid_takes_another_model_and_other_problems(here, capsys):
    """As --help says; "real, gsm8k:" stood there, and the embedded grid took them without a word.
    Those two and gsm8k-rates have none of their own, so each is needed."""
    argv, _, _ = here
    setup, _ = study.prepare(study_args(argv, grid="embedded", model="tiny-long"))
    settings = setup["settings"]
    assert (settings["model"], setup["test"], setup["held_out"]) == ("tiny-long", "test.jsonl", 8)
    assert len(setup["files"]["train.jsonl"].splitlines()) == 32
    grids, names = ("real", "gsm8k", "gsm8k-rates"), ("model", "data", "test")
    for grid, name in itertools.product(grids, names):
        with pytest.raises(BadInput, match=f"--grid {grid}: needs --model FOLDER --data"):
            study.prepare(study_args(argv, **{"grid": grid, name: ""}))
    with pytest.raises(SystemExit):
        study.main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("in place of the grid's") == 3 and "real, gsm8k:" not in said


def test_an_arm_named_twice_runs_once(here):
    """Two workers would train each of its cells in one folder."""
    setup, _ = study.prepare(study_args(here[0], arms="grpo,shuffled,grpo", rates="1e-4"))
    assert [cell["arm"] for cell in study.cells_of("final", setup, [])] == ["grpo", "shuffled"]


@pytest.mark.parametrize("other, name", [
    ("tiny_long/tiny", "weights_sha256"), ("another template", "prompt_sha256")])
def test_two_models_of_one_folder_name_are_not_mixed(here, other, name):
    """A run's model is always called checkpoint. With lines of one and the other in its place,
    nothing runs, and the plan says why; neither does it if the folder itself was overwritten. A
    copy of the first goes on, in a folder of its own."""
    argv, ran, out = here
    shutil.copytree(ROOT / "data/tiny", "a/checkpoint")
    shutil.copytree("a/checkpoint", "copy/checkpoint")
    shutil.copytree(ROOT / "data" / other if "/" in other else "a/checkpoint", "b/checkpoint")
    if "/" not in other:
        template = Path("b/checkpoint/chat_template.jinja")
        template.write_text("Q: " + template.read_text())

    def command(folder):
        return ["--model", folder, *argv[:2], *argv[4:]]

    study.main([*command("a/checkpoint"), "--phases", "start"])
    assert [one[0] for one in ran] == ["start"]
    study.main([*command("copy/checkpoint"), "--phases", "start"])
    shutil.rmtree("copy/checkpoint")
    shutil.copytree("b/checkpoint", "copy/checkpoint")
    for folder in ("b/checkpoint", "copy/checkpoint"):
        for more in ([], ["--plan"], ["--phases", "start"], ["--phases", "sweep"]):
            with pytest.raises(BadInput, match=f"--out out.jsonl: its lines were made with {name}"):
                study.main([*command(folder), *more])
    assert len(ran) == 1


def test_lines_from_before_the_model_s_hash_go_on(here):
    """The committed files name their model alone. What else they lack is missed."""
    argv, _, out = here
    setup, _ = study.prepare(study_args(argv))
    older = {k: v for k, v in setup["settings"].items() if k not in study.NEWER}
    write(out, [line("grpo", 100, "11", phase="sweep") | {"settings": older}])
    assert len(study.load(out, setup)) == 1
    write(out, [line("grpo", 100, "11", phase="sweep") | {
        "settings": {k: v for k, v in older.items() if k != "also"}}])
    with pytest.raises(BadInput, match="made with also None"):
        study.load(out, setup)


@pytest.mark.parametrize("phases", ["final", "start,final"])
def test_a_final_cell_without_a_rate_is_no_success(here, phases):
    """Before its sweep, `--phases final` ran nothing and ended well. One arm of two is enough: the
    other would have been left out without a word."""
    argv, ran, out = here
    settings = study.prepare(study_args(argv))[0]["settings"]
    lines = [line("grpo", 100, "11", phase="sweep", rate=rate) | {"settings": settings}
             for rate in (1e-4, 1e-3)]
    for known, asked, waiting in (([], "grpo,shuffled", "grpo, shuffled"),
                                  (lines, "grpo,delta", "delta")):
        write(out, known)
        for more in ([], ["--plan"]):
            with pytest.raises(BadInput, match=f"--phases {phases}: .* rate of {waiting} is not "):
                study.main([*argv, "--phases", phases, "--arms", asked, *more])
    study.main([*argv, "--phases", phases, "--arms", "grpo,shuffled", "--plan"])
    study.main([*argv, "--phases", phases, "--arms", "delta", "--rates", "1e-4", "--plan"])
    with pytest.raises(BadInput, match="--phases sweep: there is one learning rate, 0.0001"):
        study.main([*argv, "--phases", "sweep", "--rates", "1e-4"])
    assert not ran


def test_a_call_with_nothing_to_run_says_so(here, capsys):
    """All committed files are complete, so on a fresh copy of the project no cell runs."""
    argv, ran, out = here
    settings = study.prepare(study_args(argv))[0]["settings"]
    swept = [("sweep", rate, 100) for rate in (1e-4, 1e-3)]
    done = [line("grpo", seed, "11", phase=phase, rate=rate) | {"settings": settings}
            for phase, rate, seed in [("start", 0, 0), *swept, ("final", 1e-4, 0)]]
    write(out, done)
    said = "all cells are in out.jsonl: nothing is left to run; --out another file runs them"
    for more in ([], ["--plan"]):
        study.main([*argv, "--arms", "grpo", *more])
        assert said in capsys.readouterr().out and not ran
    write(out, done[:-1])
    study.main([*argv, "--arms", "grpo", "--plan"])
    assert said not in capsys.readouterr().out


def test_one_grid_at_a_time(capsys):
    """--quick is a grid; with --grid long beside it, the long one was left out without a word."""
    assert study.read_flags(["--quick"]).grid == study.read_flags(["--grid", "quick"]).grid
    for grid in study.GRIDS:
        with pytest.raises(SystemExit) as stopped:
            study.main(["--quick", "--grid", grid])
        assert stopped.value.code == 2
        assert "argument --grid: not allowed with argument --quick" in capsys.readouterr().err


def test_a_mistake_in_the_test_file_names_its_flag(here):
    """It was said of --data, which may be whole."""
    argv, _, _ = here
    Path("empty.jsonl").write_text("")
    write(Path("bad.jsonl"), [{"problem": "1 + 1"}])
    for file, said in (("nowhere.jsonl", "there is no such"), ("bogus", "neither a path"),
                       ("empty.jsonl", "the file is empty"), ("bad.jsonl, line 1", "no column")):
        for flag in ("--test", "--data"):
            with pytest.raises(BadInput, match=f"^{flag} {file}: {said}"):
                study.main([*argv, flag, file.partition(",")[0]])


@pytest.mark.parametrize("also, said", [
    ("--help", "asks for help"), ("-h", "asks for help"), ("--he", "asks for help"),
    ("--prompts 2 --help", "asks for help"), ("--prompts", "argument --prompts: expected one arg"),
    ("--prompts x", "argument --prompts: invalid int value: 'x'"),
    ("--no-such 1", "unrecognized arguments: --no-such 1"), ("x", "unrecognized arguments: x"),
    ("--e 3", "ambiguous option: --e could match"), ("--loss x", "argument --loss: invalid")])
def test_what_argparse_says_of_also_is_a_sentence(here, capsys, also, said):
    """It printed the help or the usage of grpo.py, and --help ended well."""
    with pytest.raises(BadInput, match=f"^--also {also}: {said}"):
        study.main([*here[0][:-1], f"--also={also}"])
    assert "usage" not in "".join(capsys.readouterr())


def test_phases_are_checked_and_cut_the_plan(here, capsys):
    argv, ran, _ = here
    study.main([*argv, "--plan", "--phases", "start,sweep"])
    assert "3 cells left" in capsys.readouterr().out and not ran
    with pytest.raises(BadInput, match="--phases all"):
        study.main([*argv, "--phases", "all"])


def test_cells_that_do_not_fit_on_the_disk_together_do_not_begin(here, monkeypatch):
    """The embedded model has 755,136 parameters of 4 bytes; 6 + 3 times that for each of 5."""
    argv, ran, _ = here
    one = 9 * 4 * 755_136
    setup = dict(weight_bytes=4 * 755_136, steps=3, every=1, work=".")

    def free(cells):
        monkeypatch.setattr(study.shutil, "disk_usage",
                            lambda _: SimpleNamespace(free=int(cells * one)))

    free(4.9)
    with pytest.raises(BadInput, match="--jobs 5: their checkpoints need 0.1 GB"):
        study.main([*argv, "--jobs", "5"])
    assert not ran
    free(5)
    study.check_disk(setup, 5)
    free(4)
    Path("checkpoint").write_bytes(bytes(one))  # of a cell that was stopped and goes on
    study.check_disk(setup, 5)


def test_a_plan_trains_nothing(here, capsys):
    """An hour on somebody's card is no part of the question how long it would take, and nothing
    is written, not even where the cells would be."""
    argv, ran, out = here
    before = sorted(Path().rglob("*"))
    study.main([*argv, "--out", "folder/out.jsonl", "--plan"])
    study.main([*argv, "--plan"])
    assert sorted(Path().rglob("*")) == before
    said = capsys.readouterr().out.splitlines()[-1]
    assert "5 cells left, for an unknown time" in said and "no cell has been timed yet" in said
    assert not ran and not out.exists()
    settings = study.prepare(study_args(argv))[0]["settings"]
    # 60 s a training and 1 s a sample; left are the start, a sweep's cell and two final ones.
    write(out, [line("grpo", 100, "11", samples=2, phase="sweep") | {
        "settings": settings, "seconds": dict(train=60, evaluate=4)}])
    study.main([*argv, "--plan", "--jobs", "1"])
    said = capsys.readouterr().out.splitlines()[-1]
    drawn = 5 * 3 + 4 * 6 + 2 * (4 * 3 * 2 + 5 * 3)
    assert f"4 cells left, about {(3 * 60 + drawn) / 60:.0f} min" in said
    assert "counted as the others: shuffled" in said and not ran


@pytest.mark.slow
def test_a_grid_end_to_end_and_once(here, capsys):
    """Sweep, choice, final cells, with the embedded model for a real one. The same command again
    runs nothing; with a line lost and half a line in its place, that cell alone; with other
    settings, it refuses instead of mixing."""
    argv, ran, out = here
    study.main(argv)
    phases = [phase for phase, *_ in ran]
    assert phases == ["start"] + ["sweep"] * 2 + ["final"] * 2
    lines = cells.read(out)
    swept = {one["cell"]["rate"]: cells.scores(one["final"]).mean() for one in lines[1:3]}
    chosen = max(swept, key=swept.get)
    assert [one["cell"]["rate"] for one in lines[3:]] == [chosen, chosen]
    final = lines[-1]
    assert [point["step"] for point in final["curve"]] == [1, 2] and final["final"]["step"] == 3
    assert [len(final["curve"][0]["right"]), len(final["final"]["right"])] == [3, 5]
    assert len(lines[1]["final"]["right"]) == 6 and len(final["reward"]) == 3
    assert "--credit shuffled" in final["command"]
    assert not any(str(path) in json.dumps(lines) for path in (ROOT, out.parent))
    assert final["tokens"] > 3 * 8 and not list(Path("runs/study").glob("*/final-*/"))
    work = study.prepare(study_args(argv, out="out.jsonl"))[0]["work"]
    asked, kept = (set(Path(f"{work}/{part}.jsonl").read_text().splitlines())
                   for part in ("train", "validation_rows"))
    assert len(asked) == 34 and len(kept) == 6 and not asked & kept

    done = len(ran)
    study.main(argv)
    assert len(ran) == done
    whole = out.read_text().splitlines(keepends=True)
    out.write_text("".join(whole[:-1]) + whole[-1][:100])
    study.main(argv)
    assert ran[done:] == [("final", "shuffled", chosen, 0)]
    again = cells.read(out)[-1]
    assert (again["final"], again["weights_sha256"]) == (final["final"], final["weights_sha256"])
    with pytest.raises(BadInput, match="also"):
        study.main(argv[:-1] + ["--also=--max-new-tokens 30"])
    capsys.readouterr()


@pytest.mark.slow
def test_a_cell_goes_on_from_its_checkpoint(here):
    """A cell that was stopped after a save continues: the same line as one that was not, though its
    first two steps ran before, and they are not run again."""
    argv, _, out = here
    settings, _ = study.prepare(study_args(argv))
    with study.alone(Path("out.jsonl"), settings):
        pass
    cell = dict(phase="final", arm="grpo", rate=1e-3, seed=0)
    unbroken = study.run_cell(cell, settings)
    folder = study.folder_of(cell, settings)
    study.shutil.rmtree(folder)
    study.train(cell, {**settings, "steps": 2, "work": "x"}, "--name", folder)
    metrics = [json.loads(text) for text in (folder / "metrics.jsonl").open()]
    before = "".join(json.dumps(one | {"seconds": 1000}) + "\n" for one in metrics)
    lost = json.dumps(metrics[0] | {"step": 3, "seconds": 7000}) + "\n"  # after the checkpoint
    (folder / "metrics.jsonl").write_text(before + lost)
    broken = study.run_cell(cell, settings)
    assert (folder / "metrics.jsonl").read_text().startswith(before)
    assert 2000 < broken["seconds"]["train"] < 2100  # else a long cell would seem a short one
    for key in ("final", "greedy", "curve", "reward", "weights_sha256", "tokens", "command"):
        assert broken[key] == unbroken[key], key
