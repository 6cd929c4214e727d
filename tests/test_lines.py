"""What a run prints: steps of one line each that fit, a legend once, and no number of nothing."""
import itertools
import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

import evaluate
import grpo
import show
from engine import flags, lines, runs

USUAL = dict(step=7, reward=0.5, informative=11, groups=16, length=31.4, grad_norm=0.25, ess=0.9,
             entropy=0.2, weight_mean=1.07, weight_min=0.5, weight_max=5.0, seconds=1.23,
             truncated=0.125, clipped=0.01, top10=0.2, gap_mean=1e-7, gap_max=5e-6,
             tokens_per_second=1234.5, peak_gb=0.0, fallback=0.25)


def width(columns):
    return len(lines.heading(columns))


def test_a_step_is_one_line_of_at_most_80_columns():
    """The seven figures, each below its head; whatever numbers a run that went wrong may give."""
    columns = lines.columns_for(80, {}, USUAL)
    assert [column.head for column in columns] == ["reward", "informative", "length", "grad",
                                                   "weight", "seconds"]
    assert width(columns) <= 80
    text = lines.line(columns, USUAL)
    assert text.split() == "step 7 0.500 11/16 31 0.250 1.07 [0.50, 5.00] 1.2".split()
    for column, found in zip(columns, ("0.500", "11/16", "31", "0.250", "5.00]", "1.2")):
        end = lines.heading(columns).index(column.head) + len(column.head)
        assert text[:end].endswith(found)
    sizes = (0.0, 0.0004, 1.0, 12.34, 999.99, 123456.7, 3.2e9)
    for large, small in itertools.product(sizes, sizes):
        odd = USUAL | dict(grad_norm=large, weight_mean=small, weight_max=large, weight_min=small,
                           length=small, seconds=large, reward=small, informative=2048, groups=2048)
        assert len(lines.line(columns, odd)) == width(columns)
    assert len(lines.line(columns, USUAL | dict(step=9999))) <= 80


def test_a_number_keeps_the_decimals_that_fit():
    for x, shown in ((0.25, "0.250"), (123.4567, "123.457"), (1234.567, "1234.57"),
                     (123456.7, "123457"), (1234567.8, "1234568"), (12345678.0, "1e+07"),
                     (-1234.567, "-1234.6"), (float("nan"), "nan"), (float("inf"), "inf")):
        assert lines.number(x, 7, 3) == shown


@pytest.mark.parametrize("columns", [80, 100, 120, 160, 200])
def test_a_wider_terminal_has_more_and_none_has_less(columns):
    """All of it in 200: the method's own figures first, for no other file has them on a line."""
    own = {"compliance": 0.5, "tokens": 123456}
    metrics = USUAL | own
    found = lines.columns_for(columns, own, metrics)
    assert width(found) <= columns and found[:6] == lines.NARROW
    heads = [column.head for column in found]
    assert heads == [*[column.head for column in lines.NARROW], "compliance", "tokens", "fallback",
                     *[column.head for column in lines.WIDE]][:len(heads)]
    assert columns < 200 or len(heads) == 6 + 3 + len(lines.WIDE)
    assert len(lines.line(found, metrics)) == width(found)


def test_the_legend_is_short_and_fits():
    """A line for each of the columns that are shown, and one for the sign of nothing."""
    columns = lines.columns_for(80, {}, USUAL)
    legend = lines.legend(columns, 80).splitlines()
    assert len(legend) == len(columns) + 1 and max(map(len, legend)) <= 80
    assert [text.split()[0] for text in legend] == [*[column.head for column in columns], "-"]
    own = {"compliance": 1.0}
    wide = lines.legend(lines.columns_for(250, own, USUAL | own), 80)
    assert max(map(len, wide.splitlines())) <= 80


def test_what_was_not_trained_has_no_figure():
    """No group teaches: no gradient, no weights. Under a KL penalty the gradient is one, and the
    entropy is known; the weights still are of no token."""
    columns = lines.columns_for(250, {"mine": 0.5}, USUAL | {"mine": 0.5})
    nothing = USUAL | dict(informative=0, ess=0.0, entropy=0.0, grad_norm=0.0, clipped=0.0,
                           gap_mean=0.0, gap_max=0.0, mine=0.5, fallback=0.0)

    def cells(metrics):
        return {column.head: column.shown(metrics) for column in columns}

    found = cells(nothing)
    assert {head for head, text in found.items() if text == "-"} == {
        "grad", "weight", "fallback", "entropy", "clipped", "ess", "top10", "gap", "GB"}
    assert found["reward"] == "0.500" and found["mine"] == "0.50"
    pulled = cells(nothing | dict(entropy=0.3, grad_norm=0.01))
    assert {head for head, text in pulled.items() if text == "-"} == {
        "weight", "fallback", "ess", "top10", "GB"}


@pytest.mark.parametrize("logs", [True, False])
def test_a_first_step_that_trains_nothing_hides_no_figure_of_the_credit(logs):
    """The credit was not asked in that step, so nobody knows what it logs. If it turns out to log
    nothing, as GRPO's, the column stays empty."""
    first = {k: v for k, v in USUAL.items() if k != "fallback"} | dict(informative=0, ess=0.0)
    columns = lines.columns_for(250, {}, first)
    then = {k: v for k, v in USUAL.items() if logs or k != "fallback"}
    for metrics, shown in ((first, "-"), (then, "0.25" if logs else "-")):
        cells = {column.head: column.shown(metrics) for column in columns}
        assert cells["fallback"] == shown
    assert logs or "fallback" not in {c.head for c in lines.columns_for(250, {}, then)}


@pytest.fixture
def short(tmp_path, monkeypatch):
    """Flags of a run that takes a moment; here is a folder of its own, and 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    rows = [{"problem": f"Start with {i}, add 1.", "answer": str(i + 1)} for i in range(8)]
    Path("own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["--data", "own.jsonl", "--eval-problems", "0", "--prompts", "2", "--group", "2",
            "--max-new-tokens", "8", "--pages-every", "0", "--save-every", "0"]


def test_all_that_a_run_prints_fits(short, capsys):
    """But for the prompt, which is the model's text to the letter. The legend stands there once,
    the heads again after twenty steps."""
    grpo.main([*short, "--steps", "22"])
    out = capsys.readouterr().out.splitlines()
    assert max(len(text) for text in out if not text.startswith("first prompt")) <= 80
    assert sum(text.startswith("step ") for text in out) == 22
    assert sum("norm of the gradient" in text for text in out) == 1
    heads = [i for i, text in enumerate(out) if text.split()[:2] == ["reward", "informative"]]
    assert len(heads) == 2 and heads[1] - heads[0] == 21
    log = Path("runs/grpo-tiny-own-seed0/metrics.jsonl")
    assert any(str(log) in text for text in out)
    told = (Path(__file__).parent.parent / "docs/log.md").read_text(encoding="utf-8")
    logged = json.loads(log.read_text().splitlines()[0])
    assert logged.keys() <= set(re.findall(r"`(\w+)`", told))


def test_the_next_commands_name_the_run_s_own_data(tmp_path):
    """A trainer of GSM8K was told to evaluate on arithmetic. Of a file of one's own the problems
    that were trained on are no test: the held-out ones are named."""
    def commands(*argv):
        return runs.next_commands(tmp_path, flags.parse(flags.flags("grail", ""), list(argv)))

    at = f"--model {tmp_path}/checkpoint"
    assert commands() == ["python grpo.py", f"python evaluate.py {at} --data arithmetic"]
    assert commands("--model", "Qwen/Q", "--seed", "3", "--thinking") == [
        "python grpo.py --model Qwen/Q --seed 3 --thinking",
        f"python evaluate.py {at} --data gsm8k --max-new-tokens 1024 --thinking"]
    (tmp_path / "held_out.jsonl").write_text("x")
    baseline, tries = commands("--data", "my set.jsonl")
    assert baseline == "python grpo.py --data 'my set.jsonl'"
    own = ["--lr", "5e-05", "--prompts", "2", "--scale-by-std", "--credit", "shuffled"]
    baseline, _ = commands(*own)  # as the run was, but for the credit
    assert baseline == "python grpo.py --lr 5e-05 --prompts 2 --scale-by-std"
    dashed, _ = commands("--model=-m", "--data=-d.jsonl")
    assert dashed == "python grpo.py --model=-m --data=-d.jsonl"
    asked = evaluate.read_flags(shlex.split(tries)[2:])
    assert Path(asked.data) == tmp_path / "held_out.jsonl"


def test_help_gives_the_demonstration_s_defaults(capsys, monkeypatch):
    """--steps 200 stood there, and `python grpo.py` did 40."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        grpo.main(["--help"])
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    said = dict(re.findall(r"--([\w-]+) [A-Z_]+ (?:(?!\(default|--).)*\(default: \S+; without "
                           r"--model: (\S+)\)", " ".join(out.split())))
    parser = flags.flags("grpo", "")
    own = {name.replace("_", "-"): str(value) for name, value in flags.DEMO.items()
           if parser.get_default(name) != value}
    assert said == own and len(own) > 8


def test_resuming_with_steps_that_were_done_says_so(short, capsys):
    """And keeps what was done: the next --resume, without --steps, does not go back either."""
    grpo.main([*short, "--steps", "2", "--name", "run"])
    for steps in ("1", "2"):
        capsys.readouterr()
        grpo.main(["--resume", "run", "--steps", steps])
        out = capsys.readouterr().out
        said = f"--steps {steps}: run has done 2 steps, so none is left to train and none is undone"
        assert said in " ".join(out.split())
        assert "--resume run --steps 4" in out and "\nstep " not in out
        assert json.loads(Path("run/config.json").read_text())["steps"] == 2
    grpo.main(["--resume", "run", "--steps", "3"])
    out = capsys.readouterr().out
    assert "is left to train" not in out and "step    3" in out


def test_a_run_that_goes_on_has_no_accuracy_after_the_training(short, monkeypatch):
    """What was measured at step 1 stood on the page of step 2, and in the summary of a run that was
    stopped there."""
    scores, page = iter((0.125, 0.25, 0.375)), show.of_step
    monkeypatch.setattr(grpo, "measure", lambda *_: dict.fromkeys(
        ("sampled", "greedy"), {"accuracy": next(scores)}))

    def stopped(run, *more):
        page(run, *more)
        run.signal = 2

    def summary():
        found = json.loads(Path("run/summary.json").read_text())
        return found["step"], *(found[when] and found[when]["sampled"]["accuracy"]
                                for when in ("before", "after"))

    grpo.main([*short, "--steps", "1", "--name", "run", "--pages-every", "1"])
    assert summary() == (1, 0.125, 0.25)
    monkeypatch.setattr(show, "of_step", stopped)
    with pytest.raises(SystemExit):
        grpo.main(["--resume", "run", "--steps", "3"])
    assert summary() == (2, 0.125, None)
    said = Path("run/pages/step_00002.html").read_text(encoding="utf-8")
    assert "before the training 12.5 %" in said and "after the training" not in said
    grpo.main(["--resume", "run", "--steps", "2"])
    assert summary() == (2, 0.125, 0.375)


def test_the_demonstration_is_saved_while_it_runs():
    """Killed at step 3, it goes on from step 2."""
    config = SimpleNamespace(**vars(flags.parse(flags.flags("grail", ""), [])))
    assert 1 <= config.save_every <= 2
