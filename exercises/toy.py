"""The models and data of the marks, and all that they take from the project.

Exercises 6 and 9 have models small enough to differentiate by hand. Exercise 10 has six completions
of the embedded model. Only these need the project's loop and transformers.
"""
from functools import lru_cache
from types import SimpleNamespace

import torch
from torch.nn.functional import embedding  # refuses a place below 0, as transformers does

from verify import last_boxed  # noqa: F401  exercise 5 needs it

TEMPERATURE = 0.7


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
        counts = torch.arange(1, e.shape[1] + 1, dtype=e.dtype)[:, None]              # (L, 1)
        return torch.tanh((e + 0.5 * e.cumsum(1) / counts) @ self.mix.to(e.dtype))  # (b, L, H)


def example(prompts, lengths, seed=4):
    """(Toy, ids (b, L), forward): rows of unequal prompt and completion, padded on the right.

    prompts, lengths: the tokens of each row's prompt and completion.
    """
    model, b, T = Toy(), len(prompts), max(lengths)
    L = max(p + n for p, n in zip(prompts, lengths))
    ids = torch.randint(7, (b, L), generator=torch.Generator().manual_seed(seed))     # (b, L)
    mask = torch.arange(T) < torch.tensor(lengths)[:, None]                           # (b, T)
    place = (torch.tensor(prompts)[:, None] + torch.arange(T)).clamp(max=L - 1)       # (b, T)
    e = model.table[ids]                                                              # (b, L, H)
    h = model.hidden(e)                                                               # (b, L, H)
    hidden = h.gather(1, (place - 1)[:, :, None].expand(-1, -1, h.shape[2]))          # (b, T, H)
    completion_ids = ids.gather(1, place)                                             # (b, T)
    log_p = (model.head(hidden) / TEMPERATURE).log_softmax(-1)                        # (b, T, V)
    logprobs = log_p.gather(2, completion_ids[:, :, None])[:, :, 0] * mask            # (b, T)
    forward = SimpleNamespace(
        ids=ids, embeddings=e, position=place, hidden=hidden, head=model.head, logprobs=logprobs,
        temperature=TEMPERATURE, completion_ids=completion_ids, completion_mask=mask)
    return model, ids, forward


class Reader(torch.nn.Module):
    """One layer of attention that learns a vector for each position, as GPT-2 does: places matter.

    Called as a model of transformers is: without attention_mask every token is seen by those after
    it, without position_ids the places count from the left end.
    """

    def __init__(self, V=11, H=16, places=32):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.tokens, self.places, self.qkv, self.head = (
            torch.nn.Parameter(torch.randn(*shape, generator=generator))
            for shape in ((V, H), (places, H), (3, H, H), (H, V)))

    @torch.no_grad()
    def forward(self, ids, attention_mask=None, position_ids=None):
        b, L = ids.shape
        seen = torch.ones(b, L) if attention_mask is None else attention_mask   # (b, L)
        places = torch.arange(L).expand(b, L) if position_ids is None else position_ids  # (b, L)
        x = self.tokens[ids] + embedding(places, self.places)                   # (b, L, H)
        q, k, v = (x @ w for w in self.qkv)                                     # (b, L, H) each
        past = torch.ones(L, L).tril().bool() & seen[:, None].bool()            # (b, L, L)
        score = (q @ k.mT / 16).masked_fill(~past, -1e9)                        # (b, L, L)
        return SimpleNamespace(logits=(x + score.softmax(-1) @ v) @ self.head / 4)  # (b, L, V)


@lru_cache(1)
def rollouts():
    """Two problems, three completions each, of the embedded model."""
    import problems
    import rollout
    model, tokenizer = problems.load_policy("tiny")
    prompts = [problems.build_prompt(tokenizer, problem) for problem in
               ("Start with 7, add 5, times 3.", "Start with 2, add 9.")]
    return model, tokenizer, rollout.sample(model, tokenizer, prompts, samples=3, max_new_tokens=72)


def forward_of(rows):
    """(model, forward) of some of the six rollouts; 1 of 3 and 2 of 3 count as right."""
    from logprobs import forward_pass
    model, tokenizer, out = rollouts()
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 1.0])                     # (6,)
    advantages = torch.tensor([2, -1, -1, -2, 1, 1]) / 3                       # (6,)
    model.zero_grad(set_to_none=True)
    rows = torch.tensor(rows)                                                  # (b,)
    return model, forward_pass(
        model, out, rows, 1.0, tokenizer=tokenizer, texts=[out.texts[i] for i in rows],
        rewards=rewards[rows], advantages=advantages[rows])
