"""One new token attends to the cache, in a kernel of its own for CUDA. Skip on a first reading.

    out = attend(qkv, keys, values, ...)          # plain PyTorch
    out = attend_on_card(qkv, keys, values, ...)  # the same in one launch; engine/decode.py uses it
"""
import torch
import torch.nn.functional as F

try:
    import triton
    import triton.language as tl
except ImportError:  # no CUDA build of PyTorch: then only `attend` works
    triton = None


def attend(qkv, keys, values, rows, places, lengths, cos, sin, q_norm, k_norm, eps):
    """`append_and_attend` below in plain PyTorch: for tests of the kernel, and for a CPU.

    qkv (R, (Hq + 2 Hk) D): heads of q, k, v side by side. keys, values (rows, Hk, slots, D): this
    layer's cache, which gets k and v of row rows[i] at places[i]. lengths (R,): slots to attend to.
    cos, sin (slots, D). q_norm, k_norm (D,) or None. Returns (R, Hq D).
    """
    R, (_, Hk, slots, D) = len(qkv), keys.shape
    heads = qkv.view(R, -1, D).float()  # (R, Hq + 2 Hk, D)
    q, k, v = heads[:, :-2 * Hk], heads[:, -2 * Hk:-Hk], heads[:, -Hk:]

    def place_in_space(x, weight):
        if weight is not None:
            x = x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight  # (R, heads, D)
        turned = torch.cat([-x[..., D // 2:], x[..., :D // 2]], -1)  # (R, heads, D)
        return x * cos[places][:, None] + turned * sin[places][:, None]

    q = place_in_space(q, q_norm).to(keys.dtype)  # (R, Hq, D)
    keys[rows, :, places] = place_in_space(k, k_norm).to(keys.dtype)
    values[rows, :, places] = v.to(keys.dtype)
    filled = torch.arange(slots, device=qkv.device) < lengths[:, None]  # (R, slots)
    # The heads that share a key are the queries: (R, Hk, Hq / Hk, D).
    a = F.scaled_dot_product_attention(q.view(R, Hk, -1, D), keys[rows], values[rows],
                                       attn_mask=filled[:, None, None])
    return a.reshape(R, -1).to(qkv.dtype)


if triton is not None:
    @triton.jit
    def append_and_attend(qkv, keys, values, out, rows, places, lengths, cos, sin, q_norm, k_norm,
                          eps, scale, slots, HQ: tl.constexpr, HK: tl.constexpr, D: tl.constexpr,
                          HALF: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
                          NORM: tl.constexpr):
        """One program per row and key head: norm, rotate, append to the cache, attend to it.

        The Hq / Hk query heads of a key head are the rows of a small matrix. It is padded to 16
        rows, the minimum of a tensor core. RoPE pairs two halves, so keys are loaded in halves.
        """
        i, head = tl.program_id(0), tl.program_id(1)
        row, place, length = tl.load(rows + i), tl.load(places + i), tl.load(lengths + i)
        half, whole, g = tl.arange(0, HALF), tl.arange(0, D), tl.arange(0, 16)
        mine = (g < GROUP)[:, None]
        qkv += i * (HQ + 2 * HK) * D
        q_at = qkv + (head * GROUP + g)[:, None] * D + half[None, :]
        q1 = tl.load(q_at, mask=mine, other=0.0).to(tl.float32)  # (16, HALF)
        q2 = tl.load(q_at + HALF, mask=mine, other=0.0).to(tl.float32)
        k_at = qkv + (HQ + head) * D + half
        k1, k2 = tl.load(k_at).to(tl.float32), tl.load(k_at + HALF).to(tl.float32)  # (HALF,)
        v = tl.load(qkv + (HQ + HK + head) * D + whole)  # (D,)
        if NORM:
            r = tl.rsqrt((tl.sum(q1 * q1, 1) + tl.sum(q2 * q2, 1)) / D + eps)[:, None]
            q1 *= r * tl.load(q_norm + half)[None, :]
            q2 *= r * tl.load(q_norm + HALF + half)[None, :]
            r = tl.rsqrt((tl.sum(k1 * k1, 0) + tl.sum(k2 * k2, 0)) / D + eps)
            k1 *= r * tl.load(k_norm + half)
            k2 *= r * tl.load(k_norm + HALF + half)
        cos += place * D + half
        sin += place * D + half
        c1, c2, s1, s2 = tl.load(cos), tl.load(cos + HALF), tl.load(sin), tl.load(sin + HALF)
        kind = keys.dtype.element_ty
        qa = (q1 * c1[None, :] - q2 * s1[None, :]).to(kind)  # (16, HALF)
        qb = (q2 * c2[None, :] + q1 * s2[None, :]).to(kind)
        ka, kb = (k1 * c1 - k2 * s1).to(kind), (k2 * c2 + k1 * s2).to(kind)  # (HALF,)
        keys += (row * HK + head) * slots * D
        values += (row * HK + head) * slots * D
        tl.store(keys + place * D + half, ka)
        tl.store(keys + place * D + HALF + half, kb)
        tl.store(values + place * D + whole, v)
        # A running softmax that starts from the new token, still in registers.
        top = (tl.sum(qa.to(tl.float32) * ka.to(tl.float32)[None, :], 1)
               + tl.sum(qb.to(tl.float32) * kb.to(tl.float32)[None, :], 1)) * scale  # (16,)
        total = tl.full((16,), 1.0, tl.float32)
        a = tl.zeros((16, D), tl.float32) + v.to(tl.float32)[None, :]  # (16, D)
        for first in range(0, length - 1, BLOCK):
            s = first + tl.arange(0, BLOCK)
            filled = s < length - 1
            at = keys + s[None, :] * D + half[:, None]
            K1 = tl.load(at, mask=filled[None, :], other=0.0)  # (HALF, BLOCK)
            K2 = tl.load(at + HALF, mask=filled[None, :], other=0.0)
            score = tl.dot(qb, K2, tl.dot(qa, K1)) * scale  # (16, BLOCK)
            score = tl.where(filled[None, :], score, -float("inf"))
            new_top = tl.maximum(top, tl.max(score, 1))
            shrink, p = tl.exp(top - new_top), tl.exp(score - new_top[:, None])
            total = total * shrink + tl.sum(p, 1)
            V = tl.load(values + s[:, None] * D + whole[None, :], mask=filled[:, None], other=0.0)
            a = tl.dot(p.to(kind), V, a * shrink[:, None])
            top = new_top
        to = out + i * HQ * D + (head * GROUP + g)[:, None] * D + whole[None, :]
        tl.store(to, (a / total[:, None]).to(kind), mask=mine)


def attend_on_card(qkv, keys, values, rows, places, lengths, cos, sin, q_norm, k_norm, eps):
    """`attend` by the kernel."""
    R, (_, HK, slots, D) = len(qkv), keys.shape
    HQ = qkv.shape[1] // D - 2 * HK
    out = torch.empty(R, HQ * D, dtype=qkv.dtype, device=qkv.device)
    # Many small programs hide each other's memory latency. Few programs need large blocks instead.
    block, warps = (max(16, 4096 // D), max(1, D // 128)) if R * HK >= 256 else (64, 4)
    append_and_attend[R, HK](
        qkv, keys, values, out, rows, places, lengths, cos, sin, q_norm, k_norm, eps, D ** -.5,
        slots, HQ=HQ, HK=HK, D=D, HALF=D // 2, GROUP=HQ // HK, BLOCK=block,
        NORM=q_norm is not None, num_warps=warps, num_stages=3)
    return out
