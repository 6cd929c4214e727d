"""Exercise 9, one hour: a bug hunt. `score` below runs, but padding makes it wrong in four ways.

It scores several completions at once under a model. Prompts are padded on the left, completions on
the right, with the tokenizer's padding id. In many tokenizers that is also the id that ends a turn.
So it is the last token of most completions, and it also occurs inside prompts of several turns.

The model takes the inputs of a transformers model: attention_mask (B, L), 1 on visible tokens, and
position_ids (B, L), the index of each token in its text, from 0. Without them it uses 0, 1, 2, ...

Find the four bugs and repair them. The marks compare with each row scored alone, without padding.
Read a failing test's name before its numbers.

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


if __name__ == "__main__":
    raise SystemExit("Mark it with: python -m pytest exercises -k ex09")
