r"""What a run is: its flags, its folder, its checkpoints, and its lines on memory and accuracy.

Skip this on a first reading.

A run is a folder, runs/NAME/:

    config.json     every flag, resolved         metrics.jsonl   one line a step
    checkpoint/     a Hugging Face folder and    samples.jsonl   one group of completions a step
                    trainer.pt (Adam, step)      summary.json    accuracy before and after
    snapshots/      step_00010/ ...: fp32 weights for relex.py, with --snapshot-every 10

Checkpoints load wherever AutoModelForCausalLM does; checkpoints.py writes and resumes them.
--name is a path of yours, absolute or with .. if you say so, and all that a run writes lies in it.
No path is made of what a model, a data file or a checkpoint says, and an existing folder is never
written into: the next run of that name is NAME-2.

What we left out, on purpose: trackers, callbacks, YAML, a config object.
"""
import argparse
import hashlib
import itertools
import json
import math
import re
import sys
import warnings
from pathlib import Path

import torch

from engine.checkpoints import (
    FREE,
    append,
    check_room,
    differing,
    latest,
    restore,
    run_folder,
    trim,
    write,
)
from engine.errors import BadInput
from engine.memory import memory_estimate

# The tiny embedded model learns in a minute at settings that would wreck a real one. They were
# chosen with grpo.py alone and frozen before any other method was run.
DEMO = dict(data="arithmetic", device="cpu", steps=40, prompts=16, max_new_tokens=72, lr=2e-4,
            warmup=5, tokens_per_microbatch=8192, eval_problems=200, eval_samples=4,
            save_every=0)

# ------------------------------------------------------------------------------ flags


def flags(method, description):
    """The flags of every method. Without --model the defaults are the demonstration's, see DEMO."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        epilog="without --model: " + ", ".join(f"{k} {v}" for k, v in DEMO.items()))
    add = parser.add_argument
    add("--model", default="tiny", help="hub id or folder; tiny is the embedded one")
    add("--data", default="gsm8k", help="a name from problems.py, or a .jsonl file")
    add("--steps", type=int, default=200, help="batches of rollouts")
    add("--prompts", type=int, default=8, help="N, problems a step")
    add("--group", type=int, default=8, help="G, rollouts a problem")
    add("--max-new-tokens", type=int, default=1024, help="T, longest completion")
    add("--temperature", type=float, default=1.0, help="of sampling and of scoring alike")
    add("--thinking", action="store_true", help="leave Qwen3's thinking mode on")
    add("--lr", type=float, default=1e-6, help="AdamW's learning rate after the warm-up")
    add("--warmup", type=int, default=10, help="steps of linear warm-up")
    add("--inner", type=int, default=1, help="optimizer steps on each batch of rollouts")
    add("--loss", default="token", choices=["token", "sequence", "constant"],
        help="what a token's term is divided by, see grpo.token_scale")
    add("--clip-low", type=float, default=0.2, help="a ratio may fall to 1 - this")
    add("--clip-high", type=float, default=0.28, help="a ratio may rise to 1 + this")
    add("--kl", type=float, default=0.0, help="weight of the KL to the start; 0: no reference")
    add("--scale-by-std", action="store_true", help="divide advantages by their group's std")
    add("--mask-truncated", action="store_true", help="drop cut-off completions from the loss")
    add("--credit", default="method", choices=["method", "shuffled", "uniform"],
        help="control: the method's weights permuted within each completion, or all 1")
    add("--reward", default="outcome", choices=["outcome", "random"],
        help="control: a fair coin in place of the verdict")
    add("--grad-clip", type=float, default=1.0, help="largest gradient norm")
    add("--tokens-per-microbatch", type=int, default=2560, help="tokens a forward, with padding")
    add("--compile", action=argparse.BooleanOptionalAction,
        default=False,
        help="on CUDA: fuse and record the layers (engine/graphs.py); half a minute once")
    add("--checkpointing", action="store_true", help="recompute activations: less memory, slower")
    add("--eval-problems", type=int, default=200, help="held-out problems before and after")
    add("--eval-samples", type=int, default=1, help="sampled completions for each of them")
    add("--save-every", type=int, default=50, help="steps between checkpoints; 0: at the end")
    add("--pages-every", type=int, default=20,
        help="steps between pages of credit, right and wrong completions; 0: none")
    add("--snapshot-every", type=int, default=0, help="steps between snapshots for relex.py")
    add("--seed", type=int, default=0)
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--name", default="", help="folder of the run (default runs/METHOD-MODEL-seedSEED)")
    add("--resume", default="", help="a run's folder, or latest; its settings are kept")
    parser.set_defaults(method=method)
    return parser


def parse(parser, argv=None):
    """Parse the flags: DEMO's defaults for the tiny model, the run's own with --resume."""
    args = parser.parse_args(argv)
    if args.resume:
        resume = latest(args.method) if args.resume == "latest" else args.resume
        path, method = run_folder(resume) / "config.json", args.method
        try:
            saved = json.loads(path.read_text())
            known = {k: v for k, v in vars(args).items() if k in saved and v is not None}
            odd = [k for k, v in known.items() if type(v) is not type(saved[k])]
        except (OSError, ValueError, TypeError):
            raise BadInput(f"--resume {resume}: no readable config.json there, "
                           "so it is no run's folder.") from None
        if odd or "method" not in saved:
            raise BadInput(f"--resume {resume}: {odd or 'method'} in {path} is damaged.")
        parser.set_defaults(**saved)
        args = parser.parse_args(argv)
        wrong = differing(saved, {**vars(args), "method": method})
        if wrong:
            raise BadInput(f"--resume {resume}: {wrong}; start a new run for other settings.")
        args.resume = resume
    elif args.model == "tiny":
        parser.set_defaults(**DEMO)
        args = parser.parse_args(argv)
    if args.compile and not args.device.startswith("cuda"):
        print("--compile is for CUDA cards; this run goes without", file=sys.stderr)
        args.compile = False
    if not args.name:
        model = Path(args.model).resolve() if Path(args.model).is_dir() else Path(args.model)
        model = run_folder(model)  # a run's checkpoint is called after the run
        model = re.sub(r"[^\w.-]", "_", model.name).strip(".") or "model"
        args.name = f"runs/{args.method}-{model}-seed{args.seed}"
    return args


def check(config):
    """Raise BadInput for settings that cannot work, before anything is loaded."""
    if config.group < 2:
        raise BadInput(f"--group {config.group}: a group of one has no one to be compared with; "
                       "take 2 or more.")
    if config.temperature <= 0:
        raise BadInput(f"--temperature {config.temperature}: greedy rollouts are all alike; "
                       "take 1.0.")
    if config.compile and config.checkpointing:
        raise BadInput("--checkpointing: recordings of --compile keep what they compute; take one.")
    least = dict.fromkeys(("steps", "prompts", "max_new_tokens", "inner", "tokens_per_microbatch",
                           "eval_samples"), 1)
    least |= dict.fromkeys(("lr", "warmup", "clip_low", "clip_high", "kl", "eval_problems",
                            "save_every", "snapshot_every", "pages_every", "seed"), 0)
    for name, value in {**least, "grad_clip": 1e-9, "temperature": 0}.items():
        if not value <= getattr(config, name) < 2**40:  # NaN is not, either
            raise BadInput(f"--{name.replace('_', '-')} {getattr(config, name)}: "
                           f"must be at least {value:g} and below 2^40.")
    if config.prompts * config.group > 2**20:
        raise BadInput(f"--prompts {config.prompts} x --group {config.group}: more than a million "
                       "rollouts a step; take fewer.")


# ------------------------------------------------------------------------------ the folder


def open_run(config, optimizer, rows, checkpoint=None):
    """(folder, step to start from, settings that a checkpoint must agree with): new or continued.

    Raises BadInput: a folder that cannot be written, a disk too full, a checkpoint of another run.
    """
    asked = json.dumps([[row["id"], row["problem"], row["answer"]] for row in rows])
    settings = {k: v for k, v in vars(config).items() if k not in FREE}
    settings["problems"] = hashlib.sha256(asked.encode()).hexdigest()
    folder, step = Path(config.name), 0
    if checkpoint:
        folder = checkpoint.parent
    else:
        for i in itertools.count(2):  # never write over an older run
            if not folder.exists():
                break
            folder = Path(f"{config.name}-{i}")
    try:
        check_room(folder, optimizer, config.steps // (config.snapshot_every or config.steps + 1))
        if checkpoint:
            step = restore(checkpoint, optimizer, settings)
            for name in ("metrics.jsonl", "samples.jsonl"):
                trim(folder / name, step)
        else:
            folder.mkdir(parents=True)
        write(folder / "config.json", json.dumps(vars(config), indent=1))
    except OSError as error:
        raise BadInput(f"--name {folder}: cannot write there ({error.strerror}).") from None
    return folder, step, settings


def report(folder, **found):
    """Add to summary.json what is not None; returns all of it, with the first part's "before"."""
    path = folder / "summary.json"
    old = json.loads(path.read_text()) if path.exists() else dict.fromkeys(
        ("step", "before", "after", "example"))
    new = old | {k: v for k, v in found.items() if v is not None} | {"folder": str(folder)}
    write(path, json.dumps(new, indent=1))
    return new


def announce(config, model, tokenizer, prompts, total, longest, stops):
    """What is about to happen, resolved, before it takes any time. stops: ids, ints."""
    size = sum(p.numel() for p in model.parameters()) / 1e6
    print(f"{config.method}: {config.model} ({size:.2f} M parameters) on {model.device}, "
          f"{config.data} ({total:,} problems)")
    print("settings:", " ".join(f"{k}={v}" for k, v in sorted(vars(config).items())))
    print("stopping on:", [tokenizer.decode([i]) for i in stops])
    print("first prompt:", *map(repr, prompts))
    print(memory_estimate(model, config, longest))


def recompute(model):
    """Switch gradient checkpointing on: Hugging Face models do it in train mode only."""
    with warnings.catch_warnings():  # transformers 5.24 renamed it; 5.17 has the old name alone
        warnings.simplefilter("ignore", FutureWarning)
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()


# What diagnoses RL, one line a step. Entropy, clipped and gap (sampler's against scorer's
# log-probs, mean and largest) are of the completions that had a gradient: 0 where none had.
LOG = ("step {step:4d}  reward {reward:.3f}  informative {informative}/{groups}  "
       "truncated {truncated:.0%}  length {length:.0f}  entropy {entropy:.3f}  "
       "clipped {clipped:.1%}  grad {grad_norm:.3f}  "
       "weight {weight_mean:.2f} [{weight_min:.2f}, {weight_max:.2f}]  "
       "ess {ess:.2f}  top10 {top10:.0%}  "
       "gap {gap_mean:.0e}/{gap_max:.0e}  {tokens_per_second:,.0f} tok/s  {peak_gb:.1f} GB  "
       "{seconds:.1f} s")


def record(folder, line, row, texts, rewards):
    """Write the step's line, and one whole group of it: RL is debugged by reading samples."""
    append(folder / "metrics.jsonl", [line])
    append(folder / "samples.jsonl", [
        {"step": line["step"], "problem": row["problem"], "gold": row["answer"],
         "completion": text, "reward": float(reward)} for text, reward in zip(texts, rewards)])


def warn(line, weights, config, vocabulary, seen):
    """Say what looks wrong in this step's line, each thing once; `seen` (dict) remembers.

    weights (B, T) of the step, 0 where nothing was trained; vocabulary: V.
    """
    seen["alike"] = 0 if line["informative"] else seen.get("alike", 0) + 1
    on, flat = weights[weights > 0], math.log(vocabulary)  # (tokens,)
    moved = on[on != 1]  # (tokens,) where the method departs from GRPO
    trained = line["informative"] > 0
    wrong = {
        "more than half of the completions are cut off: raise --max-new-tokens":
            line["truncated"] > 0.5,
        "no group has been informative for 10 steps, so nothing is learned: easier or harder --data"
        ", or a larger --group": seen["alike"] >= 10,
        "entropy is near 0, so the rollouts of a group are all alike: lower --lr":
            trained and line["entropy"] < 0.01,
        f"entropy is near ln V = {flat:.1f}, the policy babbles: lower --lr, or check --model":
            trained and line["entropy"] > 0.9 * flat,
        r"more than half of the completions have no \boxed{}, and none of those can be rewarded: "
        "raise --max-new-tokens, or take a --model that follows the prompt": line["boxed"] < 0.5,
        "every weight other than 1 is at a bound: saliency says nothing here, compare with grpo.py":
            len(moved) > 10 and bool(((moved == on.min()) | (moved == on.max())).all()),
    }
    for text, found in wrong.items():
        if found and text not in seen:
            seen[text] = True
            print(f"warning, step {line['step']}: {text}.", file=sys.stderr, flush=True)


def widest(rollouts, rewards, weights, asked):
    """The completion of this step whose weights stray most from 1, for show: a dict of plain lists.

    None if no completion was trained; those of advantage 0 were skipped and have weights 0.
    """
    on = rollouts.completion_mask & (weights.sum(1, keepdim=True) > 0)  # (B, T)
    i = int(((weights - 1).abs() * on).sum(1).argmax())
    if not on[i].any():
        return None
    ids, w = rollouts.completion_ids[i][on[i]].tolist(), weights[i][on[i]].tolist()
    return {"ids": ids, "weights": w, "problem": asked[i // rewards.shape[1]]["problem"],
            "reward": float(rewards.flatten()[i])}
