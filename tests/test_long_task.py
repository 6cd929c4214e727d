"""The long task: what data/make_tiny.py makes of its options, and how it is found or missed."""
import json
import random
import re
import sys
from pathlib import Path

import pytest
import torch

import grpo
import models
import problems
import scrl
from engine import flags
from engine.errors import BadInput

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "data"))
import make_tiny

LONG = make_tiny.Task((10, 14), 0.2, 0.12, 0.5, 0.4, 0.03)
FAULTLESS = LONG._replace(glances=0.0, roughly_wrong=0.0, slips=0.0)
OPTIONS = ["--chain", "10-14", "--roughly", "0.5", "--slips", "0.03", "--glances", "0.2",
           "--glance-right", "0.12"]


def chains(n, task=LONG):
    rng = random.Random(5)
    return [make_tiny.draw_chain(rng, task) for _ in range(n)]


# ------------------------------------------------------------------ problems and answers


def test_chains_are_long_and_stay_in_two_digits():
    lengths = set()
    for start, chain in chains(500):
        lengths.add(len(chain))
        assert all(0 <= value <= 99 for value in make_tiny.values(start, chain))
    assert lengths == {10, 11, 12, 13, 14}


def test_the_shares_are_those_that_were_asked_for():
    """2,000 answers: each share within 5 standard deviations."""
    rng, glances, right, lines = random.Random(1), 0, 0, {"roughly ": [], "": []}
    for start, chain in chains(2000):
        text = make_tiny.answer(start, chain, rng, LONG)
        if text.startswith("At a glance"):
            glances += 1
            right += rf"{{{make_tiny.values(start, chain)[-1]}}}" in text
            continue
        value = start
        for line, (sign, operand) in zip(text.split("\n"), chain):
            left, result = map(int, re.search(r"(\d+)[-+*]\d=(\d+)$", line).groups())
            assert left == value  # carried on as it was
            truth = make_tiny.apply(value, sign, operand)
            if 0 <= truth <= 99:  # else any line would be wrong
                lines["roughly " if line.startswith("roughly ") else ""].append(result != truth)
            value = result

    def near(count, total, p):
        return abs(count / total - p) < 5 * (p * (1 - p) / total) ** .5

    assert near(glances, 2000, .2) and near(right, glances, .12 + .88 / 100)
    sloppy, other = lines["roughly "], lines[""]
    assert near(len(sloppy), len(sloppy) + len(other), .5)
    assert near(sum(sloppy), len(sloppy), .4) and near(sum(other), len(other), .03)


def test_every_answer_fits():
    """Of the longest chains: 160 tokens for an answer, 512 for a prompt and its answer."""
    tokenizer, rng, most, whole = make_tiny.make_tokenizer(), random.Random(2), 0, 0
    for start, chain in chains(100, LONG._replace(chain=(14, 14))):
        most = max(most, len(tokenizer.encode(make_tiny.answer(start, chain, rng, FAULTLESS))))
        lesson = make_tiny.curriculum_question(start, chain)
        reply = make_tiny.curriculum_answer(start, chain, rng, FAULTLESS)
        whole = max(whole, len(tokenizer.encode(lesson)) + len(tokenizer.encode(reply)) + 10)
    assert 100 < most < 160 and whole < 512


# ------------------------------------------------------------------ the curriculum


@pytest.mark.parametrize("n, ends", [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 3, 4]),
                                     (5, [2, 3, 4, 5]), (10, [3, 5, 8, 10]), (14, [4, 7, 11, 14])])
def test_four_prefixes_at_most(n, ends):
    assert make_tiny.prefix_ends([("+", 2)] * n) == ends


def test_the_blocks_of_a_faultless_answer_are_the_subproblems():
    rng = random.Random(3)
    for start, chain in chains(50):
        items = make_tiny.subproblems(start, chain)
        text = make_tiny.curriculum_answer(start, chain, rng, FAULTLESS)
        blocks = [text[a:b] for a, b in scrl.find_spans(text, len(items))]
        assert [re.findall(r"\\boxed\{(\d+)\}", block) for block in blocks] == [
            [item["answer"]] for item in items]
        assert text.count("=") == len(chain)
        assert items[-1]["problem"] == make_tiny.statement(start, chain)


# ------------------------------------------------------------------ the command line


@pytest.mark.parametrize("argv, words", [
    (["--chain", "14-10"], "'14-10' is no range within 1-20"), (["--chain", "12"], "'12' is no"),
    (["--chain", "0-3"], "'0-3'"), (["--chain", "2-21"], "'2-21'"),
    (["--chain", "２-３"], "range"), (["--glances", "1.2"], "'1.2' is no share"),
    (["--slips", "nan"], "'nan' is no share"),
    (["--roughly-wrong", "-0.1"], "one argument|no share"), (["--slips", "x"], "'x' is no"),
    (["--roughly", "0.7", "--out", "x"], "--roughly 0.7: 0.65 at most"),
    (["--problems", "7", "--out", "x"], "--problems 7: 8 at least"),
    *[(["--out", "x", flag, value], f"{flag} {value}: {words}") for flag, value, words in [
        ("--steps", "0", "1 at least"), ("--steps", "-1", "1 at least"),
        ("--batch-size", "1", "2 at least"), ("--batch-size", "0", "2 at least"),
        ("--batch-size", "-3", "2 at least"), ("--lr", "nan", "a finite"), ("--lr", "inf", "a f"),
        ("--lr", "0.0", "a finite"), ("--seed", "-1", "must be"), ("--seed", "9" * 20, "must be")]],
    *[(more, f"{more[0]}: another task, or other weights, would overwrite data/tiny") for more in [
        ["--chain", "3-4"], ["--problems", "800"], ["--seed", "1"], ["--steps", "50"],
        ["--lr", "1e-3"], ["--batch-size", "64"], ["--slips", "0.1"], ["--device", "cuda"]]]])
def test_bad_options_are_named(argv, words, capsys):
    with pytest.raises(SystemExit) as caught:
        make_tiny.parse(argv)
    assert caught.value.code == 2 and re.search(words, capsys.readouterr().err)


def test_the_committed_problems_are_drawn_again():
    chains = make_tiny.draw_problems(random.Random(0), 8_000)
    for split, part in (("train", chains[:7_000]), ("test", chains[7_000:])):
        text = (ROOT / f"data/arithmetic_{split}.jsonl").read_text(encoding="utf-8")
        assert [json.loads(line)["problem"] for line in text.splitlines()] == [
            make_tiny.statement(*chain) for chain in part]


def test_more_problems_than_there_are_is_one_sentence(monkeypatch):
    """Chains of one operation, counted: each start with each operand that stays in 0..99."""
    monkeypatch.setattr(make_tiny, "LAST_DRAWS", 5_000)  # the rarest comes once in 480 draws
    there = sum(0 <= value <= 99 for a in range(1, 21) for b in range(2, 10)
                for value in (a + b, a - b, a * b))
    one = make_tiny.SHORT._replace(chain=(1, 1))
    assert len(make_tiny.draw_problems(random.Random(0), there, one)) == there
    with pytest.raises(BadInput, match=f"--problems 8000: after {there} problems of --chain 1-1"):
        make_tiny.draw_problems(random.Random(0), 8_000, one)


def test_what_would_fail_late_is_refused_before_the_warm_up(monkeypatch, tmp_path):
    monkeypatch.setattr(make_tiny, "make_model", None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    file = tmp_path / "file"
    file.write_text("kept")
    (tmp_path / "tiny").write_text("kept")
    for argv, words in [(["--device", "banana"], "--device banana: no device"),
                        (["--device", "cuda"], "--device cuda: PyTorch sees no CUDA card"),
                        (["--out", str(file)], f"--out {file}: no folder can be made there"),
                        ([], f"--out {tmp_path}: no folder can be made there")]:
        with pytest.raises(BadInput, match=words):
            make_tiny.main(["--problems", "8", "--out", str(tmp_path), *argv])
    assert sorted(tmp_path.iterdir()) == [file, tmp_path / "tiny"] and file.read_text() == "kept"


def test_a_warm_up_that_diverges_writes_no_model(tmp_path):
    with pytest.raises(FloatingPointError, match="step .: the loss is (nan|inf); lower --lr"):
        make_tiny.main(["--problems", "8", "--steps", "5", "--batch-size", "2", "--lr", "1e30",
                        "--out", str(tmp_path)])
    assert not list((tmp_path / "tiny").iterdir())


def test_options_make_a_task():
    args, task = make_tiny.parse([*OPTIONS, "--out", "x"])
    assert task == LONG and args.problems == 8000
    assert make_tiny.parse([])[1] == make_tiny.Task()


# ------------------------------------------------------------------ in a run


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The place of the long task, for this test: empty."""
    place = tmp_path / "tiny_long"
    monkeypatch.setitem(models.MODELS, "tiny-long", place / "tiny")
    monkeypatch.setitem(problems.SETS, "arithmetic-long", place)
    monkeypatch.chdir(tmp_path)
    return place


@pytest.mark.parametrize("argv, flag", [
    (["--model", "tiny-long"], "--model tiny-long"),
    (["--data", "arithmetic-long"], "--data arithmetic-long")])
def test_a_task_that_was_not_made_is_one_sentence(argv, flag, folder):
    with pytest.raises(BadInput) as caught:
        grpo.main(argv)
    text = str(caught.value)
    assert text.startswith(f"{flag}: there is no {folder}") and "data/make_tiny.py" in text
    assert text.count(".") - text.count(".py") == 1 and not Path("runs").exists()


def test_the_long_task_has_a_demonstration_of_its_own():
    config = grpo.parse(grpo.flags("grpo", ""), ["--model", "tiny-long"])
    assert (config.data, config.prompts, config.group) == ("arithmetic-long", 2, 8)
    assert (config.steps, config.max_new_tokens, config.lr) == (80, 160, 5e-5)
    assert config.name == "runs/grpo-tiny-long-arithmetic-long-seed0" and config.device == "cpu"
    assert flags.DEMO["data"] == "arithmetic"
    again = grpo.parse(grpo.flags("grpo", ""), ["--model", "tiny-long", "--lr", "3e-4"])
    assert again.lr == 3e-4 and again.prompts == 2


def test_it_is_made_and_trained_on(folder):
    """One step of each: the oracle knows its problems, too."""
    make_tiny.main([*OPTIONS, "--problems", "16", "--steps", "1", "--batch-size", "2",
                    "--out", str(folder)])
    train, held_out = (problems.load_problems("arithmetic-long", split)
                       for split in ("train", "test"))
    assert len(train) == 14 and len(held_out) == 2
    assert all(10 <= row["problem"].count(",") <= 14 for row in train + held_out)
    grpo.main(["--model", "tiny-long", "--steps", "1", "--prompts", "1", "--group", "2",
               "--eval-problems", "0", "--max-new-tokens", "8", "--credit", "oracle"])
    assert Path("runs/grpo-tiny-long-arithmetic-long-seed0/checkpoint/model.safetensors").is_file()
