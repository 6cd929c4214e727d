"""Exercise 2, twenty minutes: the log-probability of each token. Beware of being off by one.

A causal model reads ids (B, L) and returns logits (B, L, V). Position i has read ids[:, :i + 1], so
it predicts ids[:, i + 1]. Of the L tokens the first P are the prompt, the rest the completion:

    log pi(token t of the completion) = log softmax(logits that predict it / temperature)[token]

The sampler divided its logits by the temperature, so the scorer must, too.

    python -m pytest exercises -k ex02
"""
import torch  # noqa: F401  in case you need it


def completion_logprobs(logits, ids, prompt_length, temperature=1.0):
    """logits (B, L, V), ids (B, L) int64, prompt_length P >= 1. Returns (B, L - P), with gradient.

    Column t belongs to ids[:, P + t]. Do not change logits and ids.
    """
    raise NotImplementedError


if __name__ == "__main__":
    raise SystemExit("Mark it with: python -m pytest exercises -k ex02")
