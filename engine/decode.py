r"""The sampler's inner loop on a CUDA card: one token per row, captured once as a CUDA graph.

Skip this on a first reading.

    rollout.sample(...)         # uses this file for the architectures of `supports`
    python examples/bench.py    # measures its speed

A card reads the 0.6 billion weights of Qwen3-0.6B in half a millisecond. Launching the thousand
kernels of one Hugging Face decode step from Python takes 30 ms. So this file writes the step out,
fuses what is easy to fuse, and captures it as a CUDA graph, which replays it in one launch:

    x = embedding of the last token                                (R, H), fp32 as in training
    in each layer:
        q, k, v = W_qkv norm(x)                                    one product, not three
        k, v -> the cache;  a = softmax(q K' / sqrt(D)) V          one kernel: engine/attention.py
        x = x + W_o a
        x = x + W_down (silu(gate) * up)                           gate and up: one product
    draw the next token, store it, stop the rows that drew a stop token

The step never waits for the CPU, which checks only every 16 steps whether a row is unfinished. A
row reads only the filled part of its own cache. When half of the rows have stopped (of many rows, a
quarter), the unfinished rows move to the front of the state, and a smaller graph takes over. The
cache does not move. Weights are cast to bf16 once per call. Cache and graphs live for one call: a
capture costs about as much as two plain steps, and the update needs the memory.

What we left out, on purpose: paged caches, refilling a stopped row, several cards, quantisation,
one kernel for a whole layer (docs/speed.md says what that could gain).
"""
import functools
import sys
from contextlib import contextmanager

import torch
import torch.nn.functional as F

from engine.attention import attend, attend_on_card, triton
from engine.memory import head_width
from engine.seeds import uniforms


def supports(model):
    """True for Llama, Qwen2 and Qwen3 decoders without sliding windows, on a card with Triton."""
    c = model.config
    return (triton is not None and model.device.type == "cuda"
            and c.model_type in ("llama", "qwen2", "qwen3") and c.hidden_act == "silu"
            and set(getattr(c, "layer_types", None) or ["full_attention"]) == {"full_attention"}
            and head_width(c) in (32, 64, 128, 256))  # sizes that the kernel's tensor cores allow


# -------------------------------------------------------------------------- the pieces of a step


@contextmanager
def uncompiled():
    """Inside, compiled layers run uncompiled: they were compiled for training, without a cache."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and the import takes seconds
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def compiled(function):
    """torch.compile with a free number of rows and a fixed width of the first argument.

    With a free width, a model could get a kernel that was tuned for another, because Inductor keeps
    kernels on disk. (Each kernel is still tuned for the first number of rows.) More than eight
    widths run uncompiled. The first argument gets a mark: pass it to no other compiled function.
    """
    @functools.cache
    def of_any_width():  # at the first call, because importing the compiler takes seconds
        return torch.compile(function, dynamic=True)

    @functools.wraps(function)
    def of_this_width(x, *rest):
        torch._dynamo.mark_static(x, 1)
        return of_any_width()(x, *rest)
    return of_this_width


def add_norm(x, delta, weight, eps, dtype):
    """x + delta, (R, H) fp32, and its RMSNorm in `dtype`, (R, H)."""
    x = x + delta  # (R, H)
    return x, (x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight).to(dtype)


def gated(gate_up):
    """silu(gate) * up, of [gate, up] in one tensor: (R, 2 I) -> (R, I)."""
    gate, up = gate_up.chunk(2, -1)  # (R, I) each
    return F.silu(gate) * up


# Tokens of a block of the draw. Were it an argument, the compiler would take it for a variable.
BLOCK = 256


def draw_by_blocks(logits, u, temperature):
    """rollout.draw for temperature > 0 without top-k and top-p, in V / BLOCK blocks of tokens.

    logits (R, V), u (R,) float64 in (0, 1). Returns ids (R,) and logprobs (R,) fp32. It finds the
    block in which the cumulative distribution reaches u, then the token inside it. So all logits
    are read once, for the sums of the blocks, and then those of one block again.
    """
    V = logits.shape[1]
    logits = logits.float() / temperature  # (R, V)
    padded = F.pad(logits, (0, -V % BLOCK), value=-torch.inf)  # (R, V up to a whole block)
    blocks = padded.view(len(logits), -1, BLOCK)  # (R, V / BLOCK, BLOCK)
    log_sums = blocks.logsumexp(-1).double()  # (R, V / BLOCK)
    normaliser = log_sums.logsumexp(-1, keepdim=True)  # (R, 1)
    mass = (log_sums - normaliser).exp()  # (R, V / BLOCK) probability of each block
    upto = mass.cumsum(-1)  # (R, V / BLOCK)
    target = u[:, None] * upto[:, -1:]  # (R, 1)
    # NaN logits find no block and no token. The clamps keep the ids in range; sample() raises.
    block = torch.searchsorted(upto, target).clamp(max=mass.shape[1] - 1)  # (R, 1)
    before = F.pad(upto, (1, 0)).gather(1, block)  # (R, 1)
    chosen = blocks.gather(1, block[:, :, None].expand(-1, -1, BLOCK))[:, 0]  # (R, BLOCK) logits
    inside = (chosen - normaliser).exp().cumsum(-1)  # (R, BLOCK)
    # As a share of the block: rounding cannot move the target past the block's last token.
    share = (target - before) / mass.gather(1, block)  # (R, 1)
    place = torch.searchsorted(inside, share.clamp(max=1) * inside[:, -1:])  # (R, 1)
    ids = (block * BLOCK + place).clamp(max=V - 1)  # (R, 1)
    return ids[:, 0], (logits.gather(1, ids) - normaliser)[:, 0].float()


def draw_by_keys(logits, key, t, temperature):
    """draw_by_blocks with the random numbers of `key` (R,) int64 for tokens number `t` (R,).
    Returns ids (R,) and logprobs (R,), too. Compiled as one, the random numbers need no kernels of
    their own."""
    return draw_by_blocks(logits, uniforms(key, t), temperature)


def longest_with(prompts):
    """For each prompt (a list of ids) the place of a prompt that starts with it and is as long as
    possible: the start of no longer one. Often that is the prompt itself."""
    order = sorted(range(len(prompts)), key=lambda i: prompts[i])
    found = list(range(len(prompts)))
    # In this order, the prompts that start with a prompt follow it directly.
    for i, after in reversed(list(zip(order, order[1:]))):
        if prompts[after][:len(prompts[i])] == prompts[i]:
            found[i] = found[after]
    return found


# -------------------------------------------------------------------------- the step


class Decoder:
    """The weights of one model laid out for decoding, and a cache of `rows` x `slots` tokens."""

    def __init__(self, model, rows, slots):
        c, device = model.config, model.device
        self.dtype = torch.bfloat16 if device.type == "cuda" else model.dtype
        self.eps = c.rms_norm_eps

        def fused(*linears):
            weight = torch.cat([x.weight.to(self.dtype) for x in linears])
            biases = [x.bias.to(self.dtype) for x in linears if x.bias is not None]
            return weight, torch.cat(biases) if biases else None

        base = model.base_model
        self.layers = []
        for layer in base.layers:
            a, m = layer.self_attn, layer.mlp
            norms = (a.q_norm.weight, a.k_norm.weight) if c.model_type == "qwen3" else (None, None)
            self.layers.append((layer.input_layernorm.weight, fused(a.q_proj, a.k_proj, a.v_proj),
                                norms, fused(a.o_proj), layer.post_attention_layernorm.weight,
                                fused(m.gate_proj, m.up_proj), fused(m.down_proj)))
        self.embedding = model.get_input_embeddings().weight  # read a row at a time: stays fp32
        self.norm, self.head = base.norm.weight, fused(model.get_output_embeddings())
        D = base.layers[0].self_attn.head_dim
        places = torch.arange(slots, device=device)[None]  # (1, slots)
        self.cos, self.sin = (x[0].contiguous() for x in base.rotary_emb(
            self.embedding[:1, None].float(), places))  # (slots, D) each
        shape = (len(self.layers), rows, c.num_key_value_heads, slots, D)
        self.keys, self.values = (torch.zeros(shape, dtype=self.dtype, device=device)
                                  for _ in range(2))  # (layers, rows, Hk, slots, D) each
        # Compiled for any number of rows; a process pays once.
        on_card = device.type == "cuda"
        self.attend = attend_on_card if on_card else attend
        self.add_norm, self.gated, self.draw = (
            compiled(function) if on_card else function
            for function in (add_norm, gated, draw_by_keys))

    def prefill(self, model, cache, prompt_ids, prompt_mask, samples):
        """Fill our cache from n right-padded prompts (n, P), each copied for its samples. `cache`
        is an empty one of Hugging Face's. If a prompt is the start of another, only the other is
        computed: its first keys and values are those of both. (vine.py has many such prompts.)"""
        longest = longest_with([ids[:size] for ids, size in zip(
            prompt_ids.tolist(), prompt_mask.sum(1).tolist())])
        whole = sorted(set(longest))  # m of the n prompts
        place = {i: k for k, i in enumerate(whole)}
        source = torch.tensor([place[i] for i in longest], device=prompt_ids.device)  # (n,)
        with uncompiled():
            # The fourth argument has no name here: transformers 5.24 renamed it to cache.
            model.base_model(prompt_ids[whole], prompt_mask[whole], None, cache, use_cache=True)
        n, P = prompt_ids.shape
        for layer, keys, values in zip(cache.layers, self.keys, self.values):
            for mine, theirs in ((keys, layer.keys), (values, layer.values)):
                mine.view(n, samples, *mine.shape[1:])[..., :P, :] = theirs[source][:, None]

    def logits(self, token, rows, places, lengths):
        """Logits (R, V) after `token` (R,) at slot `places` (R,) of cache rows `rows` (R,)."""
        x = self.embedding[token].float()  # (R, H)
        delta = torch.zeros_like(x)        # (R, H) what the last block adds, not yet added
        for i, (norm, qkv, (q_norm, k_norm), o, norm2, gate_up, down) in enumerate(self.layers):
            x, h = self.add_norm(x, delta, norm, self.eps, self.dtype)  # (R, H) each
            a = self.attend(F.linear(h, *qkv), self.keys[i], self.values[i], rows, places, lengths,
                            self.cos, self.sin, q_norm, k_norm, self.eps)  # (R, Hq D)
            x, h = self.add_norm(x, F.linear(a, *o), norm2, self.eps, self.dtype)
            delta = F.linear(self.gated(F.linear(h, *gate_up)), *down)  # (R, H)
        _, h = self.add_norm(x, delta, self.norm, self.eps, self.dtype)
        return F.linear(h, *self.head)


# -------------------------------------------------------------------------- the loop


def rows_of_graph(alive, R):
    """How many rows the next graph has, if `alive` of R are unfinished. A new graph must pay for
    its capture: with many rows it does when a quarter has stopped, else when half has."""
    if R > 512 and alive <= 0.75 * R:
        R = -(-alive // 64) * 64
    while alive <= R // 2 and R > 8:
        R //= 2
    return R


def generate(model, prompt_ids, prompt_mask, samples, keys, stops, limits, temperature, top_p,
             top_k, pad_id, bar, draw, new_cache):
    """A fast rollout.generate with the same arguments and results.

    draw(logits, u, temperature, top_p, top_k) and new_cache(config=...) come from rollout.py.
    """
    B, T, device = len(keys), int(limits.max()), keys.device
    starts = prompt_mask.sum(1).repeat_interleave(samples)  # (B,) slot of the first new token
    decoder = Decoder(model, B, int((starts + limits).max()))
    decoder.prefill(model, new_cache(config=model.config), prompt_ids, prompt_mask, samples)
    ids = torch.full((B, T + 1), pad_id, device=device)  # (B, T + 1) stopped rows write to T
    logprobs = torch.zeros(B, T + 1, device=device)      # (B, T + 1)
    last = prompt_mask.sum(1, keepdim=True) - 1  # (n, 1)
    # The state of a step. The first step reads the prompt's last token again. Its keys are already
    # in the cache, and it gives the logits for the first draw.
    state = {"token": prompt_ids.gather(1, last)[:, 0].repeat_interleave(samples),
             "row": torch.arange(B, device=device), "place": starts - 1, "start": starts.clone(),
             "key": keys.clone(), "limit": limits.clone(),
             "alive": torch.ones(B, dtype=torch.bool, device=device)}

    def step(R):
        token, row, place, start, key, limit, alive = (x[:R] for x in state.values())
        filled = torch.where(alive, place + 1, 1)  # (R,) a stopped row takes no time
        logits = decoder.logits(token, row, place, filled)  # (R, V)
        t = place + 1 - start  # (R,) which token of the completion is drawn
        if temperature == 0 or top_k or top_p < 1:
            new, logprob = draw(logits, uniforms(key, t), temperature, top_p, top_k)
        else:
            new, logprob = decoder.draw(logits, key, t, temperature)
        into = torch.where(alive, t, T)  # (R,)
        ids[row, into], logprobs[row, into] = new, logprob
        token.copy_(new)
        place.add_(alive)
        stopped = (new[:, None] == stops).any(1)  # (R,)
        alive.logical_and_(~stopped & (t + 1 < limit))

    # No autocast: everything is cast already, and its cached casts would be stale inside a graph.
    with torch.autocast(device.type, enabled=False):
        R, graph = B, None
        for t in range(T):
            if t % 16 == 0 and t:
                alive = int(state["alive"].sum())  # the only GPU sync of the loop
                bar.update(16 * alive)
                if alive == 0:
                    break
                fewer = rows_of_graph(alive, R)
                if fewer < R:
                    front = state["alive"].argsort(descending=True, stable=True)  # (B,)
                    for x in state.values():
                        x.copy_(x[front])
                    R = fewer
                    graph = None
            if device.type != "cuda":
                step(R)
            elif graph:
                graph.replay()
            else:
                step(R)  # not captured: compiles and warms up before the capture
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    step(R)
    lengths = torch.empty_like(limits)  # (B,) a row's place has stayed at its last token
    lengths[state["row"]] = state["place"] + 1 - state["start"]
    finished = (ids.gather(1, lengths[:, None] - 1) == stops).any(1)  # (B,)
    T = int(lengths.max())
    return ids[:, :T], lengths, finished, logprobs[:, :T]
