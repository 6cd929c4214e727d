r"""A micro-batch's forward and backward as CUDA graphs: three launches in place of thousands.

Skip this on a first reading.

    python grail.py --model Qwen/Qwen3-0.6B                  # used by default on a card
    python grail.py --model Qwen/Qwen3-0.6B --no-compile     # as plain PyTorch

A kernel of a small model runs for some microseconds. Python needs longer to launch it, so the card
waits. A CUDA graph records the launches with their addresses and replays them without Python.
torch.compile first fuses the operations between the matrix products. Then each shape is recorded
once, as three graphs:

    forward     embeddings -> what the LM head reads
    saliency    gradient of that -> gradient of the embeddings; weights get none
    backward    the same, and it adds to every weight's .grad

The LM head stays outside, because its shape depends on the completions. Its softmax and the
softmax's gradient are one fused kernel each. Three rules:

  * Rows are padded to a multiple of 64 tokens, and rows are added up to the budget: ~12 shapes.
  * Recorded addresses must stay: .grad is set to zero, never freed, and inputs are copied in.
  * All recordings share one memory pool, so a forward overwrites the one before it. The sampler
    cannot use that pool. If it needs the memory, the recordings are freed, and the next update
    makes them again (rollout.sample).

What we left out: other architectures than decode.py's, sliding windows, gradient checkpointing (all
refused); dropout, because the loop trains in eval mode.
"""
from types import SimpleNamespace

import torch
from torch.nn.functional import linear, pad

from engine import decode
from engine.errors import BadInput

WIDTH = 64  # tokens
# Compiling takes about half a minute. With fewer steps, or fewer parameters, a run does not save
# as much time.
FEW_STEPS, SMALL = 30, 50_000_000

# ------------------------------------------------------------------------------ whether to


def possible(model):
    """Can this model be recorded?"""
    return (decode.supports(model) and model.get_output_embeddings().bias is None
            and model.config._attn_implementation != "eager")  # causal only if given a mask


def wanted(model, config):
    """Does this run compile and record its layers? --compile decides. Without that flag, it does on
    a card if this saves time. A printed line says what is done and why."""
    if config.compile is not None or model.device.type != "cuda":
        return bool(config.compile)
    reasons = {
        "it is made for Llama, Qwen2 and Qwen3": not possible(model),
        "not with --checkpointing": config.checkpointing,
        "not with --activation": getattr(config, "activation", "embeddings") != "embeddings",
        f"the run has fewer than {FEW_STEPS} steps": config.steps < FEW_STEPS,
        "the model is small": model.num_parameters() < SMALL,
    }
    against = [reason for reason, holds in reasons.items() if holds]
    if against:
        print(f"layers are not compiled: {against[0]} (--compile, --no-compile)")
    else:
        print("layers are compiled in the first step: half a minute, less the next time "
              "(--no-compile)")
    return not against


# ------------------------------------------------------------------------------ the layers


def through_layers(body, x):
    """body(inputs_embeds=x) for plain causal attention, (b, L, H) -> (b, L, H), without a GPU sync.
    Hugging Face's own forward syncs each time, to see whether rows are packed."""
    positions = torch.arange(x.shape[1], device=x.device)[None]  # (1, L)
    cos_sin = body.rotary_emb(x, positions)                        # cos, sin (1, L, D) each
    for layer in body.layers:
        x = layer(x, attention_mask=None, position_ids=positions, position_embeddings=cos_sin)
    return body.norm(x)  # (b, L, H)


def compile_layers(body, backend="inductor"):
    """Let each layer be compiled at its first call, for any number of tokens and of rows (but one
    row alone is compiled apart). All layers share the code. Two of the compiler's own settings
    change, for the whole process."""
    # By default torch makes a layer's floats, such as the norm's epsilon, inputs that may change.
    # Then it finds that they do not, and traces the layer a second time: seconds of the first step.
    torch._dynamo.config.specialize_float = True
    # Inductor fuses the two sums of a norm's backward from 5 * 2**20 numbers on. Its code holds for
    # one side of this bound, so the first larger micro-batch of a run would compile all again.
    torch._inductor.config.triton.mix_order_reduction = False
    for layer in body.layers:
        layer.compile(dynamic=True, backend=backend)


def version(model):
    """Counts what overwrites recorded activations; None for a model without recordings."""
    return model.graphs.version if "graphs" in vars(model) else None


def overwritten(model, forward):
    """Are this Forward's activations gone, because a recording was replayed since?"""
    return forward.version != version(model)


def padded_length(model, tokens):
    """Tokens of a row after the recordings' padding."""
    return -(-tokens // WIDTH) * WIDTH if "graphs" in vars(model) else tokens


def backward(model, loss):
    """loss.backward(), by the recordings if the model has them."""
    if "graphs" in vars(model):
        model.graphs.backward(loss)
    else:
        loss.backward()


def zero_grad(model, optimizer):
    """Free the gradients, 4 bytes per parameter, for the next sampling. Recordings keep them."""
    optimizer.zero_grad(set_to_none="graphs" not in vars(model))


class Replay(torch.autograd.Function):
    """x (rows, length, H) -> hidden (rows, length, H). Replays recordings forward and backward."""

    @staticmethod
    def forward(ctx, x, graphs, recorded):
        graphs.version += 1
        ctx.graphs, ctx.recorded, ctx.version = graphs, recorded, graphs.version
        recorded.x.copy_(x)
        recorded.forward.replay()
        return recorded.hidden.clone()  # (rows, length, H)

    @staticmethod
    def backward(ctx, gradient):
        graphs, recorded = ctx.graphs, ctx.recorded
        if ctx.version != graphs.version:
            raise RuntimeError("these activations are gone: a later forward, backward or "
                               "sample() took them")
        recorded.gradient.copy_(gradient)
        if graphs.accumulate:
            recorded.backward.replay()
            graphs.version += 1  # the last backward frees the activations
        else:
            recorded.saliency.replay()
        return recorded.dx.clone(), None, None  # (rows, length, H)


class Graphs:
    """The layers of `model`, for micro-batches of about `tokens` tokens: embeddings -> hidden.

    A backward through it stops at the embeddings, unless `backward(loss)` starts it. Raises
    BadInput for models that cannot be recorded.
    """

    def __init__(self, model, tokens):
        self.lm_head = model.get_output_embeddings()
        if not possible(model):
            raise BadInput("--compile: made for Llama, Qwen2 and Qwen3 on a CUDA card with Triton; "
                           "leave it out for this model.")
        # The saliency's backward comes before the loss's, and must not free the saved tensors.
        torch._functorch.config.donated_buffer = False
        self.body, self.tokens, self.buffers = model.base_model, tokens, []
        self.weights = [*self.body.layers.parameters(), *self.body.norm.parameters()]
        self.pool, self.recorded, self.warmed_up = torch.cuda.graph_pool_handle(), {}, set()
        self.version, self.accumulate, self.gradients = 0, False, []
        self.side = torch.cuda.Stream()  # one for all: libraries keep a workspace for each
        compile_layers(self.body)

    def __call__(self, embeddings):
        """embeddings (b, L, H), with graph -> what the LM head reads, (b, L, H)."""
        b, L, _ = embeddings.shape
        length = -(-L // WIDTH) * WIDTH
        shape = max(b, self.tokens // length), length
        if shape not in self.recorded:
            with torch.enable_grad():
                self.recorded[shape] = self.record(*shape, embeddings.detach())
        x = pad(embeddings, (0, 0, 0, length - L, 0, shape[0] - b))  # (rows, length, H)
        return Replay.apply(x, self, self.recorded[shape])[:b, :L]   # (b, L, H)

    def head(self, h, y, temperature):
        """log pi(y), with graph, and entropy, (M,) each, from the head's input h (M, H)."""
        return Head.apply(h, self.lm_head.weight, y, temperature)

    def held(self):
        """Bytes that the recordings keep, which the allocator counts as reserved, not allocated."""
        return sum(segment["total_size"] for segment in torch.cuda.memory_snapshot()
                   if tuple(segment["segment_pool_id"]) == tuple(self.pool))

    def release(self):
        """Free the recordings' memory. The next forward of a shape records it again. The weights'
        .grad stay as they are, because they may hold a gradient."""
        self.recorded, self.gradients, self.version = {}, [], self.version + 1
        self.pool = torch.cuda.graph_pool_handle()  # an abandoned pool cannot be used again
        torch.cuda.empty_cache()

    def backward(self, loss):
        """loss.backward() that also fills the weights' .grad."""
        if any(w.grad is not g for w, g in zip(self.weights, self.gradients)):
            raise RuntimeError("recordings hold on to .grad: zero_grad(set_to_none=False)")
        self.accumulate = True
        loss.backward()
        self.accumulate = False

    def record(self, rows, length, like):
        """Three graphs of this shape, and the tensors they read and write."""
        n, H = rows * length, like.shape[2]
        if not self.buffers or len(self.buffers[0]) < n:  # four, not one: each counts its versions
            self.buffers = [like.new_zeros(max(n, self.tokens), H) for _ in range(4)]  # (tokens, H)
        x, hidden, gradient, dx = (  # (rows, length, H) each
            part[:n].view(rows, length, H) for part in self.buffers)
        leaf = x.detach().requires_grad_()  # (rows, length, H)
        for weight in self.weights:
            weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
        self.gradients = self.gradients or [weight.grad for weight in self.weights]

        def forward():
            # A cached cast from outside the recording would be replayed with its old values.
            with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
                return through_layers(self.body, leaf)  # (rows, length, H)

        def warm_up():
            out = forward()                  # (rows, length, H)
            nothing = torch.zeros_like(out)  # gradients of 0: .grad stays as it is
            torch.autograd.grad(out, leaf, nothing, retain_graph=True)
            torch.autograd.backward(out, nothing, inputs=[leaf, *self.weights])

        if (rows, length) not in self.warmed_up:
            self.side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.side):
                for _ in range(2):  # compile, and let libraries allocate their memory
                    warm_up()
            torch.cuda.current_stream().wait_stream(self.side)
            self.warmed_up.add((rows, length))
        leaf.grad = None
        made = SimpleNamespace(x=x, hidden=hidden, gradient=gradient, dx=dx, **{
            name: torch.cuda.CUDAGraph() for name in ("forward", "saliency", "backward")})
        with torch.cuda.graph(made.forward, pool=self.pool):
            out = forward()
            hidden.copy_(out.detach())
        with torch.cuda.graph(made.saliency, pool=self.pool):
            dx.copy_(torch.autograd.grad(out, leaf, gradient.to(out.dtype), retain_graph=True)[0])
        with torch.cuda.graph(made.backward, pool=self.pool):
            torch.autograd.backward(out, gradient.to(out.dtype), inputs=[leaf, *self.weights])
            dx.copy_(leaf.grad)
        return made


# ------------------------------------------------------------------------------ the LM head


@decode.compiled
def read(logits, y, temperature):
    """log pi(y), entropy and log of the softmax's sum, (M,) each, of logits (M, V) in bf16."""
    logits = logits.float() / temperature          # (M, V)
    top = logits.amax(-1, keepdim=True)            # (M, 1)
    e = (logits - top).exp()                       # (M, V)
    total = e.sum(-1)                              # (M,)
    normaliser = top[:, 0] + total.log()           # (M,)
    entropy = normaliser - (e * logits).sum(-1) / total  # (M,)
    return logits.gather(1, y[:, None])[:, 0] - normaliser, entropy, normaliser


@decode.compiled
def slope(logits, y, normaliser, g, temperature):
    """Gradient by the logits of sum g log pi(y): g (onehot(y) - pi) / temperature, (M, V) bf16."""
    pi = (logits.float() / temperature - normaliser[:, None]).exp()         # (M, V)
    onehot = y[:, None] == torch.arange(logits.shape[1], device=y.device)   # (M, V)
    return ((g / temperature)[:, None] * (onehot.float() - pi)).bfloat16()  # (M, V)


class Head(torch.autograd.Function):
    """h (M, H), weight (V, H), y (M,) -> log pi(y), entropy, (M,) each, `chunk` tokens at a time.

    It keeps the softmax's normaliser of each token, but no logits, because the backward runs the
    head again. The weight's gradient is summed in fp32, within a chunk and over the chunks.
    """
    chunk = 1024

    @staticmethod
    def forward(ctx, h, weight, y, temperature):
        h, low = h.bfloat16(), weight.bfloat16()  # (M, H), (V, H)
        with torch.autocast("cuda", enabled=False):
            parts = [read(linear(some, low), some_y, temperature)
                     for some, some_y in zip(h.split(Head.chunk), y.split(Head.chunk))]
        logprobs, entropy, normaliser = (torch.cat(part) for part in zip(*parts))  # (M,) each
        ctx.save_for_backward(h, weight, y, normaliser)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx, g, _):
        h, weight, y, normaliser = ctx.saved_tensors
        low, dh, dweight = weight.bfloat16(), [], torch.zeros_like(weight)  # (V, H) twice
        for some in zip(*(x.split(Head.chunk) for x in (h, y, normaliser, g))):
            d = slope(linear(some[0], low), *some[1:], ctx.temperature)  # (chunk, V)
            dh.append(d @ low)                                           # (chunk, H)
            torch.addmm(dweight, d.T, some[0], out_dtype=torch.float32, out=dweight)  # (V, H)
        return torch.cat(dh).float(), dweight, None, None
