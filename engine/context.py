"""How long a row may be: the context, windows, and RoPE that changes. Skip on a first reading."""
import math


def longest_row(config):
    """(the most tokens in a row, the reason): the model's context, or less.

    RoPE of the kinds longrope and dynamic changes its angles once a row is longer than the original
    context. Keys that are already in the cache keep the old angles, which would be wrong. YaRN is
    often switched on only by a factor, which multiplies the context.
    """
    context = getattr(config, "max_position_embeddings", None) or math.inf
    for rope in rope_settings(config):
        if rope.get("rope_type", rope.get("type")) == "yarn":
            original = rope.get("original_max_position_embeddings") or 0
            context = max(context, int(original * (rope.get("factor") or 1)))
    found = [(context, f"the model's context of {context:,}")]
    chosen = getattr(config, "index_topk", None)
    if isinstance(chosen, int):
        found.append((chosen, f"{chosen:,}, where its sparse attention begins to choose among "
                              "keys, which the sampler does not follow"))
    for rope in rope_settings(config):
        kind = rope.get("rope_type", rope.get("type"))
        if kind in ("longrope", "su", "dynamic"):
            original = rope.get("original_max_position_embeddings") or getattr(
                config, "original_max_position_embeddings", None) or context
            found.append((original, f"{original:,}, where its {kind} RoPE changes and cached keys "
                                    "do not"))
    return min(found)


def narrowest_window(config):
    """Size in tokens of the smallest sliding window of this config; infinity without one."""
    names = ("sliding_window", "attention_chunk_size", "local_attention", "window_size")
    return min((size for name in names if isinstance(size := getattr(config, name, None), int)
                and size > 0), default=math.inf)


def rope_settings(config):
    """The config's RoPE settings: a list of one dict, or of one for each type of layer."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    nested = [one for one in rope.values() if isinstance(one, dict)]
    return nested or [rope]
