r"""A run: its folder, its checkpoints, its log and its warnings.

Skip this on a first reading.

A run is a folder, runs/NAME/:

    config.json     every flag, resolved         metrics.jsonl   one line a step
    checkpoint/     a Hugging Face folder and    samples.jsonl   one group of completions a step
                    trainer.pt (Adam, step)      summary.json    accuracy before and after
    snapshots/      step_00010/ ...: fp32 weights for relex.py, with --snapshot-every 10
    held_out.jsonl  of your own --data file: the problems that the run does not train on
    pages/          the credit of some steps; index.html lists them

and lock, an empty file: while one process trains the run, no other process can resume it.
AutoModelForCausalLM loads the checkpoints; checkpoints.py writes and resumes them. --name can be
any path, and a run writes only there. No path comes from inside a model, a data file or a
checkpoint. A run never writes into an existing folder: the next run of that name is NAME-2.

What we left out, on purpose: trackers, callbacks, YAML, a config object.
"""
import hashlib
import itertools
import json
import math
import os
import shlex
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch.utils.checkpoint import checkpoint as recomputed

from engine import lines
from engine.checkpoints import (
    FREE,
    check_room,
    fingerprint,
    restore,
    save,
    settings_of,
    short_sha,
    snapshot,
)
from engine.errors import BadInput
from engine.files import append, drop_steps_after, hold, write
from engine.flags import flags, parse
from engine.memory import memory_estimate, peak_gb

# ------------------------------------------------------------------------------ a run


class Step(NamedTuple):
    """The parts of a training step that are logged and shown."""
    rows: list                # the N problems
    rollouts: object          # B = N * G rows
    rewards: torch.Tensor     # (N, G)
    advantages: torch.Tensor  # (N, G), from the group's rewards
    own: torch.Tensor | None  # (B, T) a method's own advantages of the tokens
    weights: torch.Tensor     # (B, T), 0 where nothing was trained


class Run:
    """An open run. `step` is the last finished step. `signal` is set if the run must stop."""

    def __init__(self, folder, step, settings, config):
        self.folder = folder
        self.step = self.saved = step
        self.settings = settings  # a checkpoint must have the same
        self.config = config
        self.signal = None
        self.evaluating = False  # between this step and the next
        self.example = None
        self.warned = {}
        self.columns = None  # of the table of steps, chosen at the first one
        self.printed = 0     # lines of that table

    def log(self, metrics, own, done, vocabulary):
        """Print and store a step's metrics, store one group of its samples, and warn.

        own: the method's own metrics. done: a Step. vocabulary: V, for the entropy warning.
        """
        self.print_step(metrics, own)
        warn(metrics, done.weights, self.config, vocabulary, self.warned)
        append(self.folder / "metrics.jsonl", [metrics])
        # Store one whole group: to debug RL, read samples.
        append(self.folder / "samples.jsonl", [
            {"step": self.step, "problem": done.rows[0]["problem"], "gold": done.rows[0]["answer"],
             "completion": text, "reward": float(reward)}
            for text, reward in zip(done.rollouts.texts, done.rewards[0])])
        i = most_reweighted(done)
        if i is not None:
            self.example = {"step": self.step, **example_of(done, i)}

    def print_step(self, metrics, own):
        """Print the step as a line of a table. A legend comes before the first line."""
        if self.columns is None:
            width = lines.terminal_width()
            self.columns = lines.columns_for(width, own, metrics)
            print(f"\n{lines.legend(self.columns, width)}\n"
                  f"all figures of a step: {self.folder}/metrics.jsonl\n")
        if self.printed % lines.EVERY == 0:
            print(lines.heading(self.columns))
        print(lines.line(self.columns, metrics), flush=True)
        self.printed += 1

    def add(self, found):
        """Add a point of the held-out curve, or {}, to the log's last step, and print it."""
        if not found:
            return
        path = self.folder / "metrics.jsonl"
        before, _, line = path.read_text().rstrip("\n").rpartition("\n")
        write(path, f"{before}\n{json.dumps(json.loads(line) | found)}\n".lstrip())
        share, low, high = (100 * found[f"held_out{end}"] for end in ("", "_low", "_high"))
        print(f"step {self.step:4d}: held-out problems, sampled {share:.1f} % "
              f"[{low:.1f}, {high:.1f}]", flush=True)

    def save(self, model, tokenizer, optimizer, last=False):
        """Write the snapshot and the checkpoint that are due. The last step gets a checkpoint."""
        every = self.config.snapshot_every
        if every and self.step % every == 0 and not last:
            snapshot(self.folder, model, self.step)  # first, because a saved step never runs again
        every = self.config.save_every
        if self.saved < self.step and (last or every and self.step % every == 0):
            save(self.folder, model, tokenizer, optimizer, self.step, self.settings)
            self.saved = self.step
        if last:
            self.summarise(step=self.step)
            if self.example:
                self.summarise(example=self.example)

    def keep(self, held_out):
        """Write the held-out problems of the user's own file, so that evaluate.py can use them."""
        if held_out and self.config.data.endswith(".jsonl"):
            rows = [json.dumps(row, ensure_ascii=False) + "\n" for row in held_out]
            write(self.folder / "held_out.jsonl", "".join(rows))

    def summarise(self, **found):
        """Put what is found into summary.json; returns all that it holds. None takes a part back:
        it was that of another step."""
        path = self.folder / "summary.json"
        summary = dict.fromkeys(("step", "before", "after", "example"))
        try:
            summary |= json.loads(path.read_text()) if path.exists() else {}
        except (ValueError, TypeError):
            print(f"{path}: it was damaged and is written again.", file=sys.stderr, flush=True)
        summary |= found
        summary["folder"] = str(self.folder)
        write(path, json.dumps(summary, indent=1))
        return summary

    def go_on(self):
        """For a resumed run: take back what summary.json holds of steps that are to come, and read
        the shares of cut-off completions, of which `warn` asks whether they rise."""
        path = self.folder / "metrics.jsonl"
        done = path.read_text().splitlines() if path.exists() else []
        self.warned["cut off"] = [step["truncated"] for step in map(json.loads, done)
                                  if "truncated" in step]
        example = self.summarise(step=self.step, after=None)["example"]
        if example and example.get("step", math.inf) > self.step:
            self.summarise(example=None)

    def end(self):
        """Print where everything is. Raises SystemExit if a signal ended the run."""
        print(f"checkpoint, metrics and samples are in {self.folder}")
        if self.signal:
            print(f"stopped after step {self.step}; continue with --resume {self.folder}")
            raise SystemExit(128 + self.signal)


def unused(name):
    """NAME, or the first of NAME-2, NAME-3, ... that is not there: never an older run's folder."""
    name = Path(name)
    more = (Path(f"{name}-{i}") for i in itertools.count(2))
    return next(path for path in itertools.chain([name], more) if not os.path.lexists(path))


def make_folder(folder, name):
    """Make this folder, or the next of NAME if another process made it just now. Returns it."""
    while True:
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            if not os.path.lexists(folder):  # a part of its path is a file
                raise
            folder = unused(name)


def open_run(config, optimizer, rows, checkpoint=None, reference=None, held_out=()):
    """A Run, new or continued from this checkpoint. `reference`: the model of the KL penalty.

    Raises BadInput: a folder that cannot be written, a full disk, a checkpoint of another run.
    """
    settings = {k: v for k, v in vars(config).items() if k not in FREE}
    for name, part in (("problems", rows), ("held_out", held_out)):
        asked = json.dumps([[row["id"], row["problem"], row["answer"]] for row in part])
        settings[name] = hashlib.sha256(asked.encode()).hexdigest()
    if reference is not None:
        settings["kl_reference"] = fingerprint(reference)
        settings["kl_reference_config"] = short_sha(settings_of(reference.config))
    folder, step = checkpoint.parent if checkpoint else unused(config.name), 0
    try:
        saves_once = not checkpoint and not 0 < config.save_every < config.steps
        snapshots = config.steps // (config.snapshot_every or config.steps + 1)
        check_room(folder, optimizer, 1 if saves_once else 2, snapshots)
        if checkpoint:
            refuse_to_go_back_only(checkpoint, config)
            step = restore(checkpoint, optimizer, settings)
            for name in ("metrics.jsonl", "samples.jsonl"):
                drop_steps_after(folder / name, step)
            if config.steps <= step:
                say_there_is_no_step_left(folder, step, config)
        else:
            folder = make_folder(folder, config.name)
            hold(folder)
        write(folder / "config.json", json.dumps(vars(config), indent=1))
        run = Run(folder, step, settings, config)
        if checkpoint and step < config.steps:
            run.go_on()
    except OSError as error:
        raise BadInput(f"--name {folder}: cannot write there ({error.strerror}).") from None
    return run


def refuse_to_go_back_only(checkpoint, config):
    """Raise BadInput if an older checkpoint has no step left to train: to make it the newest would
    only undo the steps after it."""
    done = json.loads((checkpoint / "manifest.json").read_text())["step"]  # `find` has checked it
    if checkpoint.name == "checkpoint.old" and config.steps <= done:
        raise BadInput(f"--resume {checkpoint} --steps {config.steps}: it has done {done} steps, "
                       "so none is left to train, and later ones would be undone; to measure it: "
                       f"python evaluate.py --model {checkpoint}.")


def say_there_is_no_step_left(folder, step, config):
    """For --resume with --steps that are already done: undo nothing, and keep the steps done in
    config.json."""
    text = (f"--steps {config.steps}: {folder} has done {step} steps, so none is left to train and "
            "none is undone; its accuracy is measured again. "
            f"To train on: --resume {folder} --steps {2 * step}")
    print(lines.wrapped(text, lines.terminal_width()))
    config.steps = step


def next_commands(folder, config):
    """Two commands (strings) to try after a run: the baseline on the same problems, and this
    model's evaluation on problems that it was not trained on."""
    data = config.data
    if (folder / "held_out.jsonl").exists():
        data = folder / "held_out.jsonl"
    tries = [*words_of("model", folder / "checkpoint"), *words_of("data", data)]
    if config.max_new_tokens > 512:  # evaluate.py's own default
        tries += ["--max-new-tokens", config.max_new_tokens]
    if config.thinking:
        tries.append("--thinking")
    return [shlex.join(map(str, ["python", *words])) for words in
            (("grpo.py", *baseline_flags(config)), ("evaluate.py", *tries))]


def baseline_flags(config):
    """The flags (list) with which grpo.py trains as this run did, its credit apart."""
    found = [] if config.model == "tiny" else words_of("model", config.model)
    usual = vars(parse(flags("grpo", ""), list(found)))
    for name in sorted(set(usual) - {"model", "method", "name", "resume", "credit", "compile"}):
        value = getattr(config, name, usual[name])
        if value != usual[name]:
            found += words_of(name, value)
    return found


def words_of(name, value):
    """The words (list) of a flag on a command line, also where the value begins with a dash."""
    name = f"--{name.replace('_', '-')}"
    if value is True:
        return [name]
    return [f"{name}={value}"] if str(value).startswith("-") else [name, value]


def print_settings(config, model, tokenizer, prompts, total, longest, stops):
    """Print all settings before the run starts. stops: token ids."""
    size = sum(p.numel() for p in model.parameters()) / 1e6
    print(f"{config.method}: {config.model} ({size:.2f} M parameters) on {model.device}, "
          f"{config.data} ({total:,} problems)")
    width = lines.terminal_width()
    settings = " ".join(f"{k}={v}" for k, v in sorted(vars(config).items()))
    print(lines.wrapped(f"settings: {settings}", width))
    print("stopping on:", [tokenizer.decode([i]) for i in stops])
    read = [tokenizer.decode(tokenizer(prompt, add_special_tokens=False).input_ids)
            for prompt in prompts]  # decoded from the tokens, which the model sees
    print("first prompt:", *map(repr, read))
    print(lines.wrapped(memory_estimate(model, config, longest), width))


def enable_checkpointing(model):
    """Compute the activations of each layer again in the backward.

    Hugging Face's own switch works only in train mode. That would turn on dropout in the loss but
    not in the sampler.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer  # slow: not for every run

    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.forward = twice(layer.forward)


def twice(forward):
    """A layer's forward that runs again in the backward; unchanged without graph or with cache."""
    def called(*args, **options):
        caching = any(options.get(name) is not None for name in ("cache", "past_key_values"))
        if caching or not torch.is_grad_enabled():
            return forward(*args, **options)
        return recomputed(forward, *args, use_reentrant=False, **options)
    return called


# ------------------------------------------------------------------------------ one step


class Clock:
    """Seconds and peak memory of one step, and the shares of time for sampling and judging."""

    def __init__(self, model):
        self.model = model
        peak_gb(model)  # resets the peak of loading, evaluating and saving
        self.start = time.time()

    def sampling_ended(self):
        """Read the sampler's peak on its own: recordings may be freed while it runs."""
        self.sampling_peak = peak_gb(self.model)
        self.sampled = self.judged = time.time()

    def judging_ended(self):
        """The rewards are known. Grading takes almost no time, but vine.py samples for it."""
        self.judged = time.time()

    def metrics(self, rollouts):
        """The step's figures for the log."""
        seconds = time.time() - self.start
        return {"tokens_per_second": int(rollouts.lengths.sum()) / seconds, "seconds": seconds,
                "peak_gb": max(self.sampling_peak, peak_gb(self.model)),
                "sampling_share": (self.sampled - self.start) / seconds,
                "judging_share": (self.judged - self.sampled) / seconds}


def warn(metrics, weights, config, vocabulary, seen):
    """Print a warning for what looks wrong in this step's metrics, each only once.

    seen: a dict that stays with the run, of what was said and what the steps before had.
    weights (B, T) of the step, 0 where nothing was trained. vocabulary: V.
    """
    seen["alike"] = 0 if metrics["informative"] else seen.get("alike", 0) + 1
    on, flat = weights[weights > 0], math.log(vocabulary)  # (tokens,)
    moved = on[on != 1]  # (tokens,) where the method differs from GRPO
    trained = metrics["informative"] > 0
    endless = metrics["repeats"] > 0.5 * metrics["truncated"]

    cut = seen.setdefault("cut off", [])
    cut.append(metrics["truncated"])
    first, last = sum(cut[:10]) / len(cut[:10]), sum(cut[-10:]) / len(cut[-10:])
    rises = last > first + 0.2
    wrong = {
        "many more completions are cut off than in the first steps. If the reward rises, too, "
        "raise --max-new-tokens. If not, answers get longer for nothing: lower --lr, and in "
        "grail.py try --reweight both": rises,
        "more than half of the completions are cut off: raise --max-new-tokens":
            metrics["truncated"] > 0.5 and not endless and not rises,
        "more than half of the completions are cut off, and most of these box an answer again and "
        "again: the model does not stop, so more tokens will not help. They earn no reward. With "
        "--mask-truncated they are left out of the loss, too":
            metrics["truncated"] > 0.5 and endless and not rises,
        "no group has been informative for 10 steps, so nothing is learned: easier or harder --data"
        ", or a larger --group": seen["alike"] >= 10,
        "entropy is near 0, so the rollouts of a group are all the same: lower --lr":
            trained and metrics["entropy"] < 0.01,
        f"entropy is near ln V = {flat:.1f}, so the text is random: lower --lr, or check --model":
            trained and metrics["entropy"] > 0.9 * flat,
        r"more than half of the completions have no \boxed{}, and none of those can be rewarded: "
        "raise --max-new-tokens, or take a --model that follows the prompt":
            metrics["boxed"] < 0.5 and not rises,
        "every weight other than 1 is at a bound: saliency has no information, compare grpo.py":
            len(moved) > 10 and bool(((moved == on.min()) | (moved == on.max())).all()),
    }
    for text, found in wrong.items():
        if found and text not in seen:
            seen[text] = True
            print(f"warning, step {metrics['step']}: {text}.", file=sys.stderr, flush=True)


def most_reweighted(done):
    """The row (int) of this Step whose weights differ most from 1, to show it.

    None if no completion was trained. Rows of advantage 0 were skipped and have weights 0.
    """
    weights = done.weights                                                   # (B, T)
    on = done.rollouts.completion_mask & (weights.sum(1, keepdim=True) > 0)  # (B, T)
    i = int(((weights - 1).abs() * on).sum(1).argmax())
    return i if on[i].any() else None


def example_of(done, i):
    """Row i of a Step as a dict of plain lists and numbers, for summary.json."""
    rollouts, n = done.rollouts, int(done.rollouts.lengths[i])
    row = done.rows[i // done.rewards.shape[1]]
    return {
        "problem": row["problem"],
        "gold": row["answer"],
        "reward": float(done.rewards.flatten()[i]),
        "A": float(done.advantages.flatten()[i]),
        "own": None if done.own is None else done.own[i, :n].tolist(),
        "ids": rollouts.completion_ids[i, :n].tolist(),
        "weights": done.weights[i, :n].tolist(),
        "p": rollouts.logprobs[i, :n].exp().tolist(),  # the sampler's
        "entropy": rollouts.entropy[i, :n].tolist(),
    }
