"""The loop done again, slowly: one completion at a time, by the model's own logits.

Nothing of grpo.py or logprobs.py is used here but the objects that go in and out. What these
helpers know of the loop's arguments stands in one place: `settings`, `run_update` and `credit_of`.
"""
import copy
import math
from types import SimpleNamespace

import torch
import transformers
from test_rollout import Numbers

import grpo
import rollout

# ------------------------------------------------------------------ what goes in


def settings(**changes):
    """The configuration of one update."""
    return SimpleNamespace(**{
        "loss": "token", "mask_truncated": False, "kl": 0.0, "temperature": 1.0,
        "scale_by_std": False, "tokens_per_microbatch": 8192, "num_iterations": 1, "clip_low": 0.1,
        "clip_high": 0.2, "grad_clip": 1e9, "max_new_tokens": 16, "compile": False, "lr": 0.0,
        "warmup": 0, **changes})


def policy(tied=True, vocab=32, stop=1, scale=4.0, **more):
    """A random model of one layer, with logits wide enough that no two tokens are alike."""
    torch.manual_seed(0)
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
        vocab_size=vocab, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, tie_word_embeddings=tied,
        max_position_embeddings=256, pad_token_id=None, eos_token_id=stop, bos_token_id=None,
        **more)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p *= scale if p.dim() > 1 else 1
    return model


def random_rollouts(groups=3, samples=6, longest=12, vocab=32, seed=0):
    """Completions that no model drew: unequal lengths, rows cut off, and padding full of real ids.

    A mask made from ids, or a position counted over padding, meets a stop token (1) or any other
    id where nothing stands. The sampler's log-probs are given later, see `sampler_logprobs`.
    """
    g = torch.Generator().manual_seed(seed)
    B, prompts = groups * samples, [1 + 3 * (i % 3) for i in range(groups)]
    prompt_ids = torch.randint(vocab, (B, max(prompts)), generator=g)
    prompt_mask = torch.zeros(prompt_ids.shape).bool()
    for i in range(B):
        group = i // samples
        prompt_ids[i] = prompt_ids[group * samples]  # a group answers one prompt
        prompt_mask[i, max(prompts) - prompts[group]:] = True
    lengths = torch.randint(1, longest + 1, (B,), generator=g)
    lengths[0], lengths[1] = longest, 1
    completion_ids = torch.randint(vocab, (B, longest), generator=g)
    finished = torch.rand(B, generator=g) < .7
    return rollout.Rollouts(prompt_ids, prompt_mask, completion_ids, lengths, finished,
                            torch.zeros(B, longest), [f"text {i}" for i in range(B)])


def random_rewards():
    """Three groups: mixed, all 0.3 (whose mean of six is not 0.3 in fp32), and graded, where some
    are the mean itself and have advantage 0."""
    return torch.tensor([[1, 0, 1, 0, 1, 0], [.3] * 6, [0, .25, .5, .5, .75, 1]])


def token_advantages(rollouts, seed=4):
    """A method's own advantages, (B, T): 0 on padding, on some tokens and in some whole rows."""
    g = torch.Generator().manual_seed(seed)
    B, T = rollouts.completion_ids.shape
    A = torch.randn(B, T, generator=g)
    A[torch.rand(B, T, generator=g) < .2] = 0
    A[torch.rand(B, generator=g) < .2] = 0
    return A * rollouts.completion_mask


def moved(model, by, seed=1):
    """A copy of the model with every parameter a little elsewhere."""
    other, g = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in other.parameters():
            p += by * p.std() * torch.randn(p.shape, generator=g)
    return other


class Credit:
    """Weights that name their row and token, depend on the policy, and are garbage off the mask.

    The value for token t of row i is table[i, t] (1.5 - p), p the token's probability when it is
    asked for: a loop that asks again in a later pass, or lets the gradient through, is seen.
    """

    def __init__(self, rollouts, seed=2):
        g = torch.Generator().manual_seed(seed)
        B, T = rollouts.completion_ids.shape
        self.rollouts, self.seen = rollouts, []
        self.table = 4 * torch.rand(B, T, generator=g)
        self.table[torch.rand(B, T, generator=g) < .2] = 0
        self.flags = (torch.rand(B, generator=g) < .5).float()  # the figure "fallback"
        self.flags[torch.rand(B, generator=g) < .3] = math.nan  # says nothing of this row

    def weight(self, i, t, logprobs):
        return self.table[i, t] * (1.5 - logprobs.exp())

    def __call__(self, forward):
        rows, t = forward.rows, forward.logprobs.shape[1]
        self.seen += rows.tolist()
        for n, i in enumerate(rows.tolist()):
            ids = self.rollouts.completion_ids[i, :int(self.rollouts.lengths[i])].tolist()
            assert forward.texts[n] == self.rollouts.texts[i] and forward.sampled[n] == ids
            assert forward.completion_ids[n][forward.completion_mask[n]].tolist() == ids
        forward.metrics["fallback"] = self.flags[rows]
        forward.metrics["row"] = rows.bool()  # figures may be true or false as well
        weights = self.weight(rows, slice(t), forward.logprobs)
        return weights.masked_fill(~forward.completion_mask, math.nan)


# ------------------------------------------------------------------ the loop's own


class Recorder(torch.optim.SGD):
    """Gradient descent in steps of this length, whatever the gradient's norm; keeps, for every
    pass, the parameters and the gradients it was given."""

    def __init__(self, parameters, distance):
        super().__init__(parameters, lr=1.0)
        self.distance, self.passes = distance, []

    def step(self):
        parameters = [p for group in self.param_groups for p in group["params"]]
        gradients = [p.grad.clone() for p in parameters]
        self.passes.append(([p.detach().clone() for p in parameters], gradients))
        with torch.no_grad():
            norm = torch.cat([g.flatten() for g in gradients]).norm()
            for p, g in zip(parameters, gradients):
                p -= self.distance * g / norm


def run_update(model, rollouts, rewards, credit, config, distance=0.0, reference=None,
               token_advantages=None, whole_batch=None, tokenizer=None):
    """One grpo.update: (parameters and gradients of every pass, the log's figures, weights)."""
    optimizer = Recorder(model.parameters(), distance)
    stats, weights = grpo.update(model, optimizer, rollouts, rewards, credit, config,
                                 tokenizer or Numbers(), reference, token_advantages, whole_batch)
    return optimizer.passes, stats, weights


# ------------------------------------------------------------------ and the naive one


def score_row(model, rollouts, i, temperature):
    """Log-probs (n,) and entropies (n,) of completion i by the model's own logits, alone and
    without padding."""
    prompt = rollouts.prompt_ids[i][rollouts.prompt_mask[i]]
    completion = rollouts.completion_ids[i, :int(rollouts.lengths[i])]
    logits = model(torch.cat([prompt, completion])[None]).logits[0]
    logits = logits[len(prompt) - 1:-1] / temperature  # position t - 1 predicts token t
    logprobs = logits.log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs[torch.arange(len(completion)), completion], entropy.detach()


def sampler_logprobs(model, rollouts, temperature, noise=.02, seed=3):
    """What a sampler that differs from the scorer by some noise would have recorded, (B, T)."""
    g, found = torch.Generator().manual_seed(seed), torch.zeros(rollouts.completion_ids.shape)
    with torch.no_grad():
        for i, n in enumerate(rollouts.lengths.tolist()):
            logprobs, _ = score_row(model, rollouts, i, temperature)
            found[i, :n] = logprobs + noise * torch.randn(n, generator=g)
    return found


def advantages_of(rewards, scale_by_std):
    """Rewards (N, G), group by group in plain Python: a list of N lists."""
    found = []
    for group in rewards.tolist():
        mean = sum(group) / len(group)
        std = math.sqrt(sum((r - mean) ** 2 for r in group) / len(group))
        alike = all(r == group[0] for r in group)
        divisor = std + 1e-6 if scale_by_std else 1.0
        found.append([0.0 if alike else (r - mean) / divisor for r in group])
    return found


def naive_update(model, starts, rollouts, rewards, credit, config, reference=None,
                 token_advantages=None):
    """What the optimizer must have been given in each pass, and what the log must say.

    starts: the parameters of every pass, as recorded, so that an error of one is not carried into
    the next. Returns, under these names, the `gradients` of every pass, the log's `figures`,
    the `weights` (B, T), which `rows` are run at all, how many tokens the clip `stopped`, by (pass,
    sign of A), and the smallest distance of a ratio to a bound, `margin`: where it is no more than
    rounding, the count of clipped tokens would say nothing.
    """
    B, T = rollouts.completion_ids.shape
    lengths, G = rollouts.lengths.tolist(), rewards.shape[1]
    A = [a for group in advantages_of(rewards, config.scale_by_std) for a in group]
    A = torch.tensor(A)[:, None].expand(B, T) if token_advantages is None else token_advantages
    on = [torch.arange(T) < n for n in lengths]
    trained = [bool(rollouts.finished[i]) or not config.mask_truncated for i in range(B)]
    graded = [i for i in range(B) if trained[i] and (A[i][on[i]] != 0).any()]
    run = [i for i in range(B) if trained[i]] if config.kl else graded

    divisor = {"token": lambda n: sum(n for n, kept in zip(lengths, trained) if kept),
               "sequence": lambda n: B * n,
               "constant": lambda n: B * config.max_new_tokens}[config.loss]
    old, ref, weights = {}, {}, torch.zeros(B, T)
    sums = dict.fromkeys(("loss", "clipped", "kl", "entropy", "gap", "tokens", "grad_norm"), 0.0)
    gaps, gradients, stopped, margin = [0.0], [], {}, 1.0
    policy = copy.deepcopy(model)
    parameters = list(policy.parameters())
    for number, values in enumerate(starts):
        with torch.no_grad():
            for p, value in zip(parameters, values):
                p.copy_(value)
        loss = torch.zeros(())
        for i in run:
            n = lengths[i]
            logprobs, entropy = score_row(policy, rollouts, i, config.temperature)
            if number == 0:
                old[i] = logprobs.detach()
                weights[i, :n] = credit.weight(i, slice(n), old[i])
                gap = (old[i] - rollouts.logprobs[i, :n]).abs()
                gaps += gap.tolist()
                sums["gap"] += float(gap.sum())
                sums["entropy"] += float(entropy.sum())
                sums["tokens"] += n
                if config.kl:
                    with torch.no_grad():
                        ref[i] = score_row(reference, rollouts, i, config.temperature)[0]
            ratio, a, w = (logprobs - old[i]).exp(), A[i, :n], weights[i, :n]
            inside = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
            for bound in (1 - config.clip_low, 1 + config.clip_high):
                margin = min(margin, float((ratio.detach() - bound).abs().min()))
            terms = torch.min(ratio * (w * a), inside * (w * a))
            less = inside * a < ratio * a  # by A alone: also where the weight is 0
            sums["clipped"] += int(less.sum())
            for sign in a[less].sign().tolist():
                stopped[number, sign] = stopped.get((number, sign), 0) + 1
            if config.kl:
                x = ref[i] - logprobs
                penalty = x.exp() - 1 - x
                sums["kl"] += float(penalty.detach().sum())
                terms = terms - config.kl * penalty
            loss = loss - terms.sum() / divisor(n)
        found = torch.autograd.grad(loss, parameters)
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in found))
        shrink = min(1.0, config.grad_clip / (norm + 1e-6))
        gradients.append([shrink * g for g in found])
        sums["loss"] += float(loss.detach())
        sums["grad_norm"] += norm

    P, tokens = max(1, len(starts)), max(1, sums["tokens"])
    flags = [float(credit.flags[i]) for i in graded if not math.isnan(credit.flags[i])]
    w = [float(weights[i, t]) for i in graded for t in range(lengths[i])] or [1.0]
    ess, top = [], []
    for i in graded:
        a = sorted((abs(float(A[i, t] * weights[i, t])) for t in range(lengths[i])), reverse=True)
        total, heaviest = sum(a), a[:math.ceil(len(a) / 10)]
        ess.append(total ** 2 / (len(a) * sum(x * x for x in a)) if total else 0.0)
        top.append(sum(heaviest) / total if total else 0.0)
    figures = {
        "loss": sums["loss"] / P, "grad_norm": sums["grad_norm"] / P, "groups": B // G,
        "informative": sum(any(i in graded for i in range(k, k + G)) for k in range(0, B, G)),
        "clipped": sums["clipped"] / (P * tokens), "kl": sums["kl"] / (P * tokens),
        "entropy": sums["entropy"] / tokens, "gap_mean": sums["gap"] / tokens,
        "gap_max": max(gaps), "weight_mean": sum(w) / len(w), "weight_min": min(w),
        "weight_max": max(w), "ess": sum(ess) / max(1, len(graded)),
        "top10": sum(top) / max(1, len(graded)), "fallback": sum(flags) / max(1, len(flags)),
        "row": sum(i > 0 for i in graded) / max(1, len(graded))}
    weights[[i for i in range(B) if i not in graded]] = 0
    return SimpleNamespace(gradients=gradients, figures=figures, weights=weights, rows=run,
                           stopped=stopped, margin=margin)


def apart(found, expected):
    """How far two lists of tensors are from each other, relative to all of the second's norm."""
    difference = sum(float((a.double() - b.double()).square().sum())
                     for a, b in zip(found, expected, strict=True))
    size = sum(float(b.double().square().sum()) for b in expected)
    return math.sqrt(difference / size)


def world(tied=True, temperature=1.0):
    """(model, reference, rollouts, rewards) for an update: nothing in it is alike by chance."""
    model = policy(tied)
    rollouts, rewards = random_rollouts(), random_rewards()
    rollouts.logprobs = sampler_logprobs(model, rollouts, temperature)
    return model, moved(model, .1), rollouts, rewards
