"""A causal model small enough to differentiate by hand, and a Forward of three rows of it."""
import dataclasses

import torch

from logprobs import Forward

TEMPERATURE = 0.7
SPANS = [(2, 3, 4, 5), None, (1, 2, 3, 4)]
PROMPTS, LENGTHS = [2, 3, 3], [6, 5, 4]  # tokens of each row


class Toy(torch.nn.Module):
    """h_t = tanh((e_t + half the mean of e_0..e_t) W), logits = head(h): token t sees 0..t."""

    def __init__(self, V=7, H=4):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.table, self.mix = (
            torch.nn.Parameter(torch.randn(n, H, generator=generator)) for n in (V, H))
        self.head = torch.nn.Linear(H, V, bias=False)
        self.head.weight.data = torch.randn(V, H, generator=generator)

    def hidden(self, e):
        counts = torch.arange(1, e.shape[1] + 1, dtype=e.dtype)[:, None]  # (L, 1)
        return torch.tanh((e + 0.5 * e.cumsum(1) / counts) @ self.mix.to(e.dtype))  # (b, L, H)


def example():
    """(Toy, ids (3, L), Forward): rows of unequal prompt and completion, padded on the right."""
    model, T = Toy(), max(LENGTHS)
    L = max(p + n for p, n in zip(PROMPTS, LENGTHS))
    ids = torch.randint(7, (3, L), generator=torch.Generator().manual_seed(4))        # (3, L)
    mask = torch.arange(T) < torch.tensor(LENGTHS)[:, None]                           # (3, T)
    place = (torch.tensor(PROMPTS)[:, None] + torch.arange(T)).clamp(max=L - 1)       # (3, T)
    e = model.table[ids]                                                              # (3, L, H)
    h = model.hidden(e)                                                               # (3, L, H)
    hidden = h.gather(1, (place - 1)[:, :, None].expand(-1, -1, h.shape[2]))          # (3, T, H)
    completion_ids = ids.gather(1, place)                                             # (3, T)
    log_p = (model.head(hidden) / TEMPERATURE).log_softmax(-1)                        # (3, T, V)
    logprobs = log_p.gather(2, completion_ids[:, :, None])[:, :, 0] * mask            # (3, T)
    entropy = -(log_p.exp() * log_p).sum(-1).detach() * mask                          # (3, T)
    known = dict(
        ids=ids, embeddings=e, hidden_states=(e, h), position=place, hidden=hidden, head=model.head,
        temperature=TEMPERATURE, logprobs=logprobs, entropy=entropy, completion_ids=completion_ids,
        completion_mask=mask, texts=[""] * 3, rewards=torch.tensor([0.0, 1.0, 0.0]),
        advantages=torch.tensor([-0.5, 0.5, 0.0]))
    fields = dict.fromkeys(field.name for field in dataclasses.fields(Forward))
    return model, ids, Forward(**fields | known)
