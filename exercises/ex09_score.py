"""Exercise 9, one hour: a bug hunt. `score` below runs, and is wrong in four ways, all padding's.

It scores completions under a model, several at once: prompts padded on the left, completions on the
right, with whatever id the tokenizer pads with. In many tokenizers that is the id that ends a turn.
So it is also the last token of most completions, and stands inside prompts of several turns.

The model takes what a model of transformers takes: attention_mask (B, L), 1 on what may be seen,
and position_ids (B, L), the place of each token in its text, from 0; without them 0, 1, 2, ...

Find the four and repair them. The marks compare with each row scored alone, without any padding;
read a failing test's name before its numbers.

    python -m pytest exercises -k ex09
"""
import torch


def score(model, prompts, completions, pad_id):
    """prompts, completions: B lists of ids. Returns (logprobs (B, T), mask (B, T), mean (B,)):

    log pi of each completion token, 0 on padding; True on each completion token; and the mean log
    pi of each completion's tokens.
    """
    P, T = max(map(len, prompts)), max(map(len, completions))
    ids = torch.tensor([[pad_id] * (P - len(p)) + p + c + [pad_id] * (T - len(c))
                        for p, c in zip(prompts, completions)])                        # (B, P + T)
    attention_mask = (ids != pad_id).long()                                            # (B, P + T)
    logits = model(ids, attention_mask=attention_mask).logits[:, P - 1:-1]             # (B, T, V)
    completion_ids = ids[:, P:]                                                        # (B, T)
    logprobs = logits.log_softmax(-1).gather(2, completion_ids[:, :, None])[:, :, 0]   # (B, T)
    mask = completion_ids != pad_id                                                    # (B, T)
    return logprobs, mask, logprobs.mean(1)
