"""Where a card's memory goes: estimates before a run, peaks during it. Skip on a first reading."""
import torch


def head_width(config):
    """Size of one head's key; of the widest layer if layers differ."""
    try:
        head = getattr(config, "head_dim", None)
    except RuntimeError:  # e.g. Gemma 4: transformers has no single number for all layers
        each = config.per_layer_config
        head = max(each[i].head_dim for i in range(config.num_hidden_layers))
    return head or config.hidden_size // config.num_attention_heads


def cache_bytes(config):
    """Bytes of one token of one row in the KV cache, in bf16."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return 4 * config.num_hidden_layers * heads * head_width(config)


def recorded_bytes(model):
    """Bytes that recordings of --compile keep; 0 without."""
    return model.graphs.held() if "graphs" in vars(model) else 0


def free_bytes(model):
    """Bytes of the card that are free or cached. Recordings of --compile do not count as cached."""
    free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()
    return free - torch.cuda.memory_allocated() - recorded_bytes(model)


def peak_gb(model):
    """Peak GB (10^9 bytes) since the last call; 0 on a CPU. It resets the peak. This is an upper
    bound: the smaller of peak reserved and peak allocated plus the recordings' memory. (While one
    is recorded, its tensors are in both terms.)"""
    if model.device.type != "cuda":
        return 0.0
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    return min(allocated + recorded_bytes(model), reserved) / 1e9


def memory_estimate(model, config, prompt_tokens):
    """One line: an estimate of the card's memory use in GB (10^9 bytes), before the run."""
    c = model.config
    n = sum(p.numel() for p in model.parameters())
    n_reference = n if config.kl > 0 else 0
    tokens = prompt_tokens + config.max_new_tokens  # tokens of a row
    if config.checkpointing:
        kept = 4 * c.hidden_size
    else:
        kept = 34 * c.hidden_size + 12 * c.intermediate_size
        kept += 8 * c.num_attention_heads * head_width(c)
        kept *= 0.6 if config.compile else 1.0
    parts = {
        "weights, gradients, Adam": 16 * n + 4 * n_reference,
        "bf16 copy": 2 * n,
        "KV cache": cache_bytes(c) * config.prompts * config.group * tokens,
        "activations": c.num_hidden_layers * kept * max(tokens, config.tokens_per_microbatch),
        "logits": 25 * 512 * c.vocab_size,
    }
    gb = {name: size / 1e9 for name, size in parts.items()}
    peak = 18e-9 * n + 4e-9 * n_reference
    peak += max(gb["KV cache"], gb["activations"] + gb["logits"])
    free = ""
    if model.device.type == "cuda":  # the weights are on the card already
        free = f" of {torch.cuda.mem_get_info()[0] / 1e9 + 4e-9 * n:.1f} free"
    sizes = ", ".join(f"{name} {size:.1f}" for name, size in gb.items())
    return f"memory, roughly: {sizes}; peak {peak:.1f} GB{free}"
