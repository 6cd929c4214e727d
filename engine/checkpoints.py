r"""Checkpoints that are complete or absent, exact resume, and stops that say how to continue.

Skip this on a first reading.

    python grail.py --resume latest                      # the newest run of grail.py in runs/
    python grail.py --resume runs/NAME --steps 400       # a finished run goes on, too
    python grail.py --resume runs/NAME/checkpoint.old    # from the checkpoint before the last

A checkpoint is a Hugging Face folder plus

    trainer.pt       Adam's state, the step, the settings: plain tensors and numbers, read with
                     weights_only=True, so that a foreign file cannot run code
    manifest.json    the step, and the size and SHA-256 of every file

We write it as checkpoint.new, the manifest last, and fsync every file and then the folder. Then we
rename checkpoint -> checkpoint.old and checkpoint.new -> checkpoint. A kill, a full disk or a power
cut can come at any moment: one of the three is always complete. `find` takes the newest of these.

We store no state of a random generator. The problems of a step (the data cursor is step * prompts)
and all random numbers of its rollouts are functions of (seed, step). torch's own generator is
seeded with both in each step; only dropout would use it. So on a CPU a resumed run equals the
unbroken one, bit for bit. On a card, kernels may add in another order.

What we left out, on purpose: more than two checkpoints, saving in the background, saving in the
middle of a step (a stop finishes the step; a kill loses the steps since the last checkpoint).
"""
import errno
import hashlib
import json
import os
import pickle
import shutil
import signal
import threading
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError

from engine.errors import BadInput, printable, reason, stops
from engine.files import digest, hold, release, sync, write
from engine.folders import save_model, save_tokenizer

# Settings that may change on --resume: the folder, the number of steps, and those that change
# memory and speed but not the gradient (beyond rounding).
FREE = {"resume", "name", "steps", "save_every", "pages_every", "eval_every", "device",
        "tokens_per_microbatch", "checkpointing", "compile"}

# ------------------------------------------------------------------------------ writing one


@contextmanager
def whole(final, step, run):
    """A new folder to write into. It replaces `final` when the block ends without an error.

    The previous one stays as FINAL.old, and the one before that is deleted first: there are never
    more than two. Raises BadInput if the disk fails; the previous one is still complete then.
    """
    new, old = (final.with_name(final.name + end) for end in (".new", ".old"))
    try:
        shutil.rmtree(new, ignore_errors=True)
        if final.exists():
            shutil.rmtree(old, ignore_errors=True)
        new.mkdir(parents=True)
        yield new
        paths = sorted(path for path in new.iterdir() if path.is_file())
        files = {path.name: [path.stat().st_size, digest(path)] for path in paths}
        manifest = new / "manifest.json"
        write(manifest, json.dumps({"step": step, "files": files}, indent=1))
        for path in (*paths, manifest, new):
            sync(path)
        if final.exists():
            os.rename(final, old)
        os.rename(new, final)
        sync(final.parent)
    # A full disk is an OSError in Python, a RuntimeError in torch, a SafetensorError in Rust.
    except (OSError, RuntimeError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise BadInput(f"--name {run}: {final.name} of step {step} cannot be written ({reason}); "
                       f"{last(run)}.") from None


def save(folder, model, tokenizer, optimizer, step, settings):
    """Write FOLDER/checkpoint: model, tokenizer, Adam's state, step and settings (a flat dict)."""
    with whole(folder / "checkpoint", step, folder) as new:
        save_model(new, model)
        save_tokenizer(new, tokenizer)
        state = {"optimizer": optimizer.state_dict(), "step": step, "settings": settings}
        torch.save(state, new / "trainer.pt")


def snapshot(folder, model, step):
    """Write FOLDER/snapshots/step_00010: fp32 weights, for relex.py."""
    final = folder / "snapshots" / f"step_{step:05d}"
    with whole(final, step, folder) as new:
        save_model(new, model, for_others=False)
    shutil.rmtree(final.with_name(final.name + ".old"), ignore_errors=True)  # of a repeated step


def check_room(folder, optimizer, checkpoints, snapshots):
    """Raise BadInput unless so many checkpoints and snapshots fit on the disk of `folder`.

    A checkpoint is three times the weights, because Adam keeps two more numbers per weight. The
    last one stays until the next is complete, so a run that saves more than once needs two.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    weights = sum(p.numel() * p.element_size() for p in parameters)
    there = [*folder.glob("checkpoint*/*"), *folder.glob("snapshots/*/*")]  # of a resumed run
    kept = sum(path.stat().st_size for path in there)
    needed = (3 * checkpoints + snapshots) * weights - kept
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise BadInput(f"--name {folder}: {free / 1e9:.2f} GB are free there, and the checkpoints "
                       f"({checkpoints}) and snapshots ({snapshots}) need {needed / 1e9:.2f} GB "
                       "more, so take another disk.")


# ------------------------------------------------------------------------------ reading one


def step_of(path):
    """The step of a complete checkpoint. Raises BadInput that names the missing or damaged file."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        step, files = int(manifest["step"]), manifest["files"]
        files = {name: (size, sha) for name, (size, sha) in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise BadInput(f"{path / 'manifest.json'} is missing or damaged") from None
    for name, (size, sha) in files.items():
        file = path / name
        if not file.is_file():
            raise BadInput(f"{file} is missing")
        if file.stat().st_size != size:
            raise BadInput(f"{file} has {file.stat().st_size} bytes, not {size}")
        if digest(file) != sha:
            raise BadInput(f"{file} was changed: its SHA-256 is not the one in manifest.json")
    return step


def last(folder, then="go on with --resume {}"):
    """What is saved if this run crashes, and how to continue: the end of an error sentence."""
    for name in ("checkpoint", "checkpoint.new", "checkpoint.old"):
        try:
            step = json.loads((folder / name / "manifest.json").read_text())["step"]
            return f"step {step} is safe, {then.format(folder)}"
        except (OSError, ValueError, KeyError):
            continue
    return "no checkpoint had been made yet"


def run_folder(resume):
    """The run's folder, given that folder or one of its checkpoints."""
    path = Path(resume)
    return path.parent if path.name in ("checkpoint", "checkpoint.new", "checkpoint.old") else path


def find(resume, held=False):
    """The path of the checkpoint that `--resume` means; the newest if it names a run's folder.

    held: lock the run from here on, so that no other process moves the checkpoint before it is
    read. Raises BadInput for a damaged checkpoint, and names the older one if there is one.
    """
    folder, path, old = run_folder(resume), Path(resume), None
    if held:
        hold(folder)
    if folder == path:
        path, old = folder / "checkpoint", folder / "checkpoint.old"
        if not path.exists():  # the run stopped inside `whole`, or never saved
            new = folder / "checkpoint.new"
            path, old = (new, old) if (new / "manifest.json").exists() else (old, None)
    if not path.exists():
        raise BadInput(f"--resume {resume}: it ended before its first checkpoint; start it again.")
    try:
        step_of(path)
    except BadInput as damage:
        offer = "there is no older one; start it again."
        if old and old.exists():
            try:
                offer = f"--resume {old} goes on from step {step_of(old)}."
            except BadInput as other:
                offer = f"the older one is no better ({other}); start it again."
        raise BadInput(f"--resume {resume}: {damage}; {offer}") from None
    return path


def latest(method):
    """The folder (str) in runs/ with this method's newest checkpoint."""
    times = {}
    for path in Path("runs").glob("*/checkpoint*/manifest.json"):
        run = path.parent.parent
        try:
            if json.loads((run / "config.json").read_text())["method"] == method:
                times[run] = max(path.stat().st_mtime, times.get(run, 0))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    if not times:
        raise BadInput(f"--resume latest: no folder in runs/ holds a checkpoint of {method}.py; "
                       "name the folder.")
    return str(max(times, key=times.get))


def differing(saved, now):
    """The settings outside FREE in which two dicts differ, as one phrase ("" if none)."""
    words = {"held_out": "a held-out problem or its answer",
             "kl_reference": "the reference of --kl, what --model names,",
             "kl_reference_config": "the config.json of the reference of --kl, of --model,"}
    wrong = [key for key in saved if key not in FREE and saved[key] != now.get(key)]
    return ", ".join(f"{words.get(key, key)} differs ({now.get(key)!r}, the run's is "
                     f"{saved[key]!r})" for key in wrong)


def fingerprint(model):
    """16 digits of a SHA-256 of the weights: about 4,096 numbers of each tensor, and the sum of all
    its bits, which changes with any single number. The same on every device."""
    found = hashlib.sha256()
    for title, tensor in model.state_dict().items():
        flat = tensor.detach().reshape(-1).clone()  # memory of its own, to be read as int64
        some = flat[::len(flat) // 4096 + 1].float().cpu()
        raw = flat.view(torch.uint8)
        end = len(raw) // 8 * 8
        total = int(raw[:end].view(torch.int64).sum())  # modulo 2^64, so the order does not matter
        rest = raw[end:].tolist()
        found.update(f"{title} {total} {rest} ".encode() + some.numpy().tobytes())
    return found.hexdigest()[:16]


def short_sha(value):
    """The first 16 digits of the SHA-256 of a value that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def settings_of(config):
    """The settings of a model's config that change its computation: no versions, no paths."""
    said = getattr(config, "to_diff_dict", dict)()
    return {k: v for k, v in said.items() if k not in (
        "_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache")}


def refuse_another_shape(adam, step, optimizer, path):
    """Raise ValueError unless this Adam state fits the optimizer's parameters and this step."""
    told = json.loads((path / "manifest.json").read_text())["step"]
    if type(step) is not int or step != told or step < 0:
        raise ValueError(f"it is of step {step!r}, and manifest.json of step {told!r}")
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if set(adam) - set(range(len(parameters))):
        raise ValueError(f"Adam's state is of {len(adam)} tensors, the model has {len(parameters)}")
    for i, moments in adam.items():
        for name in ("exp_avg", "exp_avg_sq"):
            if moments[name].shape != parameters[i].shape:
                raise ValueError(f"{name} of tensor {i} is {list(moments[name].shape)}, "
                                 f"the model's tensor {list(parameters[i].shape)}")
        if float(moments["step"]) > step * 2**20 or not float(moments["step"]) >= 0:
            raise ValueError(f"Adam's step of tensor {i} is {moments['step']}")


def restore(path, optimizer, settings):
    """Load Adam's state from a checkpoint of `find` and make it the newest. Returns the step."""
    try:
        state = torch.load(path / "trainer.pt", "cpu", weights_only=True)
        adam, step, saved = state["optimizer"]["state"], state["step"], state["settings"]
        # Keep our own groups: the saved ones may say that Adam is fused, which a CPU cannot be.
        groups = optimizer.state_dict()["param_groups"]
        wrong = differing(saved, settings)
        if not wrong:
            refuse_another_shape(adam, step, optimizer, path)
            optimizer.load_state_dict({"state": adam, "param_groups": groups})
    except (pickle.UnpicklingError, RuntimeError, EOFError, LookupError, TypeError, ValueError,
            AttributeError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise BadInput(f"--resume: {path / 'trainer.pt'} is no state of ours ({reason}).") from None
    if wrong:
        raise BadInput(f"--resume: {path} was made with other settings: {wrong}; "
                       "start a new run for them.")
    if path.name != "checkpoint":  # an older one becomes the newest
        shutil.rmtree(path.with_name("checkpoint"), ignore_errors=True)
        os.rename(path, path.with_name("checkpoint"))
    return step


# ------------------------------------------------------------------------------ while it runs


@contextmanager
def graceful_stop(run, config):
    """Goes around the steps of `run`, which has .folder, .step (the last finished), .evaluating
    (its held-out problems) and .signal.

    Ctrl-C, SIGTERM or SIGHUP (a closed terminal) sets .signal, and the loop ends after the current
    step. A second signal stops at once; the files survive this at any moment. A second SIGHUP does
    nothing, because a terminal may send several. Full memory, a full disk and numbers that are not
    finite become BadInput, with the step, what to change and the last checkpoint. Only the main
    thread handles signals.
    """
    folder = run.folder
    main = threading.current_thread() is threading.main_thread()

    def say(text):  # not print: the signal may have come in the middle of one
        try:
            os.write(2, f"\n{printable(text)}\n".encode(errors="backslashreplace"))
        except OSError:  # the terminal is closed
            pass

    def now():
        return f"the evaluation after step {run.step}" if run.evaluating else f"step {run.step + 1}"

    def on_signal(number, _):
        if run.signal and number == getattr(signal, "SIGHUP", None):
            return
        if run.signal:
            say(f"stopped at once; {last(folder)}")
            raise SystemExit(128 + number)
        run.signal = number
        say(f"{signal.Signals(number).name}: finishing {now()}; again: stop at once")

    before = {number: signal.signal(number, on_signal)
              for number in (signal.SIGINT, *stops()) if main}
    try:
        yield
    except FloatingPointError as error:
        again = "start from it anew with --model {}/checkpoint"  # --resume would meet it again
        raise BadInput(f"{now()}: {error}; {last(folder, again)}.") from None
    except torch.OutOfMemoryError:
        ways = ", ".join(ways_to_less_memory(config))
        raise BadInput(f"{now()}: the memory is full; in this order: {ways}; the first two may "
                       f"change on --resume; {last(folder)}.") from None
    except BadInput as mistake:
        if not run.evaluating:
            raise
        raise BadInput(f"{now()}: {mistake} --resume with --eval-every 0 goes on without; "
                       f"{last(folder)}.") from None
    except OSError as error:
        what = f"{error.filename or folder}: {reason(error)}; make room or take another --name"
        if error.errno == errno.EPIPE:
            what = "nobody reads the output any more"
        raise BadInput(f"{now()}: {what}; {last(folder)}.") from None
    finally:
        release(folder)
        for number, handler in before.items():
            signal.signal(number, handler)


def ways_to_less_memory(config):
    """The flags to change if the memory is full, the best first."""
    ways = [f"halve --tokens-per-microbatch ({config.tokens_per_microbatch})"]
    ways += ["add " + "--no-compile " * config.compile + "--checkpointing"] * (
        not config.checkpointing)
    ways += [f"halve --prompts ({config.prompts}) or --group ({config.group})",
             f"halve --max-new-tokens ({config.max_new_tokens})"]
    return ways


def stop_at(loss, grad_norm, config, tensors):
    """Raise FloatingPointError with the first of these {name: tensor} that is not finite."""
    first = next((name for name, x in tensors.items() if not x.isfinite().all()), "none alone")
    raise FloatingPointError(
        f"loss {loss:g} and gradient norm {grad_norm:g} are not finite, nor is, first of all: "
        f"{first}; the policy has likely run away, so halve --lr ({config.lr:g}) or raise "
        f"--warmup ({config.warmup})")
