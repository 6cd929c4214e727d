r"""Nothing lost: checkpoints that are whole or absent, exact resume, stops that say how to go on.

Skip this on a first reading.

    python grail.py --resume latest                      # the newest run of grail.py in runs/
    python grail.py --resume runs/NAME --steps 400       # a finished run goes on, too
    python grail.py --resume runs/NAME/checkpoint.old    # from the checkpoint before the last

A checkpoint is a Hugging Face folder plus

    trainer.pt       Adam's state, the step, the settings: plain tensors and numbers, read with
                     weights_only=True, so that no file from elsewhere can run code
    manifest.json    the step, and of every file its size and SHA-256

It is written as checkpoint.new, every file and then the folder fsynced, the manifest last, and
renamed: checkpoint -> checkpoint.old, checkpoint.new -> checkpoint. Whatever moment a kill, a full
disk or a power cut picks, at least one of the three is whole, and `find` takes the newest that is.

No state of a random generator is stored, because none is kept: the problems of a step (the data
cursor is step * prompts) and every random number of its rollouts are functions of (seed, step), and
torch's own generator, which only a model with dropout would read, is seeded with both each step. On
a CPU a resumed run is therefore the unbroken one, bit for bit. On a card it is up to the order in
which its kernels add.

What we left out, on purpose: more than two checkpoints, saving in the background, saving in the
middle of a step (a stop finishes the step; a kill loses those since the last checkpoint).
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

# What may differ from the run's own on --resume: where it lies, how long it goes on, and what
# changes memory and speed but no gradient (beyond rounding).
FREE = {"resume", "name", "steps", "save_every", "pages_every", "device", "tokens_per_microbatch",
        "checkpointing", "compile"}

# ------------------------------------------------------------------------------ writing one


@contextmanager
def whole(final, step, run):
    """A new folder to write into, which takes the place of `final` when the block ends, or never.

    The one before stays as FINAL.old, and its own predecessor makes room first: there are never
    more than two. Raises BadInput where the disk refuses, and the one before is still whole then.
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
    shutil.rmtree(final.with_name(final.name + ".old"), ignore_errors=True)  # a step done again


def check_room(folder, optimizer, snapshots=0):
    """Raise BadInput unless two checkpoints and so many snapshots fit on the disk of `folder`.

    A checkpoint is three times the weights: Adam keeps two more numbers for each.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    weights = sum(p.numel() * p.element_size() for p in parameters)
    kept = sum(path.stat().st_size for path in folder.glob("checkpoint*/*"))
    needed = (6 + snapshots) * weights - kept
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise BadInput(f"--name {folder}: {free / 1e9:.2f} GB are free there, and two checkpoints "
                       f"and {snapshots} snapshots need {needed / 1e9:.2f} GB; take another disk.")


# ------------------------------------------------------------------------------ reading one


def step_of(path):
    """The step of a whole checkpoint. Raises BadInput with the name of the file that is not."""
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
            raise BadInput(f"{file} was changed: it has not the SHA-256 of manifest.json")
    return step


def last(folder, then="go on with --resume {}"):
    """What a crash of this run leaves, and what to do with it: half a sentence."""
    for name in ("checkpoint", "checkpoint.new", "checkpoint.old"):
        try:
            step = json.loads((folder / name / "manifest.json").read_text())["step"]
            return f"step {step} is safe, {then.format(folder)}"
        except (OSError, ValueError, KeyError):
            continue
    return "no checkpoint had been made yet"


def run_folder(resume):
    """The folder of the run, given it or one of its checkpoints."""
    path = Path(resume)
    return path.parent if path.name in ("checkpoint", "checkpoint.new", "checkpoint.old") else path


def find(resume, held=False):
    """The whole checkpoint that `--resume` means, a path; the newest if it names a run's folder.

    held: keep other processes off the run from here on, for none may move the checkpoint before it
    is read. Raises BadInput for a damaged one, with the older one offered where there is one.
    """
    folder, path, old = run_folder(resume), Path(resume), None
    if held:
        hold(folder)
    if folder == path:
        path, old = folder / "checkpoint", folder / "checkpoint.old"
        if not path.exists():  # stopped in the middle of `whole`, or never saved
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
    """The folder in runs/ whose checkpoint, among this method's runs, was written last (str)."""
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
    """The settings, other than FREE ones, in which two dicts differ, as one phrase ("" if none)."""
    words = {"kl_reference": "the reference of --kl, what --model names,",
             "kl_reference_config": "the config.json of the reference of --kl, of --model,"}
    wrong = [key for key in saved if key not in FREE and saved[key] != now.get(key)]
    return ", ".join(f"{words.get(key, key)} differs ({now.get(key)!r}, the run's is "
                     f"{saved[key]!r})" for key in wrong)


def fingerprint(model):
    """16 digits of the SHA-256 of the weights: of each tensor some 4,096 numbers, and the sum of
    all of its bits, which one number alone moves. The same on every device."""
    found = hashlib.sha256()
    for title, tensor in model.state_dict().items():
        flat = tensor.detach().reshape(-1).clone()  # memory of its own, to be read as int64
        some = flat[::len(flat) // 4096 + 1].float().cpu()
        raw = flat.view(torch.uint8)
        end = len(raw) // 8 * 8
        total = int(raw[:end].view(torch.int64).sum())  # modulo 2^64, so in any order
        rest = raw[end:].tolist()
        found.update(f"{title} {total} {rest} ".encode() + some.numpy().tobytes())
    return found.hexdigest()[:16]


def short_sha(value):
    """The first 16 digits of the SHA-256 of what JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def settings_of(config):
    """What a model's config says of its computation, without who wrote it and where it lay."""
    said = getattr(config, "to_diff_dict", dict)()
    return {k: v for k, v in said.items() if k not in (
        "_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache")}


def refuse_another_shape(adam, step, optimizer, path):
    """Raise ValueError unless this Adam state is of the optimizer's parameters and of this step."""
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
    """Put Adam's state back from a checkpoint `find` found, make it the last; returns the step."""
    try:
        state = torch.load(path / "trainer.pt", "cpu", weights_only=True)
        adam, step, saved = state["optimizer"]["state"], state["step"], state["settings"]
        # Our own groups: the saved ones say whether Adam was fused, which a CPU's is not.
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
    if path.name != "checkpoint":  # an older one, asked for or all there is, becomes the last
        shutil.rmtree(path.with_name("checkpoint"), ignore_errors=True)
        os.rename(path, path.with_name("checkpoint"))
    return step


# ------------------------------------------------------------------------------ while it runs


@contextmanager
def graceful_stop(run, config):
    """Around the steps of a run, an object with .folder, .step (the last whole one) and .signal.

    Ctrl-C, SIGTERM or SIGHUP (a closed terminal) sets .signal, so that the loop ends after a whole
    step; a second one leaves at once, which a file here survives at any moment; not a second
    SIGHUP, for a terminal may send several. Full memory, a full disk and numbers that are
    not finite become BadInput, with the step, what to change and the last checkpoint. In threads
    other than the main one signals are left alone.
    """
    folder = run.folder
    main = threading.current_thread() is threading.main_thread()

    def say(text):  # not print: the signal may have come in the middle of one
        try:
            os.write(2, f"\n{printable(text)}\n".encode(errors="backslashreplace"))
        except OSError:  # the terminal is closed
            pass

    def on_signal(number, _):
        if run.signal and number == getattr(signal, "SIGHUP", None):
            return
        if run.signal:
            say(f"stopped at once; {last(folder)}")
            raise SystemExit(128 + number)
        run.signal = number
        say(f"{signal.Signals(number).name}: finishing step {run.step + 1}; again: stop at once")

    before = {number: signal.signal(number, on_signal)
              for number in (signal.SIGINT, *stops()) if main}
    try:
        yield
    except FloatingPointError as error:
        again = "start from it anew with --model {}/checkpoint"  # --resume would meet it again
        raise BadInput(f"step {run.step + 1}: {error}; {last(folder, again)}.") from None
    except torch.OutOfMemoryError:
        ways = ", ".join(ways_to_less_memory(config))
        raise BadInput(f"step {run.step + 1}: the memory is full; in this order: "
                       f"{ways}; the first two may change on --resume; "
                       f"{last(folder)}.") from None
    except OSError as error:
        what = f"{error.filename or folder}: {reason(error)}; make room or take another --name"
        if error.errno == errno.EPIPE:
            what = "nobody reads the output any more"
        raise BadInput(f"step {run.step + 1}: {what}; {last(folder)}.") from None
    finally:
        release(folder)
        for number, handler in before.items():
            signal.signal(number, handler)


def ways_to_less_memory(config):
    """The flags to change where the memory is full, the best first."""
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
