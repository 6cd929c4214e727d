"""The KV cache and the state of recurrent layers, row by row. Skip on a first reading."""
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer


class Cache(DynamicCache):
    """A KV cache that keeps every key, in the values' dtype.

    DynamicCache drops the keys that a window of the config has left behind. Not every model with a
    sliding_window in its config.json looks through one (Llama does not); those that do mask what is
    outside. Under autocast a key that was normalised in fp32 would stay fp32.
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
    """Padding in front of a token changes such a model's answer, whatever the mask says."""
    return any(map(is_recurrent, Cache(config=config).layers))


def repeat_rows(cache, rows, repeats, device):
    """Each of the cache's `rows` rows `repeats` times, side by side."""
    indices = torch.arange(rows, device=device).repeat_interleave(repeats)  # (rows * repeats,)
    for layer in cache.layers:
        if is_recurrent(layer):  # reorder_cache takes the state along, the other does not
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
