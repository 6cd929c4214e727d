"""The statistics one by one: closed forms, and what is printed of a comparison, line by line."""
import json
import math

import pytest
import torch

import intervals
from engine.errors import BadInput
from intervals import bootstrap, difference, interval, middle95, pools, read_samples, sign_test


@pytest.mark.parametrize("t", [0, .5, 2, 30.])
def test_student_s_t_of_one_and_two_degrees_in_closed_form(t):
    assert intervals.t_outside(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t), abs=1e-12)
    assert intervals.t_outside(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), abs=1e-12)


@pytest.mark.parametrize("inside", [0, .5, .9, .95, .999])
def test_the_quantile_inverts_the_tail(inside):
    expected = math.tan(inside * math.pi / 2)
    assert intervals.t_quantile(1, inside) == pytest.approx(expected, abs=1e-9)
    assert intervals.t_quantile(1) == pytest.approx(math.tan(.475 * math.pi), abs=1e-9)


# ------------------------------------------------------------------ one score


def wilson(scores):
    """The interval of few problems, from plain floats."""
    N, m = len(scores), sum(scores) / len(scores)
    t = intervals.t_quantile(N - 1)
    n = N
    if 0 < m < 1:
        variance = sum((x - m) ** 2 for x in scores) / (N - 1)
        n = m * (1 - m) / ((variance + .1 * (m * m + (1 - m) ** 2) / N) / N)
    middle = (m + t * t / (2 * n)) / (1 + t * t / n)
    half = t * math.sqrt(m * (1 - m) / n + t * t / (4 * n * n)) / (1 + t * t / n)
    return [max(0, middle - half), min(1, middle + half)]


def found(scores):
    return interval(torch.tensor(scores, dtype=torch.float64)[:, None])[:, 0].tolist()


@pytest.mark.parametrize("scores", [
    [1., 0], [0.] * 5, [1.] * 30, [0, .5, 1, 1, .25], [1.] * 50 + [0.] * 149,
    [1.] * 9 + [0.] * 191, [0.] * 9 + [1.] * 191])
def test_few_problems_or_few_of_a_kind_get_wilson_s_interval(scores):
    assert found(scores) == pytest.approx(wilson(scores), abs=1e-9)


@pytest.mark.parametrize("right", [10, 100, 190])
def test_from_200_problems_and_10_of_each_kind_on_it_is_the_bootstrap(right):
    scores = torch.tensor([1.] * right + [0.] * (200 - right)).double()[:, None]
    expected = middle95(bootstrap(scores))[:, 0].tolist()
    assert found(scores[:, 0].tolist()) == expected
    assert expected != pytest.approx(wilson(scores[:, 0].tolist()), abs=1e-6)


def test_one_problem_says_nothing_and_columns_are_on_their_own():
    assert found([1.]) == [0, 1]
    scores = torch.tensor([[1.] * 100 + [0.] * 100, [1.] * 3 + [0.] * 197]).double().T
    both = interval(scores)
    for column in (0, 1):
        torch.testing.assert_close(both[:, column], interval(scores[:, [column]])[:, 0])


def test_each_benchmark_is_drawn_from_on_its_own():
    """Scores that are equal within a benchmark leave nothing to chance, if none is mixed up."""
    values = torch.tensor([1.] * 3 + [5.] * 2 + [9.] * 4).double()[:, None]
    draws = bootstrap(values, [3, 2, 4], 300)
    assert draws.shape == (300, 1)
    torch.testing.assert_close(draws, torch.full((300, 1), 49 / 9).double())
    assert bootstrap(values).shape == (2000, 1) and bootstrap(values).std() > .5
    assert bootstrap(values, None, 101).shape == (200, 1)  # by the hundred
    assert torch.equal(bootstrap(values), bootstrap(values))  # the same draws in every call


def test_draws_are_as_wide_as_student_s_interval():
    """The mean of n draws has the variance s^2 / n, widened by t / z."""
    values = torch.tensor([0., 1] * 20).double()[:, None]
    t = intervals.t_quantile(39)
    expected = t / intervals.Z * float(values.std()) / math.sqrt(40)
    assert float(bootstrap(values).std()) == pytest.approx(expected, rel=.06)
    assert float(bootstrap(values).mean()) == pytest.approx(.5, abs=.01)


def test_the_middle_95_percent_by_hand():
    draws = torch.arange(1001.).double()[:, None] * torch.tensor([[1., -2]]).double()
    assert middle95(draws).tolist() == [[25, -1950], [975, -50]]


# ------------------------------------------------------------------ A against B


def test_single_seeds_differ_by_the_bootstrap_of_paired_differences():
    a, b = torch.tensor([[0., 1, 1, 0]]).double(), torch.tensor([[1., 1, .5, 0]]).double()
    assert torch.equal(difference(a, b), bootstrap(torch.tensor([1., 0, -.5, 0]).double()[:, None]))
    assert (difference(a, a) == 0).all()


def test_seeds_are_drawn_by_student_s_t():
    """Seeds 0 and .2 on either side, no problem differs: the draws are b - a + t sqrt(.01 + .01),
    with 2 degrees of freedom, t = 4.30. With 1 it would be 12.7, with 3 it would be 3.18."""
    a = torch.tensor([[0.], [.2]]).double().expand(2, 30)
    draws = difference(a, a + .5)
    low, high = middle95(draws)[:, 0].tolist()
    assert (high - low) / 2 == pytest.approx(4.3027 * math.sqrt(.02), rel=.2)
    assert float(draws.median()) == pytest.approx(.5, abs=.02)


@pytest.mark.parametrize("better, worse", [(0, 0), (1, 0), (5, 0), (5, 5), (9, 2), (3, 8)])
def test_the_sign_test_by_enumeration(better, worse):
    """Of all 2^n coins, those at least as lopsided; differences of rounding are ties."""
    n = better + worse
    coins = [bits.bit_count() for bits in range(2**n)]
    p = sum(abs(heads - n / 2) >= abs(better - n / 2) for heads in coins) / 2**n
    ties = [0, 1e-12, -1e-12, 1e-9, -1e-9]
    d = torch.tensor([.25] * better + [-.5] * worse + ties, dtype=torch.float64)
    assert sign_test(d) == (better, worse, pytest.approx(p))


def test_problems_needed_by_hand():
    """(z at 97.5 % + z at 80 %)^2 s^2 / .01^2, rounded up: s^2 = .5 of +-1 and twice 0, 2/3."""
    d = torch.tensor([1., -1, 0, 0]).double()
    assert intervals.problems_needed(d) == math.ceil((1.959964 + .841621) ** 2 * 1e4 * 2 / 3)


# ------------------------------------------------------------------ files


def test_pools_by_hand():
    assert pools({"a": 3}) == [("a", ["a"], [1.0])]
    assert pools({"a": 3, "b": 1}) == [
        ("a", ["a"], [1.0]), ("b", ["b"], [1.0]),
        ("average by benchmark", ["a", "b"], [.5, .5]),
        ("average by problem", ["a", "b"], [.75, .25])]


def line(**record):
    return json.dumps(record) + "\n"


def test_only_whole_lines_and_whole_problems_are_read(tmp_path):
    path, header = tmp_path / "x.jsonl", dict(data="a", samples=2)
    whole = (line(header=header) + line(data="a", id="1", sample=0, strict=True)
             + line(data="a", id="2", sample=0, strict=False)
             + line(data="a", id="1", sample=1, strict=False))
    path.write_text(whole + '{"data": "a", "id": "2", "sam')
    records, size = read_samples(path)
    assert size == len(whole) and list(records) == ["a"] and records["a"][0] == header
    assert {i: [r["strict"] for r in rows] for i, rows in records["a"][1].items()} == {
        "1": [True, False]}
    for bad in ("nonsense\n", line(data="b", id="1", sample=0), line(data="a", id="1"), "[1]\n"):
        path.write_text(whole + bad)
        with pytest.raises(BadInput, match="x.jsonl, line 5: not a sample of evaluate.py"):
            read_samples(path)


ROW = dict(name="gsm8k", problems=100, a=.5, b=.75, low=-.2, high=.6, difference=.25, better=7,
           worse=3, p=.34375, needed=1234, verdict="not distinguishable")


@pytest.mark.parametrize("args, a, b", [
    (["x", "y"], ["x"], ["y"]), (["x", "vs", "y"], ["x"], ["y"]),
    (["x", "y", "vs", "z"], ["x", "y"], ["z"]), (["x", "vs", "y", "z"], ["x"], ["y", "z"])])
def test_a_comparison_is_printed_in_per_cent(args, a, b, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(intervals, "compare", lambda *sides: asked.append(sides) or [ROW])
    intervals.print_comparison(args)
    lines = capsys.readouterr().out.splitlines()
    assert asked == [(a, b)] and lines[:2] == [f"A: {' '.join(a)}", f"B: {' '.join(b)}"]
    assert lines[4].split() == "gsm8k 100 50.0 75.0 +25.0 [-20.0, +60.0]".split()
    assert lines[5] == "  not distinguishable; better/worse 7/3; sign p 0.344; needed 1234"
    # Every column ends where its title ends.
    for title, value in (("problems", "100"), ("B - A", "+25.0"), ("95 % interval", "+60.0]")):
        assert lines[3].index(title) + len(title) == lines[4].index(value) + len(value)
    about = " ".join(" ".join(lines).split())
    single = ("one run each: this compares two checkpoints, not two methods; give several seeds "
              "per side")
    assert (single in about) == (len(a) == len(b) == 1)
    assert ("one run of A:" in about) == (len(a) == 1 < len(b))
    assert ("one run of B:" in about) == (len(b) == 1 < len(a))


def test_a_comparison_fits_in_80_columns_whatever_it_says(monkeypatch, capsys):
    """A benchmark's name can be a file's; a p of 0.0000001 is not 0."""
    row = ROW | dict(name="n" * 99, problems=123456, a=1.0, b=1.0, low=-1.0, high=1.0, p=1e-9,
                     difference=-1.0, better=12345, worse=12345, needed=123456)
    monkeypatch.setattr(intervals, "compare", lambda *sides: [row])
    files = [f"runs/evaluate/a-{seed}.jsonl" for seed in range(9)]
    intervals.print_comparison([*files, "vs", *files])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and any("sign p <0.001;" in line for line in lines)
    assert any("123456 " in line and "100.0" in line for line in lines)
    assert "9 runs of A, 9 of B: the interval is over problems and seeds" in lines


ASKED = dict(first_prompt="Solve: 1+1?", prompts_sha256="p", tokens_sha256="t", first_ids=[5, 6])
WAYS = [
    ({}, ""), ({"first_ids": [7]}, ""), ({"temperature": 2}, ""),
    ({"first_prompt": "Solve: 1+2?"},
     "the first prompt was ...'Solve: 1+1?', and is now ...'Solve: 1+2?' (chat template?)"),
    ({"first_prompt": "Solve: 1+1?!", "prompts_sha256": "q"},
     "the first prompt was ...'Solve: 1+1?', and is now ...'Solve: 1+1?!' (chat template?)"),
    ({"prompts_sha256": "q", "tokens_sha256": "u"},
     "the prompts differ, though not the first (prompts_sha256 'p' and 'q')"),
    ({"tokens_sha256": "u", "first_ids": [1, 2, 3]},
     "another tokenizer wrote the same prompts in other tokens (the first in 2, now in 3, "
     "tokens_sha256 't' and 'u')"),
    ({"tokens_sha256": None, "first_ids": None},
     "another tokenizer wrote the same prompts in other tokens (the first in 2, now in 0, "
     "tokens_sha256 't' and None)")]


@pytest.mark.parametrize("changes, said", WAYS)
def test_the_way_of_asking_that_differs_is_said(changes, said):
    assert intervals.asked_differently(ASKED, ASKED | changes) == said


@pytest.mark.parametrize("at", [0, 20, 21, 100])
def test_of_long_prompts_the_place_where_they_part_is_shown(at):
    """Sixty characters, of which up to twenty stand before the first that differs."""
    a, b = ("".join(chr(65 + i % 26) for i in range(at)) + mark + "." * 100 for mark in "xy")
    start = max(0, at - 20)
    said = intervals.asked_differently({"first_prompt": a}, {"first_prompt": b})
    assert said == (f"the first prompt was ...{a[start:start + 60]!r}, and is now "
                    f"...{b[start:start + 60]!r} (chat template?)")


def written(path, *benchmarks):
    """A file of samples; a benchmark is (name, {id: verdicts}, what else its header says)."""
    lines = []
    for name, rows, more in benchmarks:
        n = len(next(iter(rows.values())))
        lines.append(line(header=dict(data=name, samples=n, **more)))
        lines += [line(data=name, id=i, sample=j, strict=right)
                  for i, verdicts in rows.items() for j, right in enumerate(verdicts)]
    path.write_text("".join(lines))
    return str(path)


NOTED = ["problems", "data_sha256", "temperature", "top_p", "top_k", "max_new_tokens", "thinking",
         "code_sha256"]


@pytest.mark.parametrize("what", NOTED)
def test_a_setting_that_differs_is_noted_and_nothing_else(what, tmp_path, capsys):
    rows, more = {"1": [True], "2": [False]}, ASKED | dict.fromkeys(NOTED, 3)
    a = written(tmp_path / "a", ("d", rows, more), ("e", rows, more))
    b = written(tmp_path / "b", ("d", rows, more), ("e", rows, more | {what: 4, "seed": 9}))
    intervals.compare([a, a], [a, b])
    assert capsys.readouterr().out == f"note: e: {what} is [3, 3, 3, 4]\n"


def test_one_model_twice_is_no_second_seed(tmp_path, capsys):
    rows = {"1": [True], "2": [False]}
    a, b, c = (written(tmp_path / name, ("d", rows, ASKED | {"weights_sha256": name}))
               for name in "abc")
    intervals.compare([a, b], [c])
    assert capsys.readouterr().out == ""
    for side in ([a, b, a], [c]), ([a], [c, c]):
        intervals.compare(*side)
        assert "no training seeds" in " ".join(capsys.readouterr().out.split())


def test_files_that_were_asked_in_two_other_ways_get_one_note(tmp_path, capsys):
    rows = {"1": [True], "2": [False]}
    files = [written(tmp_path / str(i), ("d", rows, ASKED | changes))
             for i, changes in enumerate(({}, {"first_prompt": "b"}, {"first_prompt": "a"}))]
    intervals.compare(files[:1], files[1:])
    assert " ".join(capsys.readouterr().out.split()) == (
        "note: d: the files were asked differently: the first prompt was ...'Solve: 1+1?', and is "
        "now ...'a' (chat template?)")
    intervals.compare(files[1:2], files[1:2])
    assert capsys.readouterr().out == ""


def test_notes_fit_in_80_columns_and_stand_before_the_table(tmp_path, capsys):
    """Six files, each with a hash of its own; a header that somebody wrote by hand."""
    rows = {"1": [True], "2": [False]}
    files = [written(tmp_path / str(i), ("d", rows, ASKED | {
        "code_sha256": f"{i:016x}", "first_prompt": "word " * i, "top_k": [i]})) for i in range(6)]
    intervals.print_comparison([*files[:3], "vs", *files[3:]])
    lines = capsys.readouterr().out.splitlines()
    notes = [i for i, text in enumerate(lines) if text.startswith("note: d: ")]
    head = next(i for i, text in enumerate(lines) if text.startswith("benchmark"))
    assert len(notes) == 3 and max(notes) < head and lines[head + 1].startswith("d ")
    assert all(len(text) <= 80 for text in lines if str(tmp_path) not in text)


def test_only_what_every_file_has_is_compared(tmp_path):
    """Two samples here and one there; a benchmark that one lacks, one with a single problem in
    common, problems that one lacks: two benchmarks are left, of three problems and of two."""
    both = {"1": [True, False], "2": [True, True], "3": [False, False], "4": [True, True]}
    few = {"1": [True, True], "5": [False, False]}
    a = written(tmp_path / "a", ("x", both, {}), ("y", few, {}), ("z", both, {}), ("w", both, {}))
    b = written(tmp_path / "b", ("z", {"2": [False], "9": [True], "4": [True]}, {}),
                ("y", {"1": [True], "6": [True]}, {}),
                ("x", {"3": [True], "2": [True], "1": [True]}, {}))
    rows = intervals.compare([a], [b])
    assert [(r["name"], r["problems"], r["better"], r["worse"]) for r in rows] == [
        ("x", 3, 2, 0), ("z", 2, 0, 1), ("average by benchmark", 5, 2, 1),
        ("average by problem", 5, 2, 1)]
    assert [r["a"] for r in rows] == pytest.approx([.5, 1, .75, 3.5 / 5])
    assert [r["b"] for r in rows] == pytest.approx([1, .5, .75, 4 / 5])
    assert [r["difference"] for r in rows] == pytest.approx([.5, -.5, 0, .1])


@pytest.mark.parametrize("args", [["x"], ["x", "y", "z"], ["vs", "x"], ["x", "vs"]])
def test_sides_that_are_not_two_are_refused(args):
    with pytest.raises(BadInput, match="--compare: give two files"):
        intervals.print_comparison(args)


def test_a_verdict_needs_the_whole_interval_on_one_side(tmp_path, capsys):
    """B right on all 30 where A is wrong, the other way round, and equal; the note names what
    differs between the files."""
    def write(name, right, **header):
        path = tmp_path / name
        rows = [line(data="d", id=str(i), sample=0, strict=right) for i in range(30)]
        path.write_text(line(header=dict(data="d", samples=1, **header)) + "".join(rows))
        return str(path)

    good, bad = write("good", True, temperature=1.0), write("bad", False, temperature=0.5)
    for a, b, verdict, p in ((bad, good, "B better", 2 / 2**30), (good, bad, "B worse", 2 / 2**30),
                             (good, good, "not distinguishable", 1)):
        capsys.readouterr()
        row, = intervals.compare([a], [b])
        assert row["verdict"] == verdict and row["p"] == pytest.approx(p)
        assert (row["name"], row["problems"], row["difference"]) == ("d", 30, (b is good)
                                                                     - (a is good))
        assert ("note: d: temperature is" in capsys.readouterr().out) == (a is not b)
    with pytest.raises(BadInput, match=f"--compare {tmp_path}/no: No such file"):
        intervals.compare([good], [f"{tmp_path}/no"])
