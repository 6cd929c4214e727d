"""The flags of every method, their defaults, and the checks before anything is loaded.

Skip this on a first reading.
"""
import argparse
import json
import os
import re
import sys
from pathlib import Path

import torch

from engine.checkpoints import differing, latest, run_folder
from engine.errors import BadInput, at_most

# The tiny embedded model learns in a minute, with settings that would ruin a real one. We chose
# them with grpo.py only, and then froze them; the learning rate is what the study's sweep chose.
DEMO = dict(data="arithmetic", device="cpu", steps=40, prompts=16, max_new_tokens=72, lr=1e-4,
            warmup=5, tokens_per_microbatch=8192, eval_problems=200, eval_samples=4,
            eval_every=0, save_every=2)  # a save takes a tenth of a step
# Long chains in small batches: here it helps to know which line was wrong (data/make_tiny.py).
DEMO_LONG = {**DEMO, "data": "arithmetic-long", "steps": 80, "prompts": 2, "max_new_tokens": 160,
             "lr": 5e-5, "save_every": 10}
DEMOS = {"tiny": DEMO, "tiny-long": DEMO_LONG}

# ------------------------------------------------------------------------------ flags


class Help(argparse.ArgumentDefaultsHelpFormatter):
    """--help with each flag's default, and the demonstration's default if it differs."""

    def _get_help_string(self, action):
        text = super()._get_help_string(action)
        demo = DEMO.get(action.dest, action.default)
        if demo != action.default:
            text = text.replace("(default: %(default)s)",
                                f"(default: %(default)s; without --model: {demo})")
        return text


def flags(method, description):
    """The parser of a method. The method adds its own flags later; they are listed first.

    Without --model, or with --model tiny-long, the defaults are those of a demonstration in DEMOS.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=Help,
        epilog="--model tiny-long has its own defaults: "
               + ", ".join(f"--{k.replace('_', '-')} {v}" for k, v in DEMO_LONG.items()))
    parser.set_defaults(method=method)
    model_flags(parser.add_argument_group("model and data").add_argument)
    rollout_flags(parser.add_argument_group("rollouts").add_argument)
    loss_flags(parser.add_argument_group("loss").add_argument)
    control_flags(parser.add_argument_group("credit: controls of every method").add_argument)
    card_flags(parser.add_argument_group("card").add_argument)
    run_flags(parser.add_argument_group("run").add_argument)
    return parser


def model_flags(add):
    add("--model", default="tiny", type=os.path.expanduser,
        help="a model on the Hugging Face hub, or a folder; tiny is the embedded one, tiny-long "
             "the one for long chains")
    add("--data", default="gsm8k", type=os.path.expanduser,
        help="a problem set named in problems.py, or a .jsonl file with problem and answer, of "
             "which at most a tenth is held out")
    add("--thinking", action="store_true",
        help="let a model that can think before it answers (Qwen3) do so")
    add("--eval-problems", type=int, default=200,
        help="held-out problems to evaluate before and after training")
    add("--eval-samples", type=int, default=1,
        help="sampled completions per held-out problem, plus a greedy one")
    add("--eval-every", type=int, default=50,
        help="steps between points of the held-out curve, sampled only; 0: none")


def rollout_flags(add):
    add("--steps", type=int, default=200,
        help="training steps; each samples new completions and learns from them")
    add("--prompts", type=int, default=8,
        help="N, problems in a step")
    add("--group", type=int, default=8,
        help="G, completions sampled for each problem; they are compared with each other")
    add("--max-new-tokens", type=int, default=1024,
        help="tokens after which a completion is cut off")
    add("--temperature", type=float, default=1.0,
        help="divide the logits by this, both in sampling and in the loss")


def loss_flags(add):
    add("--lr", type=float, default=1e-6,
        help="AdamW's learning rate after the warm-up")
    add("--warmup", type=int, default=10,
        help="steps in which the learning rate rises linearly from 0")
    add("--num-iterations", type=int, default=1,
        help="optimizer steps on each batch of rollouts")
    add("--loss", default="token", choices=["token", "sequence", "constant"],
        help="the denominator of a token's loss, see grpo.token_scale")
    add("--clip-low", type=float, default=0.2,
        help="clip the policy ratio below 1 minus this")
    add("--clip-high", type=float, default=0.28,
        help="clip the policy ratio above 1 plus this")
    add("--kl", type=float, default=0.0,
        help="weight of the KL penalty towards the initial model; 0 loads no reference")
    add("--scale-by-std", action="store_true",
        help="divide advantages by the standard deviation of their group's rewards")
    add("--mask-truncated", action="store_true",
        help="leave completions that were cut off out of the loss; one with two boxes or more "
             "never earns a reward if it was cut off")
    add("--grad-clip", type=float, default=1.0,
        help="scale the gradient down to this norm if it is larger")


def control_flags(add):
    add("--credit", default="method",
        choices=["method", "shuffled", "uniform", "entropy", "oracle"],
        help="shuffled: the method's weights, permuted within each completion; uniform: all 1; "
             "entropy: the token's own, mean 1; oracle: the first wrong line (arithmetic only)")
    add("--reward", default="outcome", choices=["outcome", "random"],
        help="random: a fair coin in place of the verdict")


def card_flags(add):
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu",
        help="cpu, cuda, or cuda:1 for the second card")
    add("--tokens-per-microbatch", type=int, default=2560,
        help="tokens of one forward and backward, with padding; fewer take less memory")
    add("--compile", action=argparse.BooleanOptionalAction, default=None,
        help="on CUDA: fuse and record the layers (engine/graphs.py), half a minute once; without "
             "this flag, long runs of large enough models do it")
    add("--checkpointing", action="store_true",
        help="compute activations again in the backward: less memory, slower")


def run_flags(add):
    add("--seed", type=int, default=0,
        help="seed of the order of problems and of every random number")
    add("--name", default="", type=os.path.expanduser,
        help="folder of the run; empty: runs/METHOD-MODEL-DATA-seedSEED")
    add("--resume", default="", type=os.path.expanduser,
        help="continue a run: its folder, or latest; its settings are kept")
    add("--save-every", type=int, default=50,
        help="steps between checkpoints; 0: one at the end")
    add("--pages-every", type=int, default=20,
        help="steps between pages that show the credit; 0: none")
    add("--snapshot-every", type=int, default=0,
        help="steps between copies of the weights for relex.py; 0: none")


def parse(parser, argv=None):
    """Parse the flags. Defaults: DEMOS for an embedded model, the run's own with --resume."""
    args = parser.parse_args(argv)
    if args.resume:
        args = settings_of_the_run(parser, argv, args)
    elif args.model in DEMOS:
        parser.set_defaults(**DEMOS[args.model])
        args = parser.parse_args(argv)
    if args.compile and not args.device.startswith("cuda"):
        print("--compile is for CUDA cards; this run goes without", file=sys.stderr)
        args.compile = False
    if not args.name:
        model = Path(args.model).resolve() if os.path.isdir(args.model) else Path(args.model)
        model = run_folder(model)  # name a run's checkpoint after the run
        data = Path(args.data.removesuffix(".jsonl"))
        args.name = (f"runs/{args.method}-{part_of_a_name(model.name, 'model')}"
                     f"-{part_of_a_name(data.name, 'data')}-seed{args.seed}")
    return args


def part_of_a_name(text, otherwise):
    """A name made safe for a folder's name: letters, digits, dots and dashes."""
    return at_most(re.sub(r"[^\w.-]", "_", text).strip(".") or otherwise, 80)


def settings_of_the_run(parser, argv, args):
    """--resume: use the settings that the run began with. Raises BadInput for other ones."""
    method, resume = args.method, args.resume
    if resume == "latest":
        resume = latest(method)
    path = run_folder(resume) / "config.json"
    try:
        saved = json.loads(path.read_text())
        known = {k: v for k, v in vars(args).items() if k in saved and v is not None}
        odd = [k for k, v in known.items() if type(v) is not type(saved[k])]
    except (OSError, ValueError, TypeError):
        raise BadInput(f"--resume {resume}: no readable config.json there, "
                       "so it is no run's folder.") from None
    if odd or "method" not in saved:
        raise BadInput(f"--resume {resume}: {odd or 'method'} in {path} is damaged.")

    parser.set_defaults(**{"eval_every": 0, **saved})  # an older run has no such flag
    args = parser.parse_args(argv)
    wrong = differing(saved, {**vars(args), "method": method})
    if wrong:
        raise BadInput(f"--resume {resume}: {wrong}; start a new run for other settings.")

    folder = run_folder(resume)
    if args.name != saved.get("name") and Path(args.name).resolve() != folder.resolve():
        raise BadInput(f"--name {args.name}: a resumed run stays in its folder, {folder}; "
                       "leave out --name, or copy the folder and resume the copy.")
    args.resume, args.name = resume, str(folder)
    return args


def check_name(name):
    """Raise BadInput for a run's folder that could not be resumed or saved."""
    taken = ("", "..", "checkpoint", "checkpoint.new", "checkpoint.old")
    if Path(name).name in taken:
        raise BadInput(f"--name {name}: give the run's folder a name of its own, not . or .., and "
                       f"none of {', '.join(taken[2:])}.")
    try:
        str(name).encode()
    except UnicodeEncodeError:
        raise BadInput(f"--name {name}: not UTF-8; give the run's folder another name.") from None


def check(config):
    """Raise BadInput for settings that cannot work, before anything is loaded."""
    if not config.resume:
        check_name(config.name)
    if config.group < 2:
        raise BadInput(f"--group {config.group}: a group of one has nothing to compare with; "
                       "take 2 or more.")
    if config.temperature < 1e-9:
        raise BadInput(f"--temperature {config.temperature}: greedy rollouts are all the same; "
                       "take 1.0.")
    if config.compile and config.checkpointing:
        raise BadInput("--checkpointing: recordings of --compile keep what they compute; add "
                       "--no-compile.")
    at_least_one = ("steps", "prompts", "max_new_tokens", "num_iterations",
                    "tokens_per_microbatch", "eval_samples")
    at_least_zero = ("lr", "warmup", "clip_low", "clip_high", "kl", "eval_problems", "eval_every",
                     "save_every", "snapshot_every", "pages_every", "seed", "temperature")
    least = {**dict.fromkeys(at_least_one, 1), **dict.fromkeys(at_least_zero, 0), "grad_clip": 1e-9}
    for name, smallest in least.items():
        value = getattr(config, name)
        if not smallest <= value < 2**40:  # NaN is not, either
            raise BadInput(f"--{name.replace('_', '-')} {value}: "
                           f"must be at least {smallest:g} and below 2^40.")
    if config.prompts * config.group > 2**20:
        raise BadInput(f"--prompts {config.prompts} x --group {config.group}: more than a million "
                       "rollouts a step; take fewer.")
