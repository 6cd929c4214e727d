r"""RELEX: run RL for a while, then predict where the weights will be and skip the rest.

Stack the T snapshots of a tensor, minus the base model's, as flattened rows, not centred:

    M[t] = vec(theta_t - theta_0)                     (T, d)      M M' = U diag(sigma^2) U'

The paper claims that M is nearly one direction, v_1 = M' u_1 / sigma_1, and that its coordinate
c[t] = sigma_1 u_1[t] grows linearly. So fit c = slope * step + intercept and add it to the base:

    theta(K) = theta_0 + (slope * K + intercept) v_1  =  theta_0 + M' u_1 u_1' h            (d,)

h (T,) predicts a value at step K from the values at the observed steps, by least squares. The
right-hand form needs neither the sign of u_1 nor a division by sigma_1. It shows what RELEX does.
At full rank, u u' is the identity: a line per weight. Rank 1 first projects the path on v_1.

    python relex.py --snapshots runs/NAME/snapshots --to 500 --out runs/NAME-500
    python relex.py ... --to 500 --until 100   # only up to step 100; a real step 500 is scored too
    python evaluate.py --compare OUT/observed-100.jsonl OUT/predicted-500.jsonl

Count true optimiser steps, not rows, or snapshots at 5, 10, 15 would be extrapolated to 190, not
50. Save snapshots in fp32: in bf16 a weight of 0.02 stays the same through 60 steps of 1e-6. A good
fit (R^2; always 1 for two snapshots) proves nothing outside the window: 5 sqrt(step), seen up to 5,
is predicted as 42 at step 25, not 25. So we also score the last snapshot: it costs nothing.

What we left out: windows, curves, damping, rate schedules (a line needs a constant rate), LoRA
(extrapolate the merged weights), a rule for K (choose it on validation data).
Source: arXiv 2605.21468. Its code subtracts in fp16 and regresses on row numbers; ours does not.
"""
import argparse
import json
import os
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open

import evaluate
import problems
from engine.errors import BadInput, printable, run_cli
from engine.folders import save_model, save_tokenizer, try_to_save

CHUNK = 2**16  # numbers of each snapshot in fp64 at a time
GROUPS = {"norms": "norm|ln_", "embedding": "embed|wte|wpe", "lm_head": "lm_head",
          "attention": "attn|attention", "mlp": "mlp|feed_forward", "other": ""}


class Fit(NamedTuple):
    """How well a tensor, or a group of them, fits the claim. In sums of squared displacements."""
    total: float  # sum of all sigma^2
    kept: float  # sum of the first `rank` sigma^2
    spread: float  # of the coordinates c around their mean
    line: float  # the part of the spread that lies on the fitted line

    @property
    def explained(self):
        return self.kept / self.total if self.total else 0.0

    @property
    def r2(self):  # a jump and then no change is a line, too: 1. A tensor that never moved: 0
        return self.line / self.spread if self.spread > 1e-12 * self.kept else float(self.kept > 0)


def extrapolate(base, rows, steps, to, rank=1):
    """Predict one tensor, of any shape, from its T values `rows` at the distinct true `steps`.

    Returns (tensor like `base` at step `to`, Fit). Raises ValueError for NaN or infinity.
    """
    chunks = [tensor.reshape(-1).split(CHUNK) for tensor in (base, *rows)]  # (chunk,) each

    def displacements():  # (T, chunk) in fp64: differences are exact and can be squared
        for start, *later in zip(*chunks):
            yield start, torch.stack([row.to(start.device, torch.float64) - start for row in later])

    gram = sum(M @ M.T for _, M in displacements()).cpu()                                # (T, T)
    for step, energy in zip(steps, gram.diagonal().tolist()):
        if not energy < float("inf"):
            raise ValueError(f"--snapshots: step {step}, or the base, holds NaN or infinity.")

    sigma2, U = (part.flip(-1)[..., :rank] for part in torch.linalg.eigh(gram))  # (rank,) (T, rank)
    c = U * sigma2.clamp(min=0).sqrt()                                                   # (T, rank)
    tau = torch.tensor(steps, dtype=torch.float64)                                       # (T,)
    x = tau - tau.mean()                                                                 # (T,)
    slope = x @ c / (x @ x)                                                              # (rank,)
    h = 1 / len(steps) + (to - tau.mean()) * x / (x @ x)                                 # (T,)
    mixture = (U @ (U.T @ h)).to(base.device)  # of the observed displacements           (T,)

    new = [(start + mixture @ M).to(base.dtype) for start, M in displacements()]
    fit = gram.trace(), c.square().sum(), (c - c.mean(0)).square().sum(), slope @ slope * (x @ x)
    return torch.cat(new).view_as(base), Fit(*(energy.item() for energy in fit))


def relex(base, snapshots, steps, to, rank=1):
    """Extrapolate a whole model: ({name: tensor at step `to`}, {name: Fit}).

    base: a state dict. Names that share storage (tied weights) are one tensor, stored once in a
    snapshot. snapshots: a {name: tensor} or `Snapshot` for each of the true optimiser `steps`,
    ascending. Integer tensors stay. Memory: `base` twice, one tensor T times. Raises like `check`.
    """
    check(base, snapshots, steps, to, rank)
    new, fits = {}, {}
    for name in snapshots[0]:
        if base[name].is_floating_point():
            new[base[name].data_ptr()], fits[name] = extrapolate(  # unnamed rows: freed at once
                base[name], [snapshot[name] for snapshot in snapshots], steps, to, rank)
    return {name: new.get(old.data_ptr(), old) for name, old in base.items()}, fits


def check(base, snapshots, steps, to, rank):
    """Raise ValueError unless these are two or more fp32 snapshots of `base`'s run before `to`."""
    check_steps(steps, to, rank)
    for step, snapshot in zip(steps, snapshots):
        other = f"--snapshots: step {step} is of another model than --base:"
        stored = {base[name].data_ptr(): name for name in snapshot if name in base}
        alone = [name for name in snapshot if name not in stored.values()]
        alone += [name for name, tensor in base.items() if tensor.data_ptr() not in stored]
        if alone:
            raise ValueError(f"{other} {alone[0]} is in one of them only, or tied in one only.")
        for name in snapshot:
            shape, dtype = list(snapshot[name].shape), snapshot[name].dtype
            if shape != list(base[name].shape):
                raise ValueError(f"{other} {name} is {shape}, there {list(base[name].shape)}.")
            if dtype.is_floating_point and dtype.itemsize < 4:
                raise ValueError(f"--snapshots: {name} of step {step} is {dtype}, which rounds "
                                 "small steps away; save every snapshot in fp32.")


def check_steps(steps, to, rank):
    """The part of `check` that needs no weights."""
    if len(steps) < 2 or list(steps) != sorted(set(steps)):
        raise ValueError(f"--snapshots: the steps found are {list(steps)}, and a line needs two; "
                         "raise --until, or lower --snapshot-every in the run.")
    if not steps[-1] < to < 10**9:
        raise ValueError(f"--to {to} is not between step {steps[-1]} and 10**9; was --until meant?")
    if not 1 <= rank <= len(steps):
        raise ValueError(f"--rank {rank}: {len(steps)} snapshots allow 1 to {len(steps)}.")


class Snapshot(dict):
    """{name: file}. Indexing opens the file for one tensor only, so no file stays mapped."""
    def __getitem__(self, name):
        with safe_open(super().__getitem__(name), "pt") as file:
            return file.get_tensor(name)


def find_snapshots(folder):
    """{true optimiser step: Snapshot}, ascending. Step 0 is the base and not a row of M.

    Raises ValueError if there is none, or if a file is damaged or missing.
    """
    if not Path(folder).is_dir():
        raise ValueError(f"--snapshots {folder}: no such folder.")
    found = {}
    for path in Path(folder).glob("step_*/*.safetensors"):  # a large model has several files
        step = path.parent.name.removeprefix("step_")
        if step.isdecimal() and int(step) > 0:
            try:
                with safe_open(path, "pt") as file:
                    part = Snapshot.fromkeys(file.keys(), path)
                found.setdefault(int(step), Snapshot()).update(part)
            except SafetensorError as error:
                raise ValueError(f"--snapshots: {path} is damaged ({error}); remove it.") from None
    for path in Path(folder).glob("step_*/*.safetensors.index.json"):
        lost = [name for name in files_of(path) if not path.with_name(name).is_file()]
        if lost:
            raise ValueError(f"--snapshots: {path.with_name(lost[0])} is missing; remove the rest.")
    if not found:
        raise ValueError(f"--snapshots {folder}: no step_NUMBER folder with a .safetensors file in "
                         "it; give the run's, or train with --snapshot-every.")
    return dict(sorted(found.items()))


def files_of(index):
    """The files, by name, that an index of a snapshot's tensors lists."""
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        if all(name and Path(name).name == name for name in names):
            return names
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise ValueError(f"--snapshots: {index} is damaged: it has no weight_map with the names of "
                     "files; remove its folder.")


def pool(fits):
    """{group: (number of tensors, Fit of their summed energies)}"""
    members = {}
    for name, fit in fits.items():
        group = next(g for g, words in GROUPS.items() if any(w in name for w in words.split("|")))
        members.setdefault(group, []).append(fit)
    return {group: (len(some), Fit(*map(sum, zip(*some)))) for group, some in members.items()}


def base_of(args):
    """The name of the model that the run started from. Prints a note if --base is another one: the
    fit of a wrong base can look better than that of the right one."""
    path = Path(args.snapshots).absolute().parent / "config.json"
    try:
        started = json.loads(path.read_text(encoding="utf-8"))["model"]
    except (OSError, ValueError, KeyError, TypeError):  # snapshots that were moved
        if not args.base:
            print(printable(f"note: {path} does not say what the run started from; --base tiny is "
                            "taken"), file=sys.stderr)
        return args.base or "tiny"
    if args.base and os.path.realpath(args.base) != os.path.realpath(started):
        print(printable(f"note: --base {args.base}: the run started from {started}, says {path}"),
              file=sys.stderr)
    return args.base or started


def main(argv=None):
    parser = argparse.ArgumentParser(description="Extrapolate a short run to a later step.")
    add = parser.add_argument
    add("--base", default="", type=os.path.expanduser,
        help="the folder or hub id that the run started from; empty: as the run's config.json says")
    add("--snapshots", required=True, type=os.path.expanduser,
        help="the run's folder of step_NUMBER folders (--snapshot-every)")
    add("--to", type=int, required=True, help="the optimiser step to predict")
    add("--out", type=lambda name: Path(os.path.expanduser(name)), required=True,
        help="a new folder for the predicted model")
    add("--until", type=int, default=10**9, help="use only the snapshots up to this step")
    add("--rank", type=int, default=1, help="directions per tensor; with T: a line per weight")
    add("--data", default="arithmetic", type=os.path.expanduser,
        help="score on the test split of this set, or on a .jsonl file")
    add("--limit", type=int, help="score on at most this many problems")
    add("--samples", type=int, default=4, help="answers per problem, at temperature 1")
    add("--max-new-tokens", type=int, default=512)
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(argv)
    for name in ("until", "limit", "samples", "max_new_tokens"):
        value = getattr(args, name)
        if value is not None and not 1 <= value < 2**40:
            flag = name.replace("_", "-")
            raise BadInput(f"--{flag} {value}: must be at least 1 and below 2^40.")
    if os.path.lexists(args.out):
        raise BadInput(f"--out {args.out} exists; name a new folder.")
    args.base = base_of(args)
    tasks = problems.load_problems(args.data, "test", args.limit)
    try:
        found = find_snapshots(args.snapshots)
        steps = [step for step in found if step <= args.until]
        check_steps(steps, args.to, args.rank)
        model, tokenizer = problems.load_policy(args.base, args.device)
        try_to_save(model, tokenizer, args.base)
        prompts = [problems.build_prompt(tokenizer, row["problem"]) for row in tasks]
        problems.longest_prompt(model, tokenizer, prompts, args.max_new_tokens)
        new, fits = relex(model.state_dict(), [found[s] for s in steps], steps, args.to, args.rank)
    except ValueError as mistake:
        raise BadInput(str(mistake).replace("--model", "--base")) from None
    for group, (count, fit) in pool(fits).items():
        print(f"{group:9} {count:4} tensors  explained {fit.explained:.4f}  R^2 {fit.r2:.4f}")
    model.load_state_dict(new)
    save_model(args.out, model)
    save_tokenizer(args.out, tokenizer)
    real = {f"observed-{step}": found[step] for step in (steps[-1], args.to) if step in found}
    for label, weights in {f"predicted-{args.to}": new, **real}.items():
        model.load_state_dict({name: weights[name] for name in weights}, strict=False)
        score = evaluate.evaluate(
            model, tokenizer, tasks, path=args.out / f"{label}.jsonl", name=args.data, quiet=True,
            samples=args.samples, max_new_tokens=args.max_new_tokens)
        print("{:15} {accuracy:.1%} [{low:.1%}, {high:.1%}]".format(label, **score), flush=True)


if __name__ == "__main__":
    run_cli(main)
