r"""What a run is: its flags, its folder, its checkpoints, and its lines on memory and accuracy.

A run is a folder, runs/NAME/:

    config.json     every flag, resolved         metrics.jsonl   one line a step
    checkpoint/     a Hugging Face folder and    samples.jsonl   one group of completions a step
                    trainer.pt (Adam, step)      summary.json    accuracy before and after
    snapshots/      step_00010/ ...: fp32 weights for relex.py, with --snapshot-every 10

Checkpoints load wherever AutoModelForCausalLM does. Nothing random is stored: the problems of a
step and its rollouts are functions of (seed, step), so --resume continues bit for bit on a CPU.

What we left out, on purpose: trackers, callbacks, YAML, a config object.
"""
import argparse
import itertools
import json
import shutil
import signal
import threading
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import torch

import evaluate
import problems
from problems import BadInput

# The tiny embedded model learns in a minute at settings that would wreck a real one. They were
# chosen with grpo.py alone and frozen before any other method was run.
DEMO = dict(data="arithmetic", device="cpu", steps=40, prompts=16, max_new_tokens=72, lr=2e-4,
            warmup=5, microbatch=64, eval_problems=200, eval_samples=4, save_every=0)

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
    add("--grad-clip", type=float, default=1.0, help="largest gradient norm")
    add("--microbatch", type=int, default=2, help="completions a forward: memory, not gradient")
    add("--checkpointing", action="store_true", help="recompute activations: less memory, slower")
    add("--eval-problems", type=int, default=200, help="held-out problems before and after")
    add("--eval-samples", type=int, default=1, help="sampled completions for each of them")
    add("--save-every", type=int, default=50, help="steps between checkpoints; 0: at the end")
    add("--snapshot-every", type=int, default=0, help="steps between snapshots for relex.py")
    add("--seed", type=int, default=0)
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--name", default="", help="folder of the run (default runs/METHOD-MODEL-seedSEED)")
    add("--resume", default="", help="folder of a run to continue; its settings are kept")
    parser.set_defaults(method=method)
    return parser


def parse(parser, argv=None):
    """Parse the flags: DEMO's defaults for the tiny model, the run's own with --resume."""
    args = parser.parse_args(argv)
    if args.resume:
        try:
            saved = json.loads((Path(args.resume) / "config.json").read_text())
        except (OSError, ValueError):
            raise BadInput(f"--resume {args.resume}: no readable config.json there, "
                           "so it is no run's folder.") from None
        if not (Path(args.resume) / "checkpoint" / "trainer.pt").exists():
            raise BadInput(f"--resume {args.resume}: it ended before its first checkpoint; "
                           "start it again.")
        method = args.method
        parser.set_defaults(**{**saved, "resume": ""})
        args = parser.parse_args(argv)
        free = ("resume", "steps", "save_every", "device")
        changed = [k for k in saved if getattr(args, k) != saved[k] and k not in free]
        changed += ["method"] * (method != saved["method"])
        if changed:
            raise BadInput(f"--resume {args.resume}: {', '.join(changed)} differs from the run's; "
                           "start a new run for other settings.")
    elif args.model == "tiny":
        parser.set_defaults(**DEMO)
        args = parser.parse_args(argv)
    args.name = args.name or f"runs/{args.method}-{Path(args.model).name}-seed{args.seed}"
    return args


def check(config):
    """Raise BadInput for settings that cannot work, before anything is loaded."""
    if config.group < 2:
        raise BadInput(f"--group {config.group}: a group of one has no one to be compared with; "
                       "take 2 or more.")
    if config.temperature <= 0:
        raise BadInput(f"--temperature {config.temperature}: greedy rollouts are all alike; "
                       "take 1.0.")
    least = dict.fromkeys(("steps", "prompts", "max_new_tokens", "inner", "microbatch",
                           "eval_samples"), 1)
    least |= dict.fromkeys(("lr", "warmup", "clip_low", "clip_high", "kl", "eval_problems",
                            "save_every", "snapshot_every", "seed"), 0)
    for name, value in {**least, "grad_clip": 1e-9}.items():
        if getattr(config, name) < value:
            raise BadInput(f"--{name.replace('_', '-')} {getattr(config, name)}: "
                           f"must be at least {value:g}.")
    if config.seed >= 2**40:
        raise BadInput(f"--seed {config.seed}: take one below 2^40.")


# ------------------------------------------------------------------------------ the folder


def open_run(config, optimizer):
    """(folder, step to start from): a new folder, or the resumed one and Adam's state with it."""
    if config.resume:
        folder = Path(config.resume)
        state = torch.load(folder / "checkpoint" / "trainer.pt", "cpu", weights_only=True)
        optimizer.load_state_dict(state["optimizer"])
        (folder / "config.json").write_text(json.dumps(vars(config), indent=1))
        for name in ("metrics.jsonl", "samples.jsonl"):  # steps after the checkpoint are done again
            lines = (folder / name).read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [line for line in lines if json.loads(line)["step"] <= state["step"]]
            (folder / name).write_text("".join(kept), encoding="utf-8")
        return folder, state["step"]
    folder = Path(config.name)
    for i in itertools.count(2):  # never write over an older run
        if not folder.exists():
            break
        folder = Path(f"{config.name}-{i}")
    try:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(vars(config), indent=1))
    except OSError as error:
        raise BadInput(f"--name {config.name}: cannot write there ({error.strerror}).") from None
    return folder, 0


def save(folder, model, tokenizer, optimizer, step):
    """A Hugging Face folder plus trainer.pt, written beside the old one, then renamed over it."""
    new, final, old = (folder / f"checkpoint{end}" for end in (".new", "", ".old"))
    shutil.rmtree(new, ignore_errors=True)
    model.save_pretrained(new)
    tokenizer.save_pretrained(new)
    torch.save({"optimizer": optimizer.state_dict(), "step": step}, new / "trainer.pt")
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        final.rename(old)
    new.rename(final)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def steps_uninterrupted():
    """Ctrl-C waits for the end of the step, so that what is saved is a whole one; twice: at once.

    Yields a list that is empty until Ctrl-C. In threads other than the main one nothing changes.
    """
    stop, main = [], threading.current_thread() is threading.main_thread()

    def on_ctrl_c(*_):
        stop.append(True)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("\nCtrl-C: finishing this step first; once more stops at once", flush=True)

    before = signal.signal(signal.SIGINT, on_ctrl_c) if main else None
    try:
        yield stop
    finally:
        if main:
            signal.signal(signal.SIGINT, before)


def append(path, rows):
    """Add one JSON line a row."""
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


# What diagnoses RL, one line a step. Entropy, clipped and gap (sampler's against scorer's
# log-probs, mean and largest) are of the completions that had a gradient: 0 where none had.
LOG = ("step {step:4d}  reward {reward:.3f}  informative {informative}/{groups}  "
       "truncated {truncated:.0%}  length {length:.0f}  entropy {entropy:.3f}  "
       "clipped {clipped:.1%}  grad {grad_norm:.3f}  "
       "weight {weight_mean:.2f} [{weight_min:.2f}, {weight_max:.2f}]  "
       "gap {gap_mean:.0e}/{gap_max:.0e}  {tokens_per_second:,.0f} tok/s  {peak_gb:.1f} GB  "
       "{seconds:.1f} s")


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


# ------------------------------------------------------------------------------ problems and scores


def load_split(config):
    """(training rows, held-out rows); of a .jsonl file the latter are its last tenth, at most."""
    if not config.data.endswith(".jsonl"):
        held_out = problems.load_problems(config.data, "test") if config.eval_problems else []
        return problems.load_problems(config.data, "train"), held_out[:config.eval_problems]
    rows = problems.load_problems(config.data)
    n = min(config.eval_problems, len(rows) // 10)
    return rows[:len(rows) - n], rows[len(rows) - n:]


@lru_cache(4)
def epoch_order(total, seed, epoch):
    """A permutation of range(total) that is the same in every process."""
    generator = torch.Generator().manual_seed(seed * 9973 + epoch)
    return torch.randperm(total, generator=generator).tolist()


def pick(total, cursor, count, seed):
    """`count` row numbers from place `cursor` of an endless stream of shuffled epochs.

    A function of the step alone, so that a resumed run needs no state of the data order.
    """
    places = [divmod(i, total) for i in range(cursor, cursor + count)]
    return [epoch_order(total, seed, epoch)[place] for epoch, place in places]


def prompt_keys(picked, m, total):
    """Keys of the random numbers, m a problem; one picked twice in a step is not sampled alike."""
    again = [picked[:n].count(i) for n, i in enumerate(picked)]
    return [m * (i + total * n) + j for i, n in zip(picked, again) for j in range(m)]


def measure(model, tokenizer, held_out, config, when):
    """Accuracy on held-out problems, sampled at T = 1 and greedy: printed and returned (dict)."""
    if not held_out:
        return None
    settings = dict(max_new_tokens=config.max_new_tokens, seed=config.seed, quiet=True,
                    thinking=config.thinking, batch_size=config.prompts * config.group)
    k = config.eval_samples
    sampled = evaluate.evaluate(model, tokenizer, held_out, samples=k, ks=(k,), **settings)
    greedy = evaluate.evaluate(model, tokenizer, held_out, temperature=0.0, **settings)

    def percent(value, low, high):
        return f"{100 * value:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"

    scores = [percent(s["accuracy"], s["low"], s["high"]) for s in (sampled, greedy)]
    print(f"{when}: sampled {scores[0]}, greedy {scores[1]}, Pass@{k} "
          f"{percent(*sampled['pass_at_k'][k])} of {len(held_out)} held-out problems", flush=True)
    return {name: {k: v for k, v in s.items() if k != "per_problem"}
            for name, s in (("sampled", sampled), ("greedy", greedy))}


def memory_estimate(model, config, prompt_tokens):
    """One line: where the card's memory will go, in GB (10^9 bytes), before any of it is taken."""
    c, n = model.config, sum(p.numel() for p in model.parameters())
    head = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    tokens = prompt_tokens + config.max_new_tokens
    rows = config.prompts * config.group
    kept = 4 * c.hidden_size if config.checkpointing else (
        34 * c.hidden_size + 12 * c.intermediate_size + 8 * c.num_attention_heads * head)
    n_ref = n if config.kl > 0 else 0
    gb = {"weights, gradients, Adam": 16 * n + 4 * n_ref, "bf16 copy": 2 * n,
          "KV cache": 4 * c.num_hidden_layers * c.num_key_value_heads * head * rows * tokens,
          "activations": c.num_hidden_layers * kept * tokens * config.microbatch,
          "logits": 25 * 512 * c.vocab_size}
    gb = {name: size / 1e9 for name, size in gb.items()}
    peak = 18e-9 * n + 4e-9 * n_ref + max(gb["KV cache"], gb["activations"] + gb["logits"])
    return ("memory, roughly: " + ", ".join(f"{name} {size:.1f}" for name, size in gb.items())
            + f"; peak {peak:.1f} GB (cache and activations are not held together)")
