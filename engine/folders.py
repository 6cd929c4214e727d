"""Save a model's folder so that it loads the same elsewhere. Skip on a first reading.

transformers 5 uses some new names that transformers 4, and the servers built on it, do not know.
There, RoPE's base becomes 10,000 and the number of experts 128 without an error, and the
tokenizer's class is unknown. So we write both names.
"""
import json
import shutil
import tempfile
from pathlib import Path

from engine.errors import BadInput

# Flags of how this folder was loaded, and code that is not in the new folder: not saved.
OF_THE_LOAD = ("auto_map", "backend", "is_local", "local_files_only", "trust_remote_code",
               "use_safetensors")


def save_model(folder, model, for_others=True):
    """Write weights, config.json and generation_config.json.

    for_others: use the tensor names of the hub. Without it, tensors keep their names in the model,
    where transformers 5 has joined the experts of a layer into one tensor.
    """
    model.save_pretrained(folder, save_original_format=for_others)
    mend_config(folder / "config.json", model.config)


def save_tokenizer(folder, tokenizer):
    """Write the tokenizer with a class that transformers 4 knows and without the load's flags."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    for name in OF_THE_LOAD:
        config.pop(name, None)
    if config.get("tokenizer_class") == "TokenizersBackend":
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(config.get("extra_special_tokens"), list):  # a dict in transformers 4
        config["additional_special_tokens"] = config.pop("extra_special_tokens")
    put(path, config)


def try_to_save(model, tokenizer, name):
    """Save all but the weights into a temporary folder. Raises BadInput if that fails, so that it
    fails before the first step and not at the first checkpoint."""
    folder = Path(tempfile.mkdtemp())
    try:
        model.config.save_pretrained(folder)
        model.generation_config.save_pretrained(folder)
        mend_config(folder / "config.json", model.config)
        save_tokenizer(folder, tokenizer)
    except Exception as error:  # a foreign config can fail in any way
        reason = " ".join(str(error).split())
        raise BadInput(f"--model {name}: its configs or its tokenizer load and cannot be saved, so "
                       f"no checkpoint could be written ({reason[:300]}).") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def put(path, content):
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def mend_config(path, known):
    """Add transformers 4's names to a config.json and remove links to code. `known`: the config
    object, which maps old names to new ones."""
    config = json.loads(path.read_text(encoding="utf-8"))
    config.pop("auto_map", None)
    for old, new in known.attribute_map.items():
        if new in config:
            config.setdefault(old, config[new])
    rope = config.get("rope_parameters")
    if isinstance(rope, dict):
        both = {**old_rope(rope), **config}
        if rope_read(known, both) == rope_read(known, config):
            config = both
    put(path, config)


def rope_read(known, config):
    """How transformers 5 reads this content of a config.json: rope_parameters, or the error. Some
    classes that transformers 4 never had cannot take the old names (Gemma 4)."""
    try:
        return type(known).from_dict(json.loads(json.dumps(config))).rope_parameters
    except Exception as error:
        return error


def old_rope(rope):
    """rope_parameters with the keys of transformers 4. With a dict for each type of layer (Gemma 3)
    full attention has rope_theta, and sliding windows have rope_local_base_freq."""
    if "full_attention" in rope and isinstance(rope["full_attention"], dict):
        old = old_rope(rope["full_attention"])
        window = rope.get("sliding_attention") or {}
        if "rope_theta" in window:
            old["rope_local_base_freq"] = window["rope_theta"]
        return old
    rope = {key: value for key, value in rope.items() if value is not None}
    old = {key: rope[key] for key in ("rope_theta", "partial_rotary_factor") if key in rope}
    old["rope_scaling"] = None  # without this, some classes of transformers 4 use a default scale
    if rope.get("rope_type", "default") != "default":
        old["rope_scaling"] = {key: value for key, value in rope.items() if key not in old}
        if "original_max_position_embeddings" in rope:
            old["original_max_position_embeddings"] = rope["original_max_position_embeddings"]
    return old
