"""Twenty runs killed at random moments, each resumed to the end: every one is the undisturbed run.

    python -m pytest -m slow tests/test_crash.py        # what .ci/run does
    python tests/test_crash.py FOLDER                   # the same, with a line a kill

The children are forked from one process that has imported everything and computed nothing (torch
has no threads yet), so that a run of four steps takes about a second.
"""
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import pytest

os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from safetensors.torch import load_file

import grpo
import problems
from engine import checkpoints  # all of it before the first fork

KILLS = 20
ARGV = ["--steps", "4", "--prompts", "4", "--group", "8", "--max-new-tokens", "24", "--warmup", "1",
        "--eval-problems", "0", "--save-every", "1", "--snapshot-every", "2"]


@pytest.mark.slow
def test_killed_runs_resume_to_the_undisturbed_run(tmp_path):
    """A checkpoint that is half written, a log line too many or a random number drawn twice: each
    leaves a run that ends elsewhere. 20 of 20 must end on the same bits."""
    done = subprocess.run([sys.executable, __file__, tmp_path], capture_output=True, text=True,
                          timeout=300)
    print(done.stdout, done.stderr[-2000:])
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines[-1] == f"{KILLS} of {KILLS} recovered, bit for bit"
    assert len({line.split()[2] for line in lines[:-1]}) >= 3  # the kills were not all alike


def start(argv, log):
    """Fork a child that runs grpo.main(argv) and exits with its code; returns the process id."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND), 1)
        os.dup2(1, 2)
        code = 1
        try:
            grpo.main(argv)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:  # never back into the parent's loop
            sys.stdout.flush()
            os._exit(code)
    return child


def wait(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def contents(folder):
    """What a run has come to, without what a clock says: two dicts and the bits of two files."""
    state = torch.load(folder / "checkpoint/trainer.pt", weights_only=True)
    tensors = load_file(folder / "checkpoint/model.safetensors")
    for step in (2, 4):
        saved = load_file(folder / f"snapshots/step_{step:05d}/model.safetensors")
        tensors |= {f"{step}.{name}": tensor for name, tensor in saved.items()}
    for i, moments in state["optimizer"]["state"].items():
        tensors |= {f"{i}.{name}": tensor for name, tensor in moments.items()}
    clock = ("seconds", "tokens_per_second", "sampling_share", "judging_share", "peak_gb")
    lines = [json.loads(line) for name in ("metrics", "samples")
             for line in (folder / f"{name}.jsonl").open()]
    lines = [{k: v for k, v in line.items() if k not in clock} for line in lines]
    bits = {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}
    return bits, lines, state["step"]


def logged(run):
    """Lines in the run's log so far (int)."""
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def main(folder):
    problems.load_policy()  # imports the model's own modules, too, before the first fork
    data = folder / "few.jsonl"  # fewer than the embedded ones: they load in no time
    embedded = Path(__file__).resolve().parent.parent / "data/arithmetic_train.jsonl"
    data.write_text("".join(embedded.read_text().splitlines(keepends=True)[:60]))
    argv = [*ARGV, "--data", str(data)]
    moment, whole, good = random.Random(0), folder / "whole", 0
    began = time.monotonic()
    assert wait(start([*argv, "--name", str(whole)], folder / "whole.log")) == 0
    length = (time.monotonic() - began) / 5  # of a step, and of what comes before the first
    expected = contents(whole)
    learned = sum(line.get("grad_norm", 0) > 0 for line in expected[1])
    assert learned >= 3, f"only {learned} steps had a gradient, so nothing could differ"
    for i in range(KILLS):
        run, log = folder / f"run-{i}", folder / f"{i}.log"
        child = start([*argv, "--name", str(run)], log)
        step, part = divmod(moment.uniform(0, 4), 1)
        while logged(run) < step or not run.exists():
            time.sleep(0.001)
        time.sleep(part * length)
        os.kill(child, signal.SIGKILL)
        killed, lines = wait(child) == -signal.SIGKILL, logged(run)
        if any(run.glob("checkpoint*/manifest.json")):
            step = checkpoints.step_of(checkpoints.find(run))
            child = start([*argv, "--resume", str(run)], log)
        else:  # before the first checkpoint: from the start, in a folder beside it
            child = start([*argv, "--name", str(run)], log)
            step, run = 0, folder / f"run-{i}-2"
        same = wait(child) == 0 and contents(run) == expected
        good += same
        print(f"kill {i:2d}: {lines} steps logged, resumed from {step}"
              f"{'' if killed else ' (had ended)'}: {'the same' if same else 'DIFFERENT'}")
        if not same:
            print(log.read_text()[-1500:])
    print(f"{good} of {KILLS} recovered, bit for bit")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
