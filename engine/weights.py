"""Check a model's files before and after loading, so that no wrong number goes unnoticed.

Skip this on a first reading.

A library that loads a folder ignores tensors that it cannot place, and rounds the others. Examples:
an adapter beside the weights, 8-bit numbers with their scales elsewhere, a bias that the layer does
not have. Each loads without an error and gives another model.
"""
import json
from pathlib import PurePosixPath, PureWindowsPath

from safetensors import safe_open
from torch.nn import ModuleList

from engine.errors import BadInput

PICKLES = (".bin", ".pt", ".pth", ".ckpt")
MERGE = "merge it first (merge_and_unload in peft) and save the whole model."


def check_files(name, folder):
    """Raise BadInput for a folder with no model, with an adapter, or with pickled weights only."""
    files = sorted(path.name for path in folder.iterdir())
    adapters = [file for file in files if file.startswith("adapter_")]
    if adapters:
        raise BadInput(f"--model {name}: {adapters[0]} is part of an adapter (LoRA), which would "
                       f"be left out or come back unmerged; {MERGE}")
    own = any(file.endswith(".safetensors") for file in files)
    if not own and (folder / "checkpoint" / "config.json").exists():
        raise BadInput(f"--model {name}: a run's folder; its model is in {folder / 'checkpoint'}.")
    if "config.json" not in files:
        raise BadInput(f"--model {name}: the folder has no config.json, so it holds no model.")
    pickles = [file for file in files if file.endswith(PICKLES)]
    if pickles and not any(file.endswith((".safetensors", ".safetensors.index.json"))
                           for file in files):
        raise BadInput(
            f"--model {name}: its weights are in {pickles[0]}, a pickle, which can run code when "
            "it is read, so only .safetensors are read here; if you trust it, convert it once: "
            "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(FOLDER).")
    for index in folder.glob("*.safetensors.index.json"):
        check_index(name, index)


def check_index(name, path):
    """Raise BadInput unless this list of weight files only names files of its own folder."""
    try:
        named = set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values())
        strange = [one for one in sorted(named) if not inside(one)]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise BadInput(f"--model {name}: {path.name} is damaged.") from None
    if strange:
        raise BadInput(f"--model {name}: {path.name} names {strange[0]!r}, which is outside of its "
                       "folder.")


def inside(name):
    """Does this path stay in its folder, on any system?"""
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    return not (posix.is_absolute() or windows.anchor or {"..", "~"} & {*posix.parts,
                                                                       *windows.parts})


def check_formats(name, folder, model):
    """Raise BadInput for weights of 8 bits or less.

    With a quantization_config the library may widen them, which is fine. If it leaves them as they
    are, they cannot be trained. Without that config it does not know their scales.
    """
    narrow = [title for title, p in model.named_parameters()
              if not p.is_floating_point() or p.dtype.itemsize < 2]
    if narrow:
        raise BadInput(f"--model {name}: {narrow[0]} is quantised ("
                       f"{dict(model.named_parameters())[narrow[0]].dtype}) and cannot be trained; "
                       "take the model's whole weights.")
    if getattr(model, "hf_quantizer", None) is not None:
        return
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for title in file.keys():
                kind = file.get_slice(title).get_dtype()
                if is_narrow(title, kind):
                    raise BadInput(f"--model {name}: {title} in {path.name} is {kind}, and its "
                                   "config.json has no quantization_config that says by which "
                                   "scales to read it; take the model's whole weights.")


def is_narrow(title, kind):
    """Is this a weight of integers, or of floating-point numbers of 8 bits or less? Tables of
    integers, such as positions, do not count."""
    if kind in ("F64", "F32", "F16", "BF16", "BOOL"):
        return False
    return kind[0] == "F" or kind in ("I8", "U8") or title.endswith((".weight", ".bias"))


def is_layer(layers, owner, title, left_over):
    """Is the tensor `title` of one more layer like those in `layers`, the module named `owner`?
    Then config.json counts too few. A layer that predicts further ahead has parts of its own
    beside, such as `eh_proj`, and is left out like a value head. left_over: names of tensors."""
    if not isinstance(layers, ModuleList):
        return False
    number = title[len(owner) + 1:].partition(".")[0]
    start = f"{owner}.{number}."
    parts = {name[len(start):].partition(".")[0] for name in left_over if name.startswith(start)}
    known = {name for layer in layers for name, _ in layer.named_children()}
    return parts <= known | {"self_attn", "linear_attn", "mlp"}  # layers can be of several kinds


def check_loaded(name, model, loaded):
    """Raise BadInput if weights were missing, left over or of another shape. `loaded`: the loading
    info of from_pretrained.

    A tensor is left over if it belongs to a part that the model has: a bias, a scale, an adapter,
    one more layer. Whole parts that the model lacks (a value head, a vision tower) change none of
    its numbers.
    """
    missing = sorted(loaded["missing_keys"])
    if missing:
        raise BadInput(f"--model {name}: its files lack {len(missing)} tensors, the first of them "
                       f"{missing[0]}, which would be random.")
    for title, in_file, in_model in sorted(loaded["mismatched_keys"], key=str):
        raise BadInput(f"--model {name}: {title} is {list(in_file)} in its files and "
                       f"{list(in_model)} by its config.json.")
    if getattr(model, "_hf_peft_config_loaded", False):
        raise BadInput(f"--model {name}: it comes with an adapter (LoRA); {MERGE}")
    parts = dict(model.named_modules())
    for title in sorted(loaded["unexpected_keys"]):
        owner, _, last = title.rpartition(".")
        if getattr(parts.get(owner), last, None) is not None:
            continue  # it is tied to another one, or computed again
        while owner and owner not in parts:
            owner = owner.rpartition(".")[0]
        if owner and (not list(parts[owner].children())
                      or is_layer(parts[owner], owner, title, loaded["unexpected_keys"])):
            raise BadInput(f"--model {name}: its files hold {title}, for which "
                           f"{model.config.model_type} has no place, so it would be left out and "
                           "the numbers would be of another model.")
