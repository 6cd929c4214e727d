"""Random numbers that depend on a key, never on earlier draws. Skip this on a first reading.

    uniforms(row_keys(seed, keys, samples), t)    one number per row, for token t of the completion
    generator_for(seed, "shuffle", ids)           a torch generator, the same in every process
    seed_for(seed, "vine", ids)                   a seed made from this key
    problems_of_step(...), prompt_keys(...)       the problems of a training step

So a row's text does not depend on the batch it is sampled in. A resumed run draws the same numbers
as an unbroken run, without any stored state.
"""
import hashlib
from functools import lru_cache

import torch

# ------------------------------------------------------------------------------ one number a token

# splitmix64's constants, as signed int64.
GOLDEN = -0x61C8864680B583EB
MIX1 = -0x40A7B892E31B1A47
MIX2 = -0x6B2FB644ECCEEE15


def scramble(x):
    """splitmix64's finaliser (Steele, Lea & Flood 2014) on int64 tensors; products wrap at 2^64."""
    x = (x ^ (x >> 30 & 0x3FFFFFFFF)) * MIX1  # int64 shifts keep the sign: mask it off
    x = (x ^ (x >> 27 & 0x1FFFFFFFFF)) * MIX2
    return x ^ (x >> 31 & 0x1FFFFFFFF)


def row_keys(seed, keys, samples, device="cpu"):
    """One int64 key per row, (N * samples,), hashed from seed, prompt key and sample index."""
    keys = torch.tensor(keys, dtype=torch.int64, device=device)                     # (N,)
    prompt_keys = keys.repeat_interleave(samples)                                   # (B,)
    sample = torch.arange(samples, device=device).repeat(len(keys))                 # (B,)
    base = scramble(torch.full_like(prompt_keys, seed) * GOLDEN + 1)                # (B,)
    return scramble(scramble(base + prompt_keys * GOLDEN) + (sample + 1) * GOLDEN)  # (B,)


def uniforms(keys, position):
    """One float64 in (0, 1) per row, (B,), for this position (int or (B,)) of the completion."""
    steps = (torch.zeros_like(keys) + position + 1) * GOLDEN  # (B,) wraps at 2^64
    bits = scramble(keys + steps) >> 11 & (1 << 53) - 1       # (B,)
    return (bits.double() + 0.5) / 2 ** 53                    # (B,)


# ------------------------------------------------------------------------------ a generator


def seed_for(*key):
    """A seed (int below 2^56) made only from this key, the same in every process."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return int.from_bytes(digest[:7], "big")


def generator_for(*key, device="cpu"):
    """A random generator seeded only by this key, the same in every process."""
    return torch.Generator(device).manual_seed(seed_for(*key))


def normals(key, like):
    """Standard normal numbers of this tensor's shape, drawn by key."""
    generator = generator_for(*key, device=like.device)
    return torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)


# ------------------------------------------------------------------------------ which problems


@lru_cache(4)
def epoch_order(total, seed, epoch):
    """A permutation of range(total) that is the same in every process."""
    generator = torch.Generator().manual_seed(seed * 9973 + epoch)
    return torch.randperm(total, generator=generator).tolist()


def problems_of_step(step, count, total, seed):
    """The `count` row numbers, each below `total`, that this step takes from shuffled epochs.

    It depends only on its arguments, so a resumed run needs no state of the data order.
    """
    found = []
    for i in range(step * count, (step + 1) * count):
        epoch, position = divmod(i, total)
        found.append(epoch_order(total, seed, epoch)[position])
    return found


def prompt_keys(picked, m, total):
    """Keys of the random numbers, m per problem. A problem picked twice gets different keys."""
    again = [picked[:n].count(i) for n, i in enumerate(picked)]
    return [m * (i + total * n) + j for i, n in zip(picked, again) for j in range(m)]
