"""How long a row may be: the context, windows, and RoPE that changes. Skip on a first reading."""
import math


def longest_row(config):
    """(tokens that a row may have, why no more): the model's context, or less.

    RoPE of the kinds longrope and dynamic turns by other angles once a row is longer than the
    original context, and keys that are in the cache by then were turned by the old ones. YaRN is
    often switched on by a factor alone, which makes the context so much longer.
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
    """Tokens that a layer of this config looks back at least, if it looks through a window."""
    names = ("sliding_window", "attention_chunk_size", "local_attention", "window_size")
    return min((size for name in names if isinstance(size := getattr(config, name, None), int)
                and size > 0), default=math.inf)


def rope_settings(config):
    """The config's RoPE settings, dicts: one, or one for each type of layer."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    nested = [one for one in rope.values() if isinstance(one, dict)]
    return nested or [rope]


def rows_that_fit(lengths, left, context):
    """Numbers of prompts in lists, each to be sampled at once: the longest of a list and the most
    tokens that one of it has left fit into the context. One list, unless the context is short."""
    lists, longest, most = [], 0, 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        most = max(most, left[i])
        if lists and longest + most <= context:
            lists[-1].append(i)
        else:
            lists.append([i])
            longest, most = lengths[i], left[i]
    return [sorted(some) for some in lists]
