"""Files of samples, which evaluate.py appends to and continues. Skip this on a first reading.

The first line of a problem set is a header with all that the numbers depend on. Then comes one line
per sample. The same command reads these and makes the rest. Other settings are refused.
"""
import hashlib
import json
import subprocess
from pathlib import Path

import torch
import transformers

from engine.checkpoints import fingerprint, settings_of, short_sha
from engine.errors import BadInput
from engine.files import begins_like, lock

ROOT = Path(__file__).resolve().parent.parent
# These files load, ask, sample and grade, so a sample depends on them.
CODE = ("problems", "benchmarks", "models", "logprobs", "rollout", "verify", "engine/seeds",
        "engine/attention", "engine/caches", "engine/context", "engine/decode")


def describe(model, problems, **settings):
    """The header of a file: what the numbers depend on. made_on: what they should not depend on."""
    code = hashlib.sha256()
    for module in CODE:
        code.update((ROOT / f"{module}.py").read_bytes())
    rows = [[row["id"], row["problem"], row["answer"]] for row in problems]
    made_on = {
        "commit": commit(),
        "device": str(model.device),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    return {
        **settings,
        "problems": len(problems),
        "model": model.name_or_path,
        "revision": getattr(model.config, "_commit_hash", None),
        "weights_sha256": fingerprint(model),
        "code_sha256": code.hexdigest()[:16],
        "config_sha256": short_sha(settings_of(model.config)),
        "data_sha256": short_sha(rows),
        "made_on": made_on,
    }


def describe_prompts(tokenizer, prompts):
    """The header's part about the prompts: chat template and tokenizer."""
    ids = tokenizer(prompts, add_special_tokens=False).input_ids
    added = [[i, token.content, token.special]
             for i, token in sorted(getattr(tokenizer, "added_tokens_decoder", {}).items())]
    decoder = repr(getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None))
    return {
        "first_prompt": prompts[0],
        "first_ids": ids[0],
        "prompts_sha256": short_sha(prompts),
        "tokens_sha256": short_sha(ids),
        "reading_sha256": short_sha([tokenizer.get_vocab(), added, decoder]),
    }


def commit():
    """The project's commit, with -dirty if it was changed; None without git or a checkout."""
    git = ["git", "-C", ROOT, "describe", "--always", "--dirty"]
    try:
        return subprocess.check_output(git, stderr=subprocess.DEVNULL, text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        return None


# ------------------------------------------------------------------------------ reading one


def refuse_foreign(path, raw):
    """Raise BadInput unless a file with this content, or beginning, is one of ours or a half."""
    if not begins_like(raw, b'{"header":'):
        raise BadInput(f"{path}, line 1: not a sample of evaluate.py.")


def read_samples(path):
    """{benchmark: (header, {id: its n records})} and the size of all complete lines, in bytes."""
    found = {}
    raw = Path(path).read_bytes()
    refuse_foreign(path, raw)
    whole = raw[:raw.rfind(b"\n") + 1]  # a run that was killed leaves half a line
    for number, line in enumerate(whole.split(b"\n")[:-1], 1):
        try:
            record = json.loads(line)
            if "header" in record:
                samples = record["header"]["samples"]
                if type(samples) is not int or samples < 1:
                    raise ValueError
                found[record["header"]["data"]] = record["header"], {}
            else:
                made = found[record["data"]][1].setdefault(record["id"], {})
                made[record["sample"]] = record
                if record["strict"] not in (True, False):
                    raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError):
            raise BadInput(f"{path}, line {number}: not a sample of evaluate.py.") from None

    complete = {}
    for data, (header, rows) in found.items():
        done = {i: list(made.values()) for i, made in rows.items()
                if len(made) == header["samples"]}
        complete[data] = header, done
    return complete, len(whole)


def asked_differently(old, new):
    """How the prompts of two headers differ, as a phrase; "" if they are equal."""
    if None in (old.get("first_prompt"), new.get("first_prompt")):
        same = old.get("first_prompt") == new.get("first_prompt")
        return "" if same else "one of them, an older file, does not hold its prompts"
    a, b = (str(header["first_prompt"]) for header in (old, new))
    if a != b:
        at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        at = max(0, at - 20)
        return (f"the first prompt was ...{a[at:at + 60]!r}, and is now ...{b[at:at + 60]!r} "
                "(chat template?)")
    if old.get("prompts_sha256") != new.get("prompts_sha256"):
        return ("the prompts differ, though not the first (prompts_sha256 "
                f"{old.get('prompts_sha256')!r} and {new.get('prompts_sha256')!r})")
    if old.get("tokens_sha256") != new.get("tokens_sha256"):
        a, b = (header.get("first_ids") or [] for header in (old, new))
        return (f"another tokenizer wrote the same prompts in other tokens (the first in {len(a)}, "
                f"now in {len(b)}, tokens_sha256 {old.get('tokens_sha256')!r} and "
                f"{new.get('tokens_sha256')!r})")
    reading = [header.get("reading_sha256") for header in (old, new)]
    if None not in reading and reading[0] != reading[1]:
        return ("another tokenizer reads the model's tokens as other text (reading_sha256 "
                f"{reading[0]!r} and {reading[1]!r})")
    return ""


# ------------------------------------------------------------------------------ going on with one


def lock_of(path):
    """The lock of a file, or None where none can be made: the folder may be read-only. Raises
    BlockingIOError if another process has it."""
    try:
        return lock(f"{path.resolve()}.lock")
    except BlockingIOError:
        raise
    except OSError:
        return None


def resume(path, header):
    """Open `path` to append after its last complete line: (finished problems, file, lock). Raises
    BadInput if another process writes it, or if it is no file of ours."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            raise BadInput(f"--out {path}: not a regular file; name one.")
        if path.exists():
            with path.open("rb") as there:
                refuse_foreign(path, there.read(100))
        held = lock_of(path)
        found, size = read_samples(path) if path.exists() else ({}, 0)
        old, done = found.get(header["data"], (None, {}))
        if done:
            refuse_other_settings(path, old, header)
        file = path.open("a", encoding="utf-8")
        file.truncate(size)
    except BlockingIOError:
        raise BadInput(f"--out {path}: another process is writing it; wait for it, or take another "
                       "file.") from None
    except OSError as error:
        raise BadInput(f"--out {path}: cannot be written ({error.strerror}).") from None
    if not done:
        file.write(json.dumps({"header": header}) + "\n")
    return done, file, held


def refuse_other_settings(path, old, header):
    """Raise BadInput if the samples in a file were made with other settings."""
    other = asked_differently(old, header)
    if other:
        raise BadInput(f"--out {path}: what it holds of {header['data']} was asked in another "
                       f"way: {other}; choose another file.")
    for key, value in header.items():
        if key not in old and key != "made_on":
            raise BadInput(f"--out {path}: what it holds of {header['data']} is older and does not "
                           f"say its {key}; choose another file.")
        if key != "made_on" and old[key] != value:
            raise BadInput(f"--out {path}: it holds {header['data']} with {key} {old.get(key)!r}, "
                           f"not {value!r}; choose another file.")
