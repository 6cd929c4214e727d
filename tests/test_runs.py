"""Runs: exact resume, folders, checkpoints, mistakes on the command line, the embedded data."""
import errno
import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
    modeling_utils,
)

import evaluate
import grail
import grpo
import logprobs as logprobs_module
import oar
import problems
import rollout
from engine import checkpoints, errors, files, flags, graphs, memory, runs
from engine.errors import BadInput

ROOT = Path(__file__).resolve().parent.parent
SMALL = ["--prompts", "4", "--group", "4", "--eval-problems", "0", "--max-new-tokens", "40",
         "--warmup", "1"]


@pytest.fixture(scope="module", autouse=True)
def few(tmp_path_factory):
    """Sixty of the embedded problems, for all 7,000 take longer to load than a step takes."""
    path = tmp_path_factory.mktemp("data") / "few.jsonl"
    rows = (ROOT / "data/arithmetic_train.jsonl").read_text().splitlines(keepends=True)[:60]
    path.write_text("".join(rows))
    SMALL[:0] = ["--data", str(path)]


def run(method, tmp_path, *argv, credit=None):
    """A short run on the embedded model, in this process."""
    config = flags.parse(flags.flags(method, ""), [*SMALL, *map(str, argv)])
    return grpo.train(config, credit or grpo.uniform)


def weights(folder):
    return load_file(Path(folder) / "checkpoint" / "model.safetensors")


# ------------------------------------------------------------------ resume

TIMING = {"seconds", "tokens_per_second", "sampling_share", "judging_share", "peak_gb"}


def lines(folder, name="metrics.jsonl"):
    """A run's lines without what a clock or a card says."""
    return [{k: v for k, v in json.loads(line).items() if k not in TIMING}
            for line in (Path(folder) / name).open()]


def adam(folder):
    return torch.load(Path(folder) / "checkpoint/trainer.pt", weights_only=True)["optimizer"]


def same(a, b):
    """Equal to the bit: dicts, lists, numbers and tensors in them."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return len(a) == len(b) and all(map(same, a, b)) if isinstance(a, list) else a == b


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory):
    """A run of two steps with a checkpoint after each, to be copied by the tests below."""
    folder = tmp_path_factory.mktemp("runs") / "two"
    run("grpo", None, "--steps", 2, "--save-every", 1, "--name", folder)
    return folder


@pytest.fixture
def half(two_steps, tmp_path):
    return Path(shutil.copytree(two_steps, tmp_path / "half"))


def test_resume_is_the_unbroken_run_bit_for_bit(tmp_path, half):
    """Adam's moments, the order of problems, the random numbers or the warm-up forgotten: each
    makes four steps differ from two and two. So does a line that is lost or written twice: here a
    crash after step 3 had left its line and half of the next, and a leftover of a killed save."""
    whole = run("grpo", tmp_path, "--steps", 4, "--name", tmp_path / "whole")
    files.append(half / "metrics.jsonl", [{"step": 3}])
    with (half / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 4, "rewa\xc3')
    (half / "checkpoint.new").mkdir()
    (half / "checkpoint.new/x").write_text("")
    run("grpo", tmp_path, "--resume", half, "--steps", 4)
    a, b = weights(whole["folder"]), weights(half)
    assert same(a, b) and same(adam(whole["folder"]), adam(half))
    assert lines(whole["folder"]) == lines(half) and len(lines(half)) == 4
    assert lines(whole["folder"], "samples.jsonl") == lines(half, "samples.jsonl")
    assert lines(half)[0]["grad_norm"] > 0  # something was learned, so something can differ
    assert json.loads((half / "config.json").read_text())["steps"] == 4


@pytest.mark.slow
def test_controls_kl_and_recomputation_resume_bit_for_bit(tmp_path):
    """Each could hold something that a checkpoint lacks: coins and shuffles a generator's state,
    the KL its reference, several passes their old log-probs."""
    flags = [*SMALL, "--credit", "shuffled", "--reward", "random", "--kl", "0.1",
             "--num-iterations", "2", "--checkpointing"]
    grail.main([*flags, "--steps", "2", "--name", str(tmp_path / "whole")])
    grail.main([*flags, "--steps", "1", "--name", str(tmp_path / "half")])
    grail.main(["--resume", str(tmp_path / "half"), "--steps", "2"])
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "half"))
    assert same(adam(tmp_path / "whole"), adam(tmp_path / "half"))
    assert lines(tmp_path / "whole") == lines(tmp_path / "half")
    assert min(line["grad_norm"] for line in lines(tmp_path / "half")) > 0


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_saves_a_run_that_can_go_on(number, code, tmp_path, capsys):
    """In the first of two passes over a batch, with half a step done: the step is finished."""
    def interrupted(forward):
        if not capsys.readouterr().out.count("step    1"):
            os.kill(os.getpid(), number)
        return grpo.uniform(forward)

    before = signal.getsignal(signal.SIGINT)  # SIG_IGN where a shell runs the tests with &
    with pytest.raises(SystemExit) as stop:
        run("grpo", tmp_path, "--steps", 4, "--num-iterations", 2, "--name", tmp_path / "a",
            credit=interrupted)
    assert stop.value.code == code
    said = capsys.readouterr().out
    assert f"stopped after step 1; continue with --resume {tmp_path / 'a'}" in said
    assert signal.getsignal(signal.SIGINT) is before
    if number == signal.SIGINT:
        run("grpo", tmp_path, "--resume", tmp_path / "a", "--steps", 2)
        run("grpo", tmp_path, "--steps", 2, "--num-iterations", 2, "--name", tmp_path / "b")
        assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))


def test_a_second_stop_leaves_at_once_and_damages_nothing(tmp_path, half, monkeypatch):
    """It comes while the checkpoint is being written; the one before is whole."""
    before, hashed = weights(half), []
    digest = checkpoints.digest

    def impatient(path):  # find() has read the old one's four files; this is in the new one
        hashed.append(path)
        if path.parent.name == "checkpoint.new":
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        return digest(path)

    monkeypatch.setattr(checkpoints, "digest", impatient)
    with pytest.raises(SystemExit) as stop:
        run("grpo", tmp_path, "--resume", half, "--steps", 4)
    assert stop.value.code == 143 and hashed[-1].parent.name == "checkpoint.new"
    assert len(lines(half)) == 3 and checkpoints.step_of(half / "checkpoint") == 2
    assert same(weights(half), before)


def test_ctrl_c_in_a_terminal_does_not_reach_the_verifier():
    """Ctrl-C goes to the whole group: a worker that it killed would make a right answer wrong in
    the very step that is finished and saved."""
    import verify
    group = (sys.executable, "-c", "import os; print(os.getpgid(0))")
    assert verify.in_process(b"", 20, group) != os.getpgid(0)


@pytest.mark.slow
def test_resume_keeps_the_first_score_and_makes_the_last(tmp_path):
    """A run stopped between its last step and its last score has lost only the score."""
    run("grpo", tmp_path, "--steps", 1, "--name", tmp_path / "a", "--eval-problems", 4)
    path = tmp_path / "a/summary.json"
    before = json.loads(path.read_text())
    path.write_text(json.dumps({"before": before["before"]}))
    run("grpo", tmp_path, "--resume", tmp_path / "a", "--eval-problems", 4)
    after = json.loads(path.read_text())["after"]
    for found in (*after.values(), *before["after"].values()):
        del found["tokens_per_second"]
    assert after == before["after"]
    assert json.loads(path.read_text())["before"] == before["before"]
    assert checkpoints.step_of(tmp_path / "a/checkpoint") == 1


def test_resume_latest_is_the_newest_run_of_this_method(tmp_path, half, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, method, age in (("old", "grpo", 9), ("new", "grpo", 5), ("other", "grail", 1)):
        copy = Path(shutil.copytree(half, tmp_path / "runs" / name))
        config = json.loads((copy / "config.json").read_text()) | {"method": method}
        (copy / "config.json").write_text(json.dumps(config))
        for path in copy.glob("checkpoint*/manifest.json"):
            os.utime(path, (2e9 - age, 2e9 - age))
    (tmp_path / "runs/empty").mkdir()
    config = flags.parse(flags.flags("grpo", ""), ["--resume", "latest"])
    assert config.resume == "runs/new"
    with pytest.raises(BadInput, match="--resume latest: no folder in runs/"):
        flags.parse(flags.flags("scrl", ""), ["--resume", "latest"])


# ------------------------------------------------------------------ what is refused and offered


def test_resume_refuses_other_held_out_problems(tmp_path):
    """Accuracy before and after would be of different answers."""
    data = tmp_path / "own.jsonl"
    rows = [{"problem": f"Start with {i}, add 1.", "answer": str(i + 1)} for i in range(30)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    argv = ["--data", data, "--eval-problems", 2, "--eval-every", 0, "--name", tmp_path / "run"]
    run("grpo", tmp_path, *argv, "--steps", 1)
    held_out = {json.loads(line)["problem"] for line in (tmp_path / "run/held_out.jsonl").open()}
    for row in rows:
        row["answer"] = "7" if row["problem"] in held_out else row["answer"]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(BadInput, match="a held-out problem or its answer differs"):
        run("grpo", tmp_path, *argv[:-2], "--resume", tmp_path / "run", "--steps", 2)


def test_an_older_checkpoint_with_nothing_left_to_train_undoes_nothing(tmp_path, half):
    """It was made the newest, and the later steps were deleted."""
    copy = shutil.copytree(half, tmp_path / "run")
    before = sorted(path.relative_to(copy) for path in copy.rglob("*"))
    old = copy / "checkpoint.old"
    with pytest.raises(BadInput, match="none is left to train, and later ones would be undone"):
        run("grpo", tmp_path, "--resume", old, "--steps", 1)
    assert sorted(path.relative_to(copy) for path in copy.rglob("*")) == before


def test_resume_refuses_other_settings_and_other_methods(tmp_path, half):
    with pytest.raises(BadInput, match="lr differs .0.5, the run's is 0.0001"):
        run("grpo", tmp_path, "--resume", half, "--lr", "0.5")
    with pytest.raises(BadInput, match="method differs"):
        run("grail", tmp_path, "--resume", half)
    # Memory and speed may change: no gradient does, beyond rounding.
    config = flags.parse(flags.flags("grpo", ""), [
        "--resume", str(half), "--tokens-per-microbatch", "1", "--checkpointing", *SMALL])
    assert (config.tokens_per_microbatch, config.checkpointing, config.lr) == (1, True, 1e-4)


def test_a_checkpoint_of_another_run_or_of_other_problems_is_refused(tmp_path, half):
    """config.json agrees with the flags, yet the checkpoint was copied here from elsewhere; or the
    problem file has been edited since, and the same row numbers mean other problems."""
    other = run("grpo", tmp_path, "--steps", 1, "--seed", 1, "--name", tmp_path / "other")
    shutil.rmtree(half / "checkpoint")
    shutil.copytree(Path(other["folder"]) / "checkpoint", half / "checkpoint")
    with pytest.raises(BadInput, match="made with other settings: seed differs .0, .* is 1"):
        run("grpo", tmp_path, "--resume", half, "--steps", 4)
    assert len(lines(half)) == 2
    data = tmp_path / "mine.jsonl"
    rows = [{"problem": f"Start with {i}, add 2.", "answer": str(i + 2)} for i in range(9)]
    files.append(data, rows)
    run("grpo", tmp_path, "--data", data, "--steps", 1, "--name", tmp_path / "a")
    files.append(data, rows[:1])
    with pytest.raises(BadInput, match="other settings: problems differs"):
        run("grpo", tmp_path, "--resume", tmp_path / "a", "--steps", 2, "--data", data)


def test_a_run_that_another_process_trains_is_left_alone(tmp_path, half):
    """Before its checkpoint is read: the other process may move it at any moment."""
    code = ("import fcntl, sys; file = open(sys.argv[1], 'a'); fcntl.lockf(file, fcntl.LOCK_EX); "
            "print(1, flush=True); sys.stdin.read()")
    before = sorted(half.rglob("*"))
    with subprocess.Popen([sys.executable, "-c", code, half / "lock"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(BadInput, match="another process is training this run"):
            run("grpo", tmp_path, "--resume", half, "--steps", 3)
        other.stdin.close()
    assert sorted({*half.rglob("*")} - {half / "lock"}) == [
        path for path in before if path != half / "lock"]
    run("grpo", tmp_path, "--resume", half, "--steps", 3)
    assert len(lines(half)) == 3


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip(path):
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink])
@pytest.mark.parametrize("name", ["model.safetensors", "trainer.pt", "config.json",
                                  "tokenizer.json", "manifest.json"])
def test_a_damaged_file_is_named_and_the_older_checkpoint_offered(name, damage, tmp_path, half):
    """One flipped bit of a weight loads without a word and makes another run of it."""
    if (name, damage) == ("manifest.json", flip):
        path = half / "checkpoint/manifest.json"
        path.write_text(re.sub('"[0-9a-f]{64}"', '"00"', path.read_text()))
        name = "chat_template.jinja"  # the first of the files
    else:
        damage(half / "checkpoint" / name)
    with pytest.raises(BadInput) as refused:
        checkpoints.find(half)
    words = str(refused.value)
    assert f"checkpoint/{name}" in words and "\n" not in words
    assert ("bytes, not" in words) == (damage is truncate and name != "manifest.json")
    assert f"--resume {half / 'checkpoint.old'} goes on from step 1" in words


def test_the_older_checkpoint_that_was_offered_is_as_good(tmp_path, half):
    """Step 2 is done again, to the bit; nothing of the damaged one is left."""
    good = weights(half)
    truncate(half / "checkpoint/trainer.pt")
    run("grpo", tmp_path, "--resume", half / "checkpoint.old")
    assert same(weights(half), good) and len(lines(half)) == 2
    assert checkpoints.step_of(half / "checkpoint.old") == 1
    truncate(half / "checkpoint.old/trainer.pt")
    truncate(half / "checkpoint/trainer.pt")
    with pytest.raises(BadInput, match="the older one is no better"):
        checkpoints.find(half)


@pytest.mark.parametrize("left, step", [("old", 1), ("new and old", 2), ("new", 2)])
def test_a_crash_around_the_two_renames_is_recovered(left, step, tmp_path, half):
    """There is no folder called checkpoint: the new one, which is complete, is used, or else the
    one before; the very first has none before it."""
    (half / "checkpoint").rename(half / "checkpoint.new")
    for name in {"new", "old"} - set(left.split()):
        shutil.rmtree(half / f"checkpoint.{name}")
    path = checkpoints.find(half)
    assert checkpoints.step_of(path) == step
    run("grpo", tmp_path, "--resume", half, "--steps", 3)
    assert checkpoints.step_of(half / "checkpoint") == 3 and len(lines(half)) == 3


class Mine:
    def __reduce__(self):
        return Path.touch, (Path("pwned"),)


def test_trainer_state_from_elsewhere_cannot_run_code(tmp_path, half, monkeypatch):
    """A pickle runs what it likes when it is loaded, and a manifest is easily made to agree."""
    monkeypatch.chdir(tmp_path)
    path = half / "checkpoint/trainer.pt"
    torch.save({"optimizer": Mine(), "step": 2, "settings": {}}, path)
    manifest = json.loads((half / "checkpoint/manifest.json").read_text())
    manifest["files"]["trainer.pt"] = [path.stat().st_size, checkpoints.digest(path)]
    (half / "checkpoint/manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BadInput, match="trainer.pt is no state of ours"):
        run("grpo", tmp_path, "--resume", half, "--steps", 3)
    assert not Path("pwned").exists()
    torch.load(path, weights_only=False)
    assert Path("pwned").exists()  # so it was armed


def test_adam_resumed_on_another_device_is_that_device_s_adam(half):
    """The saved groups say whether Adam was fused, and a fused one needs its step on the card."""
    model, _ = problems.load_policy(half / "checkpoint")
    config = json.loads((half / "config.json").read_text())
    for fused in (True, False):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
        saved = torch.load(half / "checkpoint/trainer.pt", weights_only=True)["settings"]
        assert config.items() >= {k: v for k, v in saved.items()
                                  if k not in ("problems", "held_out")}.items()
        assert checkpoints.restore(half / "checkpoint", optimizer, saved) == 2
        assert optimizer.param_groups[0]["fused"] is fused
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()


# ------------------------------------------------------------------ a disk that refuses


class Refusing:
    """Makes the n-th call of those that write fail, and counts them; half of its bytes are out."""

    def __init__(self, monkeypatch, error, n=None):
        self.calls, self.n, self.error = [], n, error
        for owner, name in ((os, "fsync"), (os, "rename"), (os, "replace"), (os, "mkdir"),
                            (torch, "save"), (safetensors.torch, "save_file"),
                            (modeling_utils, "safe_save_file")):
            monkeypatch.setattr(owner, name, self.around(name, getattr(owner, name)))
        monkeypatch.setattr(files, "open", self.open, raising=False)

    def refuse(self, name, *args):
        self.calls.append(name)
        if len(self.calls) - 1 == self.n:
            for path in args:
                if isinstance(path, (str, Path)) and Path(path).suffix in (".pt", ".safetensors"):
                    Path(path).write_bytes(b"half")
            raise self.error

    def around(self, name, function):
        def called(*args, **more):
            if name != "mkdir" or not Path(args[0]).is_dir():  # making it again writes nothing
                self.refuse(name, *args)
            return function(*args, **more)
        return called

    def open(self, path, mode="r", **more):
        file = open(path, mode, **more)
        if "r" not in mode:
            write = file.write

            def torn(text):
                try:
                    self.refuse("write")
                except OSError:
                    write(text[:len(text) // 2])
                    file.close()
                    raise
                return write(text)

            file.write = torn
        return file


@lru_cache
def small_policy():
    return Qwen3ForCausalLM(Qwen3Config(
        vocab_size=131, hidden_size=8, intermediate_size=8, num_hidden_layers=1, head_dim=4,
        num_attention_heads=2, num_key_value_heads=1)), AutoTokenizer.from_pretrained(
            ROOT / "data/tiny")


def write_a_step(folder, n=None, error=None):
    """What the first step of a run, or the next one, writes, with the n-th writing call refused;
    returns the calls. The model has 1 layer of width 8, for speed."""
    model, tokenizer = small_policy()
    again = ["--resume", str(folder)] if folder.exists() else ["--name", str(folder)]
    config = flags.parse(flags.flags("grpo", ""), [*SMALL, "--snapshot-every", "1", *again])
    optimizer, rows = torch.optim.AdamW(model.parameters(), fused=False), [
        {"id": "0", "problem": "1+1?", "answer": "2"}]
    checkpoint = checkpoints.find(folder) if folder.exists() else None
    with pytest.MonkeyPatch.context() as patch:
        disk = Refusing(patch, error, n)
        run = runs.open_run(config, optimizer, rows, checkpoint)
        with checkpoints.graceful_stop(run, config):
            run.step += 1
            for name in ("metrics.jsonl", "samples.jsonl"):
                runs.append(folder / name, [{"step": run.step}])
            run.save(model, tokenizer, optimizer)
            run.save(model, tokenizer, optimizer, last=True)
    return disk.calls


@pytest.mark.slow
def test_a_full_or_read_only_disk_never_costs_the_last_checkpoint(tmp_path):
    """Every call that writes in a step refuses in turn. Each ends in one sentence; a whole
    checkpoint is found each time; and once there is room, the step is done and logged once."""
    whole = tmp_path / "whole"
    for _ in range(4):
        write_a_step(whole)
    before, calls = Path(shutil.copytree(whole, tmp_path / "before")), write_a_step(whole)
    assert {"write", "fsync", "rename", "replace", "save", "mkdir", "safe_save_file"} == set(calls)
    for n in range(len(calls)):
        folder = Path(shutil.copytree(before, tmp_path / f"run-{n}"))
        number = errno.EROFS if n % 2 else errno.ENOSPC
        with pytest.raises(BadInput) as stop:
            write_a_step(folder, n, OSError(number, os.strerror(number), str(folder)))
        assert os.strerror(number) in str(stop.value) and "\n" not in str(stop.value)
        step = checkpoints.step_of(checkpoints.find(folder))
        # From the second rename on, the new one is written whole, and is found.
        assert step == 4 + (n > calls.index("rename", calls.index("save"))), (n, calls[n])
        if n % 3 == 0:  # a third of them, for time
            write_a_step(folder)
            assert [line["step"] for line in lines(folder)][-2:] == [step, step + 1], (n, calls[n])
            assert checkpoints.step_of(checkpoints.find(folder)) == step + 1
        shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.parametrize("call, nth", [("write", 3), ("save", 0), ("rename", 1)])
def test_a_run_on_a_full_disk_says_so_and_goes_on_when_there_is_room(call, nth, tmp_path, half,
                                                                     capsys):
    """The whole of it, by grpo.main: exit code 2, one sentence, and then to the same weights."""
    argv = [*SMALL, "--resume", str(half), "--steps", "3"]
    good = Path(shutil.copytree(half, tmp_path / "good"))
    with pytest.MonkeyPatch.context() as patch:
        disk = Refusing(patch, None)
        grpo.main([*argv[:-3], str(good), *argv[-2:]])
    n = [i for i, name in enumerate(disk.calls) if name == call][nth]
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(half))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
        Refusing(patch, full, n)
        errors.run_cli(lambda: grpo.main(argv))
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert stop.value.code == 2 and said.startswith("error: ") and "No space left" in said
    assert f"--resume {half}" in said
    grpo.main(argv)
    assert same(weights(half), weights(good)) and lines(half) == lines(good)


def test_a_disk_too_small_is_said_before_the_first_step(tmp_path, half, monkeypatch):
    """0.76 M weights of 4 bytes, two checkpoints of them and of Adam's two numbers: 18 MB. A run
    that saves once, at its end, needs room for one."""
    size = 24 * sum(w.numel() for w in weights(half).values())

    def free(room):
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=room))

    for room, words in ((size, "--steps 2 --save-every 1"), (size // 2, "--steps 1"),
                        (size // 2, "--steps 2 --save-every 0")):
        free(room - 1)
        with pytest.raises(BadInput, match="0.0[12] GB are free there"):
            run("grpo", tmp_path, *words.split(), "--name", tmp_path / "a")
        assert not (tmp_path / "a").exists()
        free(room)
        run("grpo", tmp_path, *words.split(), "--name", tmp_path / "a")
        shutil.rmtree(tmp_path / "a")
    run("grpo", tmp_path, "--steps", 1, "--name", tmp_path / "a")
    free(0)
    with pytest.raises(BadInput, match="0.01 GB more"):  # its checkpoint stays until the next one
        run("grpo", tmp_path, "--resume", tmp_path / "a", "--steps", 2, "--save-every", 0)
    # A run that has saved twice has room for two already.
    run("grpo", tmp_path, "--resume", half, "--steps", 3)


def test_snapshots_on_the_disk_are_not_asked_for_again(tmp_path, monkeypatch):
    """Two of three snapshots and one checkpoint are there: one of each is missing."""
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1000))])
    for name, size in (("checkpoint", 12_000), ("snapshots/a", 4_000), ("snapshots/b", 4_000)):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "weights").write_bytes(bytes(size))
    disk = SimpleNamespace(free=15_999)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk)
    with pytest.raises(BadInput):
        checkpoints.check_room(tmp_path, optimizer, 2, snapshots=3)
    disk.free += 1
    checkpoints.check_room(tmp_path, optimizer, 2, snapshots=3)


def test_a_resumed_run_stays_in_its_folder(tmp_path, half):
    """--name of another folder once had no effect, and was written down as the run's."""
    with pytest.raises(BadInput, match="a resumed run stays in its folder"):
        run("grpo", tmp_path, "--resume", half, "--steps", 3, "--name", tmp_path / "other")
    run("grpo", tmp_path, "--resume", half / "checkpoint", "--steps", 2, "--name", half)
    assert json.loads((half / "config.json").read_text())["name"] == str(half)
    (half.parent / "moved").mkdir()
    moved = half.rename(half.parent / "moved" / "run")
    run("grpo", tmp_path, "--resume", moved, "--steps", 3)
    assert json.loads((moved / "config.json").read_text())["name"] == str(moved)


# ------------------------------------------------------------------ the folder


def test_a_run_leaves_what_it_promises(tmp_path):
    """config, metrics, samples, snapshots, and a checkpoint that loads as any other model does."""
    summary = run("grpo", tmp_path, "--steps", 2, "--snapshot-every", 1, "--name", tmp_path / "a",
                  "--eval-problems", 6, "--eval-samples", 2)
    folder = tmp_path / "a"
    assert json.loads((folder / "config.json").read_text())["lr"] == flags.DEMO["lr"]
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
    assert [p.name for p in folder.glob("checkpoint*")] == ["checkpoint"]
    assert not list(folder.glob("*.new"))


def test_a_second_run_of_the_same_name_does_not_overwrite_the_first(tmp_path):
    first = run("grpo", tmp_path, "--steps", 1, "--name", tmp_path / "a")
    second = run("grpo", tmp_path, "--steps", 1, "--name", tmp_path / "a")
    assert first["folder"] != second["folder"]
    a, b = weights(first["folder"]), weights(second["folder"])
    assert all(torch.equal(a[k], b[k]) for k in a)                      # and seeds mean something


def test_a_file_of_one_s_own_gives_up_a_tenth(tmp_path, capsys):
    rows = [{"problem": f"Begin with {i}, add 2.", "answer": str(i + 2)} for i in range(1, 61)]
    path = tmp_path / "mine.jsonl"

    def split(rows, *argv):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        config = flags.parse(flags.flags("grpo", ""), ["--data", str(path), *argv])
        return [[row["problem"] for row in part] for part in problems.load_split(config)]

    train, held_out = split(rows)
    assert len(train) == 54 and len(held_out) == 6
    assert sorted(train + held_out) == sorted(row["problem"] for row in rows)
    # From all over a sorted file, and the same whatever its order and --seed.
    places = [int(text.split()[2].strip(",")) for text in held_out]
    assert max(places) - min(places) > 19 and places != sorted(places)
    assert split(rows[::-1], "--seed", "5")[1] == held_out
    assert "6 problems are held out, drawn from the whole file" in capsys.readouterr().err


def test_grail_from_the_command_line(tmp_path, capsys):
    """The whole of grail.py: weights other than 1, a coloured completion, a page."""
    grail.main([*SMALL, "--steps", "2", "--name", str(tmp_path / "g")])
    out = capsys.readouterr().out
    line = json.loads((tmp_path / "g/metrics.jsonl").read_text().splitlines()[-1])
    assert line["weight_min"] < 1 < line["weight_max"]
    example = json.loads((tmp_path / "g/summary.json").read_text())["example"]
    assert max(example["weights"]) == 5 and min(example["weights"]) >= 0.5
    assert len(example["weights"]) == len(example["ids"])
    assert "One completion" in out and (tmp_path / "g/credit.html").read_text().count("<span") > 3


def test_a_run_s_name_is_a_path_of_the_user_s_and_of_nobody_else_s(tmp_path, half, monkeypatch):
    """--name is a path as any on a command line. The default is made of the model's name, which is
    a folder's or a hub's, and a resumed config.json may come from anywhere: neither may choose."""
    def name(*argv):
        return flags.parse(flags.flags("grpo", ""), list(argv)).name

    monkeypatch.chdir(tmp_path)
    assert name("--name", "../x") == "../x" and name("--name", "/x/y") == "/x/y"
    assert name() == "runs/grpo-tiny-arithmetic-seed0"
    assert name("--data", "my/own.v2.jsonl") == "runs/grpo-tiny-own.v2-seed0"
    assert name("--model", "Qwen/Qwen3-0.6B") == "runs/grpo-Qwen3-0.6B-gsm8k-seed0"
    assert name("--model", str(half / "checkpoint")) == "runs/grpo-half-gsm8k-seed0"
    assert name("--model", str(half / "checkpoint.old"), "--data", "math",
                "--seed", "3") == "runs/grpo-half-math-seed3"
    for hostile in ("../..", "..", "a/..", "/", "x/\x1b[2J;rm -rf ~", "...", "n" * 999):
        made = Path(name("--model", hostile, "--data", hostile))
        assert len(str(made)) < 200 and made.parent == Path("runs")
        assert re.sub("[-._]", "", made.name).isalnum()
    config = json.loads((half / "config.json").read_text()) | {"name": str(tmp_path / "elsewhere")}
    (half / "config.json").write_text(json.dumps(config))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    run("grpo", tmp_path, "--resume", half, "--steps", 3)
    assert not (tmp_path / "elsewhere").exists() and not list((tmp_path / "empty").iterdir())


# ------------------------------------------------------------------ guards


def train_small(tmp_path, *argv, credit=None, name="a"):
    return run("grpo", tmp_path, "--save-every", 1, "--name", tmp_path / name, *argv,
               credit=credit)


@pytest.mark.parametrize("where", ["credit", "gradient", "logits"])
def test_a_number_that_is_not_finite_stops_the_run(where, tmp_path, monkeypatch):
    """Going on would write NaN weights over the last good checkpoint. The sentence says in which
    step, what was seen first, and what to change; the checkpoint of the step before is named."""
    calls, name = [], "model.layers.1.mlp.up_proj.weight"

    def poisoned(forward):
        calls.append(1)
        if len(calls) == 2 and where == "logits":
            return grpo.uniform(forward)
        if len(calls) == 2 and where == "gradient":
            part = dict(POLICY[0].named_parameters())[name]
            part.register_hook(lambda gradient: gradient * torch.inf)
        return grpo.uniform(forward) * (torch.inf if len(calls) == 2 and where == "credit" else 1)

    POLICY = []
    load, update = problems.load_policy, grpo.update
    monkeypatch.setattr(problems, "load_policy", lambda *a: POLICY.append(load(*a)[0]) or
                        (POLICY[0], load(*a)[1]))
    if where == "logits":  # the weights of step 2 blow up after it has been saved
        def overflowing(*args):
            done = update(*args)
            if len(calls) == 2:
                with torch.no_grad():
                    POLICY[0].model.norm.weight.fill_(torch.nan)
            return done
        monkeypatch.setattr(grpo, "update", overflowing)
        monkeypatch.setattr(runs, "save", lambda folder, *a: checkpoints.save(folder, *a)
                            if len(calls) < 2 else None)
    with pytest.raises(BadInput) as stop:
        train_small(tmp_path, "--steps", 4, credit=poisoned)
    said = str(stop.value)
    seen = {"credit": "the credit function test_runs", "gradient": f"first of all: {name}",
            "logits": "logits are not finite"}[where]
    assert seen in said and f"step {3 if where == 'logits' else 2}: " in said and "\n" not in said
    assert ("halve --lr (0.0001)" in said) == (where == "gradient")
    assert f"step 1 is safe, start from it anew with --model {tmp_path / 'a'}/checkpoint" in said
    assert all(w.isfinite().all() for w in weights(tmp_path / "a").values())
    assert checkpoints.step_of(tmp_path / "a/checkpoint") == 1


def test_a_model_of_nan_weights_is_refused_when_it_is_sampled(tmp_path, capsys):
    """A sampler that draws from NaN says token V, which no table has: an IndexError on a CPU and a
    dead process on a card."""
    model, tokenizer = problems.load_policy()
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] = torch.nan
    for settings in (dict(temperature=1.0), dict(temperature=0.0), dict(top_p=0.5)):
        with pytest.raises(FloatingPointError, match="logits are not finite"):
            rollout.sample(model, tokenizer, ["2+2?"], max_new_tokens=2, **settings)


def test_a_full_card_names_the_flags_in_order(tmp_path, monkeypatch):
    """First what changes no gradient, and nothing that is on already."""
    def full(*args):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(grpo, "update", full)
    with pytest.raises(BadInput) as stop:
        train_small(tmp_path, "--steps", 2, "--tokens-per-microbatch", 800)
    said = str(stop.value)
    places = [said.index(flag) for flag in (
        "step 1: ", "--tokens-per-microbatch (800)", "--checkpointing", "--prompts (4)",
        "--group (4)", "--max-new-tokens (40)", "no checkpoint had been made yet")]
    assert places == sorted(places) and "\n" not in said
    with pytest.raises(BadInput) as stop:
        train_small(tmp_path, "--steps", 2, "--checkpointing", name="b")
    assert "add --checkpointing" not in str(stop.value)
    config = flags.parse(flags.flags("grpo", ""), [*SMALL, "--name", str(tmp_path / "c")])
    config.compile = True  # recomputing is refused beside it
    monkeypatch.setattr(graphs, "Graphs", lambda *_: None)
    with pytest.raises(BadInput, match="add --no-compile --checkpointing, halve"):
        grpo.train(config)


class Played:
    """graphs.Graphs for a CPU: what a card would replay is run, a forward ends the life of the one
    before it, and .grad must stay where it is."""

    def __init__(self, model, tokens):
        self.model, self.gradients, self.version = model, {}, 0

    def __call__(self, embeddings):
        self.version += 1
        mine, hidden = self.version, graphs.through_layers(self.model.base_model, embeddings)

        def alive(_):
            assert mine == self.version, "a backward through a forward that is gone"

        if hidden.requires_grad:
            hidden.register_hook(alive)
        return hidden

    def head(self, h, y, temperature):
        return logprobs_module.scores(self.model.lm_head(h), y, temperature)

    def backward(self, loss):
        loss.backward()
        for name, p in self.model.named_parameters():
            assert self.gradients.setdefault(name, p.grad) is p.grad, name


@pytest.mark.parametrize("method", ["grail", pytest.param("oar", marks=pytest.mark.slow)])
def test_the_loop_with_recordings_is_the_loop_without(method, tmp_path, monkeypatch, capsys):
    """GRAIL and OAR-G, saved before the last step and resumed: the same figures and weights, but
    for rounding, as rows meet others in a micro-batch. (OAR-G runs the recordings itself, so the
    policy's forward is gone after it.) On a CPU the flag itself is left out, and said.
    """
    monkeypatch.setattr(graphs, "Graphs", Played)

    def trained(compiled, *argv):
        config = flags.parse(flags.flags("grail", ""), [*SMALL, *map(str, argv)])
        config.compile = compiled
        if method == "grail":
            config.reweight, config.activation, config.as_released = "wrong", "embeddings", False
            return grpo.train(config, grail.credit(config))
        config.signal, config.draws, config.as_released = "gradient", 1, "no"
        config.outcome, config.replace, config.chunk = "mean", "pad", 0
        return grpo.train(config, oar.credit(config))

    trained(False, "--name", tmp_path / "plain", "--steps", 2)
    trained(True, "--name", tmp_path / "half", "--steps", 1)
    trained(True, "--resume", tmp_path / "half", "--steps", 2)
    plain, half = lines(tmp_path / "plain"), lines(tmp_path / "half")
    assert len(half) == 2 and plain[0]["informative"] > 0
    for a, b in zip(plain, half):
        assert a["reward"] == b["reward"]
        for name in ("loss", "entropy", "grad_norm", "weight_mean", "weight_max"):
            assert a[name] == pytest.approx(b[name], rel=1e-3, abs=1e-6), name
    for name, w in weights(tmp_path / "plain").items():
        assert torch.allclose(w, weights(tmp_path / "half")[name], atol=1e-6), name
    assert not flags.parse(flags.flags("grpo", ""), ["--compile", "--device", "cpu"]).compile
    assert "--compile is for CUDA cards" in capsys.readouterr().err


def test_what_looks_wrong_is_said_once(capsys):
    """Each warning on the numbers that call for it, not on those beside the bound, and one time."""
    config, seen = SimpleNamespace(), {}
    fine = dict(step=1, informative=1, truncated=0.5, entropy=0.5, boxed=0.5, repeats=0.0)
    spread = torch.linspace(0.6, 4, 40).view(4, 10)  # (B, T)

    def said(weights=spread, **line):
        runs.warn({**fine, **line}, weights, config, 100, seen)
        return capsys.readouterr().err

    flat = math.log(100)
    assert said() == "" and said(entropy=0.85 * flat) == "" and said(torch.ones(4, 10)) == ""
    assert said(torch.zeros(4, 10), informative=0, entropy=0.0) == ""  # nothing was trained
    for text, found in {"cut off": dict(truncated=0.51), "near 0": dict(entropy=0.001),
                        "near ln V = 4.6": dict(entropy=0.95 * flat), "no \\boxed": dict(boxed=0.4),
                        "--mask-truncated they are left out": dict(truncated=0.99, repeats=0.9),
                        "at a bound": dict(weights=torch.tensor([[0.5, 5.0] * 10 + [1.0] * 5])),
                        }.items():
        assert said(**found).count(text) == 1 and said(**found) == ""
    seen.clear()
    for _ in range(1, 10):
        assert said(informative=0) == ""
    assert "no group has been informative for 10 steps" in said(informative=0)
    seen.clear()
    for step in range(30):  # nine at a time, then one that teaches
        assert said(informative=step % 10 == 9) == ""


def test_a_run_whose_completions_grow_to_the_limit_is_told_so(capsys):
    """Ten steps with 5 % cut off, then ten with 29 %: no more tokens are needed, as a run that
    begins with 60 % needs them. One bad step is no rise, and 15 points are none."""
    spread = torch.linspace(0.6, 4, 40).view(4, 10)  # (B, T)

    def said(*shares, repeats=0.0):
        seen = {}
        for step, truncated in enumerate(shares, 1):
            line = dict(step=step, informative=1, truncated=truncated, entropy=0.5,
                        boxed=1 - truncated, repeats=repeats * truncated)
            runs.warn(line, spread, SimpleNamespace(), 100, seen)
        return capsys.readouterr().err

    rising = said(*[0.05] * 10, *[0.29] * 10)
    assert rising.count("many more completions") == 1 and "step 19" in rising
    for repeats in (0.0, 0.9):  # of those cut off, how many box an answer again and again
        longer = said(*[0.05] * 10, *[0.29] * 10, *[0.60] * 5, repeats=repeats)
        assert longer.count("warning") == 1 and "more than half" not in longer
    assert "more than half" in said(*[0.60] * 20) and "many more" not in said(*[0.60] * 20)
    assert said(*[0.05] * 10, 0.5, *[0.05] * 9, *[0.20] * 20) == ""
    assert said(0.05, *[0.27] * 20) == ""  # nor is a first step that was good by luck


def test_a_resumed_run_knows_how_many_were_cut_off_before(tmp_path):
    train_small(tmp_path, "--steps", 2)
    before = [line["truncated"] for line in lines(tmp_path / "a")]
    resumed = runs.Run(tmp_path / "a", 2, {}, SimpleNamespace())
    resumed.go_on()
    assert resumed.warned == {"cut off": before} and len(before) == 2


def test_recomputing_activations_says_nothing_about_transformers(tmp_path):
    """transformers 5.24 renamed the switch and warns of the old name, the only one 5.17 has."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        summary = train_small(tmp_path, "--steps", 1, "--checkpointing")
    assert summary["step"] == 1


# ------------------------------------------------------------------ the memory line


def test_the_memory_estimate_counts_what_it_names():
    """Qwen3-0.6B by hand: 596 M parameters x 16 bytes; 112 KiB of bf16 cache a token."""
    config = flags.parse(flags.flags("grpo", ""), ["--model", "Qwen/Qwen3-0.6B"])
    assert (config.prompts, config.group, config.max_new_tokens, config.steps) == (8, 8, 1024, 200)
    assert (config.temperature, config.lr, config.data) == (1.0, 1e-6, "gsm8k")

    class Shape:
        device = torch.device("cpu")

        class config:
            hidden_size, intermediate_size, num_hidden_layers, vocab_size = 1024, 3072, 28, 151_936
            num_attention_heads, num_key_value_heads, head_dim = 16, 8, 128

        def parameters(self):
            return [torch.empty(596_049_920, device="meta")]

    line = memory.memory_estimate(Shape(), config, 176)
    assert "Adam 9.5" in line and f"KV cache {114_688 * 64 * 1200 / 1e9:.1f}" in line
    assert float(line.split("peak ")[1].split()[0]) < 24


class Allocator:
    """A card of 1,000 bytes and PyTorch's allocator on it, as torch.cuda tells of them. It answers
    for one card only, so a question about another one is an error."""

    def __init__(self, monkeypatch, others, allocated, recorded, cached, limit):
        self.device = torch.device("cuda:1")
        self.graphs = SimpleNamespace(held=lambda: recorded)
        self.free, self.cached, self.limit = 1000 - others, cached, limit
        self.reserved = allocated + recorded + cached
        self.free -= self.reserved
        for name, answer in {"mem_get_info": (self.free, 1000), "memory_allocated": allocated,
                             "memory_reserved": self.reserved,
                             "get_per_process_memory_fraction": limit / 1000}.items():
            monkeypatch.setattr(torch.cuda, name, {self.device: answer}.__getitem__)

    def filled(self):
        """How many bytes can be allocated, one by one, until the memory is full."""
        for count in itertools.count():
            if self.cached:
                self.cached -= 1
            elif self.free and self.reserved < self.limit:
                self.free, self.reserved = self.free - 1, self.reserved + 1
            else:
                return count


@pytest.mark.parametrize("limit, free", [(1000, 530), (700, 530), (699, 529), (400, 230),
                                         (201, 31), (200, 30)])
def test_a_process_s_own_limit_is_no_free_memory(limit, free, monkeypatch):
    """By hand: others have 300 of 1,000 bytes, tensors 120, recordings 50, and 30 are cached. So
    500 are free on the card. The limit counts the 200 of this process."""
    card = Allocator(monkeypatch, 300, 120, 50, 30, limit)
    assert memory.free_bytes(card) == free == card.filled()
    assert memory.room_bytes(card.device) == min(700, limit)


def test_free_memory_is_what_an_allocator_can_fill(monkeypatch):
    for others, allocated, recorded, cached, limit in itertools.product(
            (0, 250), (0, 7, 110), (0, 90), (0, 40), (240, 333, 750, 1000)):
        card = Allocator(monkeypatch, others, allocated, recorded, cached, limit)
        assert memory.free_bytes(card) == card.filled()


def test_a_limit_below_what_is_allocated_leaves_less_than_nothing(monkeypatch):
    """A limit may come late. Then one prompt is tried, and its failure says what to do."""
    card = Allocator(monkeypatch, 0, 120, 50, 30, 100)
    assert memory.free_bytes(card) == -70


def test_the_memory_line_says_what_the_process_may_have(monkeypatch):
    """Its peak counts the weights, so what they take already counts as free."""
    config = flags.parse(flags.flags("grpo", ""), ["--model", "Qwen/Qwen3-0.6B"])
    with torch.device("meta"):
        model = Qwen3ForCausalLM(Qwen3Config(hidden_size=64, num_hidden_layers=1))
    here = Allocator(monkeypatch, 300, 120, 50, 30, 400)
    card = SimpleNamespace(config=model.config, parameters=model.parameters, device=here.device)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (140e9, 150e9))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 0.15)
    assert memory.memory_estimate(card, config, 176).endswith(" GB of 22.5 free")
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 1.0)
    assert memory.memory_estimate(card, config, 176).endswith(" GB of 140.0 free")


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


@pytest.mark.slow
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


# ------------------------------------------------------------------ the held-out curve


def test_a_point_of_the_held_out_curve_is_what_a_run_that_ended_there_measured(tmp_path, capsys):
    """--eval-every 1 --steps 3: points after steps 1 and 2, none after the last one, which is
    measured anyway. Training does not notice, and a resumed run may ask for other points."""
    more = ["--eval-problems", 4, "--eval-samples", 2, "--prompts", 2, "--max-new-tokens", 20]
    whole = run("grpo", tmp_path, *more, "--steps", 3, "--eval-every", 1, "--name", tmp_path / "a")
    printed = capsys.readouterr().out
    ended = run("grpo", tmp_path, *more, "--steps", 1, "--eval-every", 0, "--name", tmp_path / "b")
    rows = [json.loads(text) for text in (tmp_path / "a/metrics.jsonl").open()]
    assert [row["step"] for row in rows if "held_out" in row] == [1, 2]
    there = ended["after"]["sampled"]
    assert [rows[0][f"held_out{end}"] for end in ("", "_low", "_high")] == [
        there["accuracy"], there["low"], there["high"]]
    assert printed.count("held-out problems, sampled") == 2
    assert f"step    1: held-out problems, sampled {100 * there['accuracy']:.1f} % [" in printed

    resumed = run("grpo", tmp_path, *more, "--resume", tmp_path / "b", "--steps", 3,
                  "--eval-every", 2)
    again = [json.loads(text) for text in (tmp_path / "b/metrics.jsonl").open()]
    assert [row["step"] for row in again if "held_out" in row] == [2]
    assert again[1]["held_out"] == rows[1]["held_out"]
    assert resumed["after"]["sampled"]["accuracy"] == whole["after"]["sampled"]["accuracy"]
    a, b = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("mistake, words", [
    (torch.OutOfMemoryError("full"), "does not fit on this card"),
    (FloatingPointError("the logits are not finite"), "the logits are not finite")])
def test_an_evaluation_that_fails_costs_no_step(mistake, words, tmp_path, monkeypatch):
    """The step is saved and logged before; the sentence names the evaluation and the way on."""
    small = ["--eval-problems", 2, "--prompts", 2, "--max-new-tokens", 10, "--save-every", 2]
    argv = [*small, "--eval-every", 2, "--steps", 3]
    sampler, calls = evaluate.sample, []

    def sample(*args, **options):
        calls.append(1)
        if len(calls) > 2:  # the first two measure the accuracy before
            raise mistake
        return sampler(*args, **options)

    monkeypatch.setattr(evaluate, "sample", sample)
    with pytest.raises(BadInput, match="the evaluation after step 2: .*step 2 is safe") as caught:
        run("grpo", tmp_path, *argv, "--name", tmp_path / "run")
    assert words in str(caught.value)
    monkeypatch.undo()
    rows = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [1, 2]
    run("grpo", tmp_path, *small, "--eval-every", 0, "--steps", 3, "--resume", tmp_path / "run")
    rows = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [1, 2, 3]


def test_a_stopped_run_evaluates_no_more_and_says_what_it_finishes(tmp_path, capfd):
    asked = runs.Run(tmp_path, 2, {}, SimpleNamespace(eval_every=2, steps=9))
    with checkpoints.graceful_stop(asked, None):
        asked.evaluating = True
        os.kill(os.getpid(), signal.SIGTERM)
    assert "SIGTERM: finishing the evaluation after step 2; again" in capfd.readouterr().err
    assert evaluate.point(None, None, ["a problem"], asked.config, asked) == {}


def test_a_run_is_resumed_from_its_own_folder(tmp_path, half, monkeypatch):
    """`.` is no name for a new run, but --resume . names an old one."""
    monkeypatch.chdir(half)
    run("grpo", tmp_path, "--resume", ".", "--steps", 3)
    assert json.loads((half / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 3


def test_a_run_from_before_eval_every_is_not_evaluated_on_the_way(half):
    config = json.loads((half / "config.json").read_text())
    del config["eval_every"]
    (half / "config.json").write_text(json.dumps(config))
    for argv, every in ([], 0), (["--eval-every", "7"], 7):
        parsed = flags.parse(flags.flags("grpo", ""), ["--resume", str(half), *argv])
        assert parsed.eval_every == every


def test_a_resumed_run_shows_no_example_of_a_step_that_is_to_come(tmp_path):
    """One of a step that is done stays, as in a run that was not stopped."""
    def resumed(at, **example):
        run = runs.Run(tmp_path, at, {}, None)
        run.summarise(step=9, after={"x": 1}, example={"A": 1, **example})
        run.go_on()
        return json.loads((tmp_path / "summary.json").read_text())

    kept = resumed(5, step=5)
    assert kept["example"] == {"A": 1, "step": 5} and kept["after"] is None and kept["step"] == 5
    assert resumed(5, step=6)["example"] is None
    assert resumed(5)["example"] is None  # of an older run, which does not say
