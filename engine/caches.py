"""The KV cache and the state of recurrent layers, row by row. Skip on a first reading."""
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer


class Cache(DynamicCache):
    """A KV cache that keeps every key, in the values' dtype.

    DynamicCache drops keys outside the config's sliding window. But some models with a
    sliding_window in their config.json do not use it (Llama). Those that do, mask the keys outside,
    so we can keep them. The cast: under autocast a key normalised in fp32 would stay fp32.
    """

    def __init__(self, config=None):
        super().__init__(config=config)
        self.layers = [DynamicLayer() if type(layer) is DynamicSlidingWindowLayer else layer
                       for layer in self.layers]

    def update(self, key, value, *args, **options):
        return super().update(key.to(value.dtype), value, *args, **options)


def is_recurrent(layer):
    """Does this layer of a cache hold a state that every token changes (Qwen3.5, LFM2, Mamba)?"""
    return hasattr(layer, "recurrent_states")


def has_recurrent_layers(config):
    """Are there recurrent layers? Then padding before a token changes its output, mask or not."""
    return any(map(is_recurrent, Cache(config=config).layers))


def repeat_rows(cache, rows, repeats, device):
    """Each of the cache's `rows` rows `repeats` times, side by side."""
    indices = torch.arange(rows, device=device).repeat_interleave(repeats)  # (rows * repeats,)
    for layer in cache.layers:
        if is_recurrent(layer):  # only reorder_cache also moves the recurrent state
            layer.reorder_cache(indices)
        else:
            layer.batch_repeat_interleave(repeats)


def select_rows(cache, indices):
    """Keep these rows of the cache, indices (R,)."""
    for layer in cache.layers:
        if is_recurrent(layer):
            layer.reorder_cache(indices)
        else:
            layer.batch_select_indices(indices)
