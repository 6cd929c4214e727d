"""Runs: exact resume, folders, checkpoints, mistakes on the command line, the embedded data."""
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import grail
import grpo
import problems
import runs
from problems import BadInput

ROOT = Path(__file__).resolve().parent.parent
SMALL = ["--prompts", "4", "--group", "4", "--eval-problems", "0", "--max-new-tokens", "48",
         "--warmup", "1"]


def run(method, tmp_path, *argv, credit=None):
    """A short run on the embedded model, in this process."""
    config = runs.parse(runs.flags(method, ""), [*SMALL, *map(str, argv)])
    return grpo.train(config, credit or grpo.uniform)


def weights(folder):
    return load_file(Path(folder) / "checkpoint" / "model.safetensors")


# ------------------------------------------------------------------ resume


def test_resume_is_the_unbroken_run_bit_for_bit(tmp_path):
    """Adam's moments, the order of problems, the random numbers or the warm-up forgotten: each
    makes four steps differ from two and two."""
    whole = run("grpo", tmp_path, "--steps", 4, "--name", tmp_path / "whole")
    run("grpo", tmp_path, "--steps", 2, "--name", tmp_path / "half")
    run("grpo", tmp_path, "--resume", tmp_path / "half", "--steps", 4)
    a, b = weights(whole["folder"]), weights(tmp_path / "half")
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
    x, y = ([json.loads(line) for line in (tmp_path / name / "metrics.jsonl").open()]
            for name in ("whole", "half"))
    for key in ("step", "reward", "loss", "grad_norm", "entropy"):
        assert [line[key] for line in x] == [line[key] for line in y]
    assert len(x) == 4 and x[0]["grad_norm"] > 0  # something was learned, so something can differ


def test_ctrl_c_saves_a_run_that_can_go_on(tmp_path, capsys):
    """In the first of two passes over a batch, with half a step done: the step is finished."""
    def interrupted(forward):
        os.kill(os.getpid(), signal.SIGINT)
        return grpo.uniform(forward)

    summary = run("grpo", tmp_path, "--steps", 4, "--inner", 2, "--name", tmp_path / "a",
                  credit=interrupted)
    assert summary["step"] == 1 and summary["after"] is None
    assert "--resume" in capsys.readouterr().out
    run("grpo", tmp_path, "--resume", tmp_path / "a", "--steps", 2)
    run("grpo", tmp_path, "--steps", 2, "--inner", 2, "--name", tmp_path / "b")
    a, b = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_resume_does_unsaved_steps_again_and_keeps_the_first_score(tmp_path):
    """A crash after step 3 with a checkpoint of step 2 must not leave step 3 in the log twice, and
    the accuracy before training is not lost; a leftover of a killed save is no obstacle."""
    run("grpo", tmp_path, "--steps", 2, "--name", tmp_path / "a", "--eval-problems", 4)
    before = json.loads((tmp_path / "a/summary.json").read_text())["before"]
    runs.append(tmp_path / "a/metrics.jsonl", [{"step": 3}])
    (tmp_path / "a/checkpoint.old").mkdir()
    (tmp_path / "a/checkpoint.old/x").write_text("")
    run("grpo", tmp_path, "--resume", tmp_path / "a", "--steps", 3, "--eval-problems", 4)
    lines = [json.loads(line) for line in (tmp_path / "a/metrics.jsonl").open()]
    assert [line["step"] for line in lines] == [1, 2, 3] and "reward" in lines[2]
    summary = json.loads((tmp_path / "a/summary.json").read_text())
    assert summary["before"] == before and summary["step"] == 3
    assert json.loads((tmp_path / "a/config.json").read_text())["steps"] == 3


def test_resume_refuses_other_settings_and_other_methods(tmp_path):
    run("grpo", tmp_path, "--steps", 1, "--name", tmp_path / "a")
    with pytest.raises(BadInput, match="lr differs"):
        run("grpo", tmp_path, "--resume", tmp_path / "a", "--lr", "0.5")
    with pytest.raises(BadInput, match="method differs"):
        run("grail", tmp_path, "--resume", tmp_path / "a")


# ------------------------------------------------------------------ the folder


def test_a_run_leaves_what_it_promises(tmp_path):
    """config, metrics, samples, snapshots, and a checkpoint that loads as any other model does."""
    summary = run("grpo", tmp_path, "--steps", 2, "--snapshot-every", 1, "--name", tmp_path / "a",
                  "--eval-problems", 6, "--eval-samples", 2)
    folder = tmp_path / "a"
    assert json.loads((folder / "config.json").read_text())["lr"] == runs.DEMO["lr"]
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2
    samples = [json.loads(line) for line in (folder / "samples.jsonl").open()]
    assert len(samples) == 8 and {"problem", "gold", "completion", "reward"} <= samples[0].keys()
    assert sorted(p.name for p in (folder / "snapshots").iterdir()) == ["step_00001", "step_00002"]
    model = AutoModelForCausalLM.from_pretrained(folder / "checkpoint")
    tokenizer = AutoTokenizer.from_pretrained(folder / "checkpoint")
    assert tokenizer.chat_template and model.dtype == torch.float32
    before, now = load_file(ROOT / "data/tiny/model.safetensors"), weights(folder)
    assert any(not torch.equal(before[k], now[k]) for k in before)      # fp32 weights do move
    last = load_file(folder / "snapshots/step_00002/model.safetensors")
    assert all(torch.equal(last[k], now[k]) for k in now)
    for when in ("before", "after"):
        score = summary[when]["sampled"]
        assert 0 <= score["low"] <= score["accuracy"] <= score["high"] <= 1
        assert score["problems"] == 6
    assert not list(folder.glob("checkpoint.*"))


def test_a_second_run_of_the_same_name_does_not_overwrite_the_first(tmp_path):
    first = run("grpo", tmp_path, "--steps", 1, "--name", tmp_path / "a")
    second = run("grpo", tmp_path, "--steps", 1, "--name", tmp_path / "a")
    assert first["folder"] != second["folder"]
    a, b = weights(first["folder"]), weights(second["folder"])
    assert all(torch.equal(a[k], b[k]) for k in a)                      # and seeds mean something


def test_a_file_of_one_s_own_gives_up_its_last_tenth(tmp_path):
    rows = [{"problem": f"Start with {i}, add 2.", "answer": str(i + 2)} for i in range(1, 31)]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = runs.parse(runs.flags("grpo", ""), ["--data", str(path)])
    train, held_out = runs.load_split(config)
    assert len(train) == 27 and [row["answer"] for row in held_out] == ["30", "31", "32"]


def test_grail_from_the_command_line(tmp_path, monkeypatch, capsys):
    """The whole of grail.py: weights other than 1, a coloured completion, a page."""
    argv = ["grail.py", *SMALL, "--steps", "2", "--name", str(tmp_path / "g")]
    monkeypatch.setattr(sys, "argv", argv)
    grail.main()
    out = capsys.readouterr().out
    line = json.loads((tmp_path / "g/metrics.jsonl").read_text().splitlines()[-1])
    assert line["weight_min"] < 1 < line["weight_max"]
    example = json.loads((tmp_path / "g/summary.json").read_text())["example"]
    assert max(example["weights"]) == 5 and min(example["weights"]) >= 0.5
    assert len(example["weights"]) == len(example["ids"])
    assert "\x1b[30;48;2;" in out and (tmp_path / "g/credit.html").read_text().count("<span") > 3


# ------------------------------------------------------------------ mistakes


@pytest.mark.parametrize("argv, words", [
    (["--model", "no/such-model"], "--model no/such-model"), (["--data", "gsm9k"], "--data gsm9k"),
    (["--data", "no.jsonl"], "no such file"), (["--group", "1"], "--group 1"),
    (["--device", "cuda"], "--device cuda"), (["--name", "a-file/run"], "cannot write there"),
    (["--resume", "nowhere"], "--resume nowhere"), (["--grad-clip", "0"], "--grad-clip 0"),
    (["--lr", "-1"], "--lr -1"), (["--eval-problems", "-5"], "--eval-problems -5")])
def test_mistakes_name_the_flag(argv, words, tmp_path, monkeypatch):
    if "cuda" in argv and torch.cuda.is_available():
        pytest.skip("there is a card here")
    monkeypatch.chdir(tmp_path)
    Path("a-file").write_text("")            # nothing can be made inside a file, not even by root
    name = [] if "--name" in argv else ["--name", str(tmp_path / "x")]
    with pytest.raises(BadInput, match=words.replace("/", ".")) as error:
        run("grpo", tmp_path, *argv, *name)
    assert "\n" not in str(error.value)


def test_a_model_that_scales_its_logits_is_refused(tmp_path, monkeypatch):
    """The head is applied by hand; Granite, Cohere and Gemma 2 do more than that to their logits,
    so they would be sampled from one distribution and scored under another."""
    score = grpo.token_logprobs
    monkeypatch.setattr(grpo, "token_logprobs", lambda *a: (score(*a)[0] * 1.5, score(*a)[1]))
    with pytest.raises(BadInput, match="scale or cap"):
        run("grpo", tmp_path, "--steps", 2, "--name", tmp_path / "a")


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    """Going on would write NaN weights over the last good checkpoint."""
    calls = []

    def poisoned(forward):
        calls.append(1)
        return grpo.uniform(forward) * (torch.inf if len(calls) > 1 else 1.0)

    with pytest.raises(BadInput, match="halve --lr"):
        run("grpo", tmp_path, "--steps", 3, "--save-every", 1, "--name", tmp_path / "a",
            credit=poisoned)
    assert len(calls) == 2
    assert all(w.isfinite().all() for w in weights(tmp_path / "a").values())


def test_a_mistake_is_one_sentence_and_exit_code_2():
    done = subprocess.run([sys.executable, ROOT / "grail.py", "--group", "1"], capture_output=True,
                          text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("error: --group 1")


# ------------------------------------------------------------------ the memory line


def test_the_memory_estimate_counts_what_it_names():
    """Qwen3-0.6B by hand: 596 M parameters x 16 bytes; 112 KiB of bf16 cache a token."""
    config = runs.parse(runs.flags("grpo", ""), ["--model", "Qwen/Qwen3-0.6B"])
    assert (config.prompts, config.group, config.max_new_tokens, config.steps) == (8, 8, 1024, 200)
    assert (config.temperature, config.lr, config.data) == (1.0, 1e-6, "gsm8k")

    class Shape:
        class config:
            hidden_size, intermediate_size, num_hidden_layers, vocab_size = 1024, 3072, 28, 151_936
            num_attention_heads, num_key_value_heads, head_dim = 16, 8, 128

        def parameters(self):
            return [torch.empty(596_049_920, device="meta")]

    line = runs.memory_estimate(Shape(), config, 176)
    assert "Adam 9.5" in line and f"KV cache {114_688 * 64 * 1200 / 1e9:.1f}" in line
    assert float(line.split("peak ")[1].split()[0]) < 24


# ------------------------------------------------------------------ the embedded data


def test_the_embedded_problems_are_right_and_apart():
    """Every answer is recomputed here from the words; no test problem is in train."""
    rows = {split: [json.loads(line) for line in (ROOT / f"data/arithmetic_{split}.jsonl").open()]
            for split in ("train", "test")}
    assert len(rows["train"]) >= 5000 and len(rows["test"]) >= 1000
    texts = {split: {row["problem"] for row in rows[split]} for split in rows}
    assert not texts["train"] & texts["test"] and len(texts["test"]) == len(rows["test"])
    for row in rows["train"] + rows["test"]:
        for sub in [row, *row["subproblems"]]:
            first, *steps = sub["problem"].rstrip(".").split(", ")
            value = int(first.split()[-1])
            for step in steps:
                verb, b = step.split()
                b = int(b)
                value = {"add": value + b, "minus": value - b, "times": value * b}[verb]
            assert sub["answer"] == str(value)
        assert row["subproblems"][-1] == {"problem": row["problem"], "answer": row["answer"]}


def test_the_tiny_tokenizer_loses_nothing():
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "data/tiny")
    for text in ("So 7+5=12\nroughly 12*3=37\nTherefore \\boxed{37}.",
                 "<p1>7+5=12 \\boxed{12}</p1>\n", problems.SUFFIX,
                 "Any ASCII text, {even} this: 100% ~ $5\n\n"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text
    assert len(tokenizer.encode(problems.SUFFIX, add_special_tokens=False)) == 1
    size = (ROOT / "data/tiny/model.safetensors").stat().st_size
    assert size < 8e6


def test_make_tiny_makes_all_of_it_again(tmp_path, monkeypatch):
    """The problem files come out byte for byte; two runs of a warm-up step give equal weights."""
    monkeypatch.syspath_prepend(ROOT / "data")
    import make_tiny
    for name in ("a", "b"):
        monkeypatch.setattr(sys, "argv", ["make_tiny.py", "--steps", "1", "--batch-size", "4",
                                          "--out", str(tmp_path / name)])
        make_tiny.main()
    for split in ("train", "test"):
        file = f"arithmetic_{split}.jsonl"
        assert (tmp_path / "a" / file).read_bytes() == (ROOT / "data" / file).read_bytes()
    a, b = (load_file(tmp_path / name / "tiny/model.safetensors") for name in ("a", "b"))
    assert all(torch.equal(a[k], b[k]) for k in a)
    tokenizer = (tmp_path / "a/tiny/tokenizer.json").read_text()
    assert json.loads(tokenizer) == json.loads((ROOT / "data/tiny/tokenizer.json").read_text())
