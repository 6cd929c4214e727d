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


def room_bytes(device):
    """Bytes of the card that this process can have in all, with those that it has. Other processes
    leave it so much, and its own limit (torch.cuda.set_per_process_memory_fraction) lets it."""
    free, total = torch.cuda.mem_get_info(device)  # of the card, which knows nothing of the limit
    limit = int(total * torch.cuda.get_per_process_memory_fraction(device))  # all of it if unset
    return min(free + torch.cuda.memory_reserved(device), limit)


def free_bytes(model):
    """Bytes of the card that the model's process can still fill.

    The allocator takes memory from the card in large blocks. `reserved` is all that it has taken,
    and this is what the process's limit bounds. A part of it is allocated to tensors, another is
    kept by recordings of --compile. The rest is cached, and the next tensor can have it.
    """
    used = torch.cuda.memory_allocated(model.device) + recorded_bytes(model)
    return room_bytes(model.device) - used


def peak_gb(model):
    """Peak GB (10^9 bytes) since the last call; 0 on a CPU. It resets the peak. This is an upper
    bound: the smaller of peak reserved and peak allocated plus the recordings' memory. (While one
    is recorded, its tensors are in both terms.)"""
    if model.device.type != "cuda":
        return 0.0
    allocated = torch.cuda.max_memory_allocated(model.device)
    reserved = torch.cuda.max_memory_reserved(model.device)
    torch.cuda.reset_peak_memory_stats(model.device)
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
    if model.device.type == "cuda":  # with what is there already, because the peak counts it too
        free = f" of {room_bytes(model.device) / 1e9:.1f} free"
    sizes = ", ".join(f"{name} {size:.1f}" for name, size in gb.items())
    return f"memory, roughly: {sizes}; peak {peak:.1f} GB{free}"
