"""A model's folder that loads elsewhere, the same. Skip on a first reading.

transformers 5 writes two things in words of its own, which transformers 4, and the servers built
on it, read as something else and say nothing: RoPE's base falls back to 10,000, the tokenizer's
class is unknown. Here both spellings are written.
"""
import json
import tempfile
from pathlib import Path

from engine.errors import BadInput

# How this folder was loaded, which is nobody else's business.
OF_THE_LOAD = ("backend", "is_local", "local_files_only", "trust_remote_code", "use_safetensors")


def save_model(folder, model):
    """Write weights, config.json and generation_config.json."""
    model.save_pretrained(folder)
    mend_config(folder / "config.json")


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
    """Save all but the weights into a folder that is then removed. Raises BadInput where that
    fails: better before the first step than at the first checkpoint."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            model.config.save_pretrained(folder)
            model.generation_config.save_pretrained(folder)
            mend_config(Path(folder) / "config.json")
            save_tokenizer(Path(folder), tokenizer)
    except Exception as error:  # a foreign config can fail in any way
        reason = " ".join(str(error).split())
        raise BadInput(f"--model {name}: its configs or its tokenizer load and cannot be saved, so "
                       f"no checkpoint could be written ({reason[:300]}).") from None


def put(path, content):
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def mend_config(path):
    """RoPE in the spelling of transformers 4 beside that of 5, in a config.json."""
    config = json.loads(path.read_text(encoding="utf-8"))
    rope = config.get("rope_parameters")
    if isinstance(rope, dict):
        put(path, {**old_rope(rope), **config})


def old_rope(rope):
    """rope_parameters in the keys of transformers 4: one dict, or one for each type of layer, whose
    full attention had rope_theta and whose windows had rope_local_base_freq (Gemma 3)."""
    if "full_attention" in rope and isinstance(rope["full_attention"], dict):
        old = old_rope(rope["full_attention"])
        window = rope.get("sliding_attention") or {}
        if "rope_theta" in window:
            old["rope_local_base_freq"] = window["rope_theta"]
        return old
    rope = {key: value for key, value in rope.items() if value is not None}
    old = {key: rope[key] for key in ("rope_theta", "partial_rotary_factor") if key in rope}
    if rope.get("rope_type", "default") != "default":
        old["rope_scaling"] = {key: value for key, value in rope.items() if key not in old}
        if "original_max_position_embeddings" in rope:
            old["original_max_position_embeddings"] = rope["original_max_position_embeddings"]
    return old
