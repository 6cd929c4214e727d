"""Sampling from the policy: batched, with a KV cache, reproducible row by row.

    import problems, rollout
    model, tokenizer = problems.load_policy("tiny")
    prompt = problems.build_prompt(tokenizer, "Start with 7, add 5, times 3.")
    print(rollout.sample(model, tokenizer, [prompt], samples=4, max_new_tokens=64).texts)

Each prompt has one prefill, and its KV cache is copied for every sample. Then all unfinished rows
get one token per step. Three promises, each with a test:

  * The sampler is the policy. At top_p = 1, top_k = 0 a token is drawn from softmax(logits / T).
    The settings of a generation_config.json (Qwen's: T 0.7, top_p 0.8, top_k 20) are not read. The
    loss scores the full softmax, so a cut-off would bias it.
  * A row depends only on its own key. The random number of position t is a hash of (seed, prompt
    key, sample, t). So neither the batch size nor other rows change a text (up to rounding), and a
    resumed run draws the same tokens as an unbroken one.
  * Lengths are counted, not inferred. The stop token is part of the completion and of its length.
    With pad == eos a mask made from token ids would erase it, and no policy would learn to stop.

What we left out, on purpose: beam search, repetition penalties, several servers, paged caches.
"""
import functools
import itertools
import operator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from tqdm import tqdm

from engine import decode
from engine.caches import Cache, has_recurrent_layers, repeat_rows, select_rows
from engine.context import longest_row, narrowest_window
from engine.errors import BadInput
from engine.memory import cache_bytes, free_bytes
from engine.seeds import row_keys, uniforms
from logprobs import lm_head


@dataclass
class Rollouts:
    """B = N * samples rows, prompt-major: row i * samples + j is sample j of prompt i."""
    prompt_ids: torch.Tensor      # (B, P) int64, left-padded
    prompt_mask: torch.Tensor     # (B, P) bool, True on real prompt tokens
    completion_ids: torch.Tensor  # (B, T) int64, right-padded; T is the longest completion
    lengths: torch.Tensor         # (B,) int64, tokens of the completion, stop token included
    finished: torch.Tensor        # (B,) bool, False if max_new_tokens cut the row
    logprobs: torch.Tensor        # (B, T) fp32, log softmax(logits / T) of the draw; 0 on padding
    texts: list                   # B strings, special tokens left out
    entropy: torch.Tensor = None  # (B, T) nats, 0 where not scored; grpo.update fills it in

    @property
    def completion_mask(self):
        """(B, T) bool, True on every sampled token, the stop token included."""
        positions = torch.arange(self.completion_ids.shape[1], device=self.lengths.device)  # (T,)
        return positions < self.lengths[:, None]  # (B, T)

    @functools.cached_property
    def sizes(self):
        """(tokens of the prompt, tokens of the completion) of each row: a list on the CPU."""
        return list(zip(self.prompt_mask.sum(1).tolist(), self.lengths.tolist()))

    @functools.cached_property
    def sampled(self):
        """The completions' ids, B lists on the CPU."""
        return [row[:n] for row, n in zip(self.completion_ids.tolist(), self.lengths.tolist())]


def stop_ids(model, tokenizer):
    """Every id that ends a completion. Base configs and tokenizers often name different ones."""
    found = []
    for source in (tokenizer, model.generation_config, model.config):
        ids = source.eos_token_id
        found += ids if isinstance(ids, (list, tuple)) else [ids]
    known = [one for one in found if one is not None]
    return sorted({one for one in known if type(one) is int}) + [
        one for one in known if type(one) is not int]  # which models.check_tokens refuses


def refuse_beyond_context(config, prompt, new):
    """Raise BadInput unless `prompt` tokens and `new` more fit in the model's context."""
    most, why = longest_row(config)
    if prompt + new > most:
        raise BadInput(f"--max-new-tokens {new}: after a prompt of {prompt:,} tokens "
                       f"they exceed {why}; at most {max(0, most - prompt):,} fit.")


def answers(rollouts, tokenizer):
    """The texts to grade, B strings: the completions without their thoughts."""
    prompts = [[i for i, real in zip(ids, mask) if real] for ids, mask in zip(
        rollouts.prompt_ids.tolist(), rollouts.prompt_mask.tolist())]
    said = rollouts.sampled if special_tags(tokenizer) else [[]] * len(prompts)
    return without_thoughts(tokenizer, prompts, said, rollouts.texts)


def special_tags(tokenizer):
    """{id: tag} of <think> and </think> if they are special tokens, which texts leave out."""
    added = getattr(tokenizer, "added_tokens_decoder", {})  # a tokenizer in Python may have none
    return {i: token.content for i, token in added.items()
            if token.special and token.content in ("<think>", "</think>")}


def without_thoughts(tokenizer, prompts, completions, texts):
    """The part of each text in which verify.py may look for an answer, B strings.

    prompts, completions: B lists of ids each. verify.py handles <think> and </think> in a text.
    This handles what it cannot see: a <think> that the prompt opened, and tags that are special
    tokens. A thought that never ends leaves "". One before the answer becomes blanks, so that
    character positions stay the same.
    """
    def characters(ids):
        return len(tokenizer.decode(ids, skip_special_tokens=True,
                                    clean_up_tokenization_spaces=False))

    special, opened, found = special_tags(tokenizer), {}, []
    for prompt, said, text in zip(map(tuple, prompts), completions, texts):
        if prompt not in opened:
            opened[prompt] = opens_a_thought(tokenizer.decode(list(prompt)))
        tags = [(n, special[i]) for n, i in enumerate(said) if i in special]
        end = max((n for n, tag in tags if tag == "</think>"), default=-1)
        if end >= 0:
            start = characters(said[:end])
            text = " " * start + text[start:]
        elif opened[prompt] and "</think>" not in text:
            text = ""
        again = [n for n, tag in tags if tag == "<think>" and n > end]
        if again:
            text = text[:characters(said[:again[0]])]
        found.append(text)
    return found


def opens_a_thought(prompt):
    """Does the chat template leave a <think> open at the end of this prompt (a text)? Text before
    the request for a box belongs to the problem and does not count."""
    added = prompt.rpartition(r"\boxed{}")[2]
    return added.rfind("<think>") > added.rfind("</think>")


def rewardable(texts, finished):
    r"""The texts that can earn a reward: "" for a text that was cut off and has two boxes or more.

    Such a text gave its answer and did not stop. With a reward the policy would not learn to stop,
    and the place of the cut would decide which box is the last one. `evaluate.py` does count that
    last box, because it only measures. finished: one bool for each text.
    """
    return ["" if not done and text.count(r"\boxed") > 1 else text
            for text, done in zip(texts, finished)]


# -------------------------------------------------------------------------- one token


def draw(logits, u, temperature=1.0, top_p=1.0, top_k=0):
    """Draw one token per row by inverting the cumulative distribution at u.

    logits (B, V), u (B,) in (0, 1). Returns ids (B,) int64 and logprobs (B,) fp32. The log-probs
    are of the full softmax at this temperature, also with top_p or top_k. temperature 0 is greedy
    and gives the log-probs of temperature 1.
    """
    logits = logits.float() / (temperature or 1.0)        # (B, V)
    logprobs = logits - logits.logsumexp(-1, keepdim=True)  # (B, V)
    if temperature == 0:
        ids = logprobs.argmax(-1)  # (B,)
    else:
        kept = logprobs
        if top_k:
            least = kept.topk(min(top_k, kept.shape[1])).values[:, -1:]  # (B, 1)
            kept = kept.masked_fill(kept < least, -torch.inf)            # (B, V)
        probabilities = kept.double().softmax(-1)  # (B, V)
        if top_p < 1:
            # Nucleus: the smallest set whose mass reaches top_p. A token stays if the mass of the
            # more likely ones is below top_p.
            ordered, order = probabilities.sort(descending=True)  # (B, V) each
            ordered[ordered.cumsum(-1) - ordered >= top_p] = 0
            probabilities = torch.zeros_like(probabilities).scatter(1, order, ordered)  # (B, V)
        # In float64: over 151,936 tokens, the rounding error of a float32 sum is larger than the
        # probability of the rare tokens.
        cumulative = probabilities.cumsum(-1)  # (B, V)
        # Take the first place that reaches u. As u > 0, its probability is not 0. The last entry is
        # 1 only up to rounding, so u is scaled by it and cannot fall off the end.
        target = u[:, None] * cumulative[:, -1:]            # (B, 1)
        ids = torch.searchsorted(cumulative, target)[:, 0]  # (B,)
        ids = ids.clamp(max=logits.shape[1] - 1)  # (B,) V if there are NaNs; sample() raises
    return ids, logprobs.gather(1, ids[:, None])[:, 0]


# -------------------------------------------------------------------------- batches of rows


@contextmanager
def sampling(model):
    """Eval mode and no graph inside. The old mode comes back at the end.

    In train mode, gradient checkpointing would switch off the KV cache, and dropout would be on.
    On CUDA fp32 weights are read as bf16. They are cast once for the whole loop, not per token.
    """
    training = model.training
    model.eval()
    on_cuda = model.device.type == "cuda"
    try:
        with torch.no_grad(), torch.autocast(model.device.type, torch.bfloat16, enabled=on_cuda):
            yield
    finally:
        model.train(training)


def pad(token_lists, pad_id, side, device="cpu"):
    """Token lists of different lengths as (ids, mask), both (n, P), padded on this side."""
    lengths = torch.tensor([len(tokens) for tokens in token_lists], device=device)  # (n,)
    P = int(lengths.max())
    mask = torch.arange(P, device=device) < lengths[:, None]  # (n, P) True on tokens
    if side == "left":
        mask = mask.flip(1)
    ids = torch.full(mask.shape, pad_id, device=device)       # (n, P)
    # One flat list: a tensor made of lists of lists takes longer.
    flat = [token for tokens in token_lists for token in tokens]
    ids[mask] = torch.tensor(flat, dtype=torch.int64, device=device)
    return ids, mask


@decode.uncompiled()
def generate(model, prompt_ids, prompt_mask, samples, keys, stops, limits, temperature, top_p,
             top_k, pad_id, bar):
    """The plain loop for one batch of n prompts, prompt_ids and prompt_mask (n, P), right-padded.

    keys (B,), stops (S,), limits (B,): the most tokens that a row may get; B = n * samples. Returns
    ids (B, T), lengths (B,), finished (B,), logprobs (B, T) as in Rollouts. `bar` counts tokens.
    """
    cache = Cache(config=model.config)
    # Pad on the RIGHT, although we generate there. On the left, a padded position sees no key at
    # all. In some PyTorch builds its softmax is NaN, which leaks into real tokens. The gap between
    # prompt and completion is masked, and positions count only real tokens. Pass the fourth
    # argument without a name: transformers 5.24 renamed past_key_values to cache.
    out = model.base_model(prompt_ids, prompt_mask, None, cache, use_cache=True)
    repeat_rows(cache, len(prompt_ids), samples, prompt_ids.device)  # one prefill for the group
    end = prompt_mask.sum(1) - 1  # (n,)
    hidden = out.last_hidden_state[torch.arange(len(end), device=end.device), end]  # (n, H)
    logits = lm_head(model)(hidden).repeat_interleave(samples, 0)  # (B, V)
    mask = prompt_mask.repeat_interleave(samples, 0)  # (B, P)
    last = mask.sum(1) + limits - 1  # (B,) the last position that a row may have
    B, T, device = len(mask), int(limits.max()), mask.device
    ids = torch.full((B, T), pad_id, device=device)             # (B, T)
    logprobs = torch.zeros(B, T, device=device)                 # (B, T)
    lengths = limits.clone()                                    # (B,)
    finished = torch.zeros(B, dtype=torch.bool, device=device)  # (B,)
    rows = torch.arange(B, device=device)                       # (R,) rows still in the batch
    alive = B
    for t in range(T):
        token, logprob = draw(logits, uniforms(keys[rows], t), temperature, top_p, top_k)  # (R,)
        ids[rows, t], logprobs[rows, t] = token, logprob
        bar.update(alive)
        stopped = torch.isin(token, stops) & (t < lengths[rows])  # (R,)
        lengths[rows[stopped]] = t + 1
        finished[rows[stopped]] = True
        speaking = t + 1 < lengths[rows]  # (R,)
        alive = int(speaking.sum())
        if alive == 0:
            break
        if alive <= 0.75 * len(rows):  # not at every stop, because copying the cache takes time
            keep = speaking.nonzero()[:, 0]  # (R',)
            select_rows(cache, keep)
            rows, token, mask = rows[keep], token[keep], mask[keep]
        mask = torch.cat([mask, mask.new_ones(len(rows), 1)], 1)  # (R, P + t + 1)
        # A row that has ended may still be in the batch. Its position stays within its limit,
        # because some kinds of RoPE change for all rows when one position leaves the context.
        position = (mask.sum(1) - 1).minimum(last[rows])  # (R,)
        out = model(token[:, None], mask, position[:, None], cache, use_cache=True,
                    logits_to_keep=1)
        logits = out.logits[:, -1]  # (R, V)
    T = int(lengths.max())
    # Erase the tokens that rows got after their end, before they left the batch.
    beyond = torch.arange(T, device=device) >= lengths[:, None]  # (B, T)
    ids, logprobs = ids[:, :T], logprobs[:, :T]
    return ids.masked_fill(beyond, pad_id), lengths, finished, logprobs.masked_fill(beyond, 0.0)


def prompts_that_fit(model, wanted, slots):
    """How many of `wanted` prompts fit in one batch on a card, at least 1. Each needs `slots` slots
    of the KV cache, which may take 0.7 of the free memory. The rest waits for the next batch.
    """
    each, room = cache_bytes(model.config) * slots, 0.7 * free_bytes(model)  # bytes
    if wanted * each > room and "graphs" in vars(model) and model.graphs.recorded:
        model.graphs.release()  # the next update makes them again
        room = 0.7 * free_bytes(model)
    return max(1, min(wanted, int(room / each)))


@functools.lru_cache
def say_once(text):
    print(text)


def sample(model, tokenizer, prompts, *, samples=1, max_new_tokens, temperature=1.0, top_p=1.0,
           top_k=0, seed=0, keys=None, batch_size=None):
    """Sample completions of N prompts (full texts, chat template applied). Returns Rollouts.

    A prompt may also be a list of token ids, to continue a completion: the same text encoded again
    can give other tokens. max_new_tokens: one number, or a list of N. On a card, recordings of
    --compile are freed if the KV cache does not fit beside them. keys: N ints that name the prompts
    for the random numbers (default 0..N-1). batch_size: rows at a time, rounded to whole prompts
    (default all). Raises ValueError for no prompt, no tokens, samples or max_new_tokens below 1, or
    a list of another length than N; BadInput for too small a context.
    """
    N = len(prompts)
    many = isinstance(max_new_tokens, (list, tuple))
    limits = [operator.index(n) for n in (max_new_tokens if many else [max_new_tokens] * N)]
    if not prompts or len(limits) != N or min(limits) < 1 or samples < 1:
        raise ValueError("sample() needs at least one prompt, one sample and one new token, and "
                         "one limit or a limit for each prompt.")
    if isinstance(prompts[0], str):
        tokens = tokenizer(list(prompts), add_special_tokens=False).input_ids
    else:
        tokens = [list(ids) for ids in prompts]
    longest, i = max((len(ids) + new, i) for i, (ids, new) in enumerate(zip(tokens, limits)))
    refuse_beyond_context(model.config, len(tokens[i]), limits[i])
    if not all(tokens):
        raise ValueError(f"prompt {tokens.index([])} has no tokens; "
                         "a base model needs a text or a BOS.")
    device, pad_id = model.device, tokenizer.pad_token_id
    stops = torch.tensor(stop_ids(model, tokenizer), device=device)                   # (S,)
    keys = row_keys(seed, list(range(N)) if keys is None else keys, samples, device)  # (B,)
    keys = keys.view(N, samples)  # (N, samples)
    order = sorted(range(N), key=lambda i: len(tokens[i]))  # similar lengths: less padding
    chunk = max(1, (batch_size or N * samples) // samples)  # prompts at a time
    loop = generate
    slots = max(map(len, tokens)) + max(limits)  # of a row's cache: all start at the same slot
    if device.type == "cuda":
        if decode.supports(model):
            loop = functools.partial(decode.generate, draw=draw, new_cache=Cache)
            slots = longest  # here each row starts after its own prompt
        else:
            say_once(f"{model.config.model_type}: no fast decode step, the simple loop samples")
        chunk = prompts_that_fit(model, chunk, slots * samples)
    batches = [order[i:i + chunk] for i in range(0, N, chunk)]
    if slots > narrowest_window(model.config) or has_recurrent_layers(model.config):
        # Here a batch must have no gaps after short prompts. A sliding window counts a gap's cache
        # slots, and a recurrent layer reads a gap like text.
        batches = [list(same) for batch in batches
                   for _, same in itertools.groupby(batch, key=lambda i: len(tokens[i]))]
    done = []    # (ids, lengths, finished, logprobs) of each batch
    places = []  # B, where its rows belong in the order of `prompts`
    with sampling(model), tqdm(total=samples * sum(limits), desc="sampling", unit="tok",
                               leave=False, disable=None) as bar:
        for batch in batches:
            ids, mask = pad([tokens[i] for i in batch], pad_id, "right", device)  # (n, P) each
            most = torch.tensor([limits[i] for i in batch], device=device)  # (n,)
            out = loop(model, ids, mask, samples, keys[batch].flatten(), stops,
                       most.repeat_interleave(samples), temperature, top_p, top_k, pad_id, bar)
            done.append(out)
            places += [i * samples + j for i in batch for j in range(samples)]
    ids, lengths, finished, logprobs = zip(*done)
    T = max(part.shape[1] for part in ids)
    back = torch.tensor(places, device=device).argsort()  # (B,) to the order of `prompts`

    def joined(parts, fill):
        """(B, T): the rows of all batches, each as wide as the longest completion."""
        return torch.cat([torch.nn.functional.pad(part, (0, T - part.shape[1]), value=fill)
                          for part in parts])[back]

    prompt_ids, prompt_mask = pad(tokens, pad_id, "left", device)                 # (N, P) each
    completion_ids = joined(ids, pad_id)                                          # (B, T)
    logprobs = joined(logprobs, 0.0)                                              # (B, T)
    lengths = torch.cat(lengths)[back]                                            # (B,)
    finished = torch.cat(finished)[back]                                          # (B,)
    if not logprobs.isfinite().all():
        raise FloatingPointError("the policy's logits are not finite; are the --model's weights?")
    spoken = [row[:n] for row, n in zip(completion_ids.tolist(), lengths.tolist())]
    texts = tokenizer.batch_decode(spoken, skip_special_tokens=True,
                                   clean_up_tokenization_spaces=False)
    return Rollouts(prompt_ids.repeat_interleave(samples, 0),
                    prompt_mask.repeat_interleave(samples, 0),
                    completion_ids, lengths, finished, logprobs, texts)
