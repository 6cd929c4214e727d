r"""GRPO on mathematics, one card, no framework: the baseline, and the loop all methods share.

    python grpo.py                                  # CPU, a minute: a tiny model learns to think
    python grpo.py --model Qwen/Qwen3-0.6B          # one card: GSM8K, 64 rollouts a step
    python grpo.py --model FOLDER --data FILE.jsonl --steps 50

Sample G completions for each of N problems, reward those whose box is right, and push up the tokens
of the completions that beat their own group. A method of token-level credit is one function,
`credit(forward) -> weights (B, T)`; GRPO's is `uniform`, grail.py's is `grail_credit`.

What we left out, on purpose: a value network, a reward model, several optimizer steps on parts of
one batch, learning-rate decay, LoRA, more than one card.
"""
import json
import math
import time
from dataclasses import dataclass

import torch
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm

import problems
import verify
from problems import BadInput
from rollout import sample, stop_ids
from runs import (LOG, append, check, flags, load_split, measure, memory_estimate, open_run, parse,
                  pick, prompt_keys, save, steps_uninterrupted, widest)

# ------------------------------------------------------------------------------ the concept


def group_advantages(rewards, scale_by_std=False):
    """A = r - mean(r) within each group, over its population std if asked (Shao et al. 2024, 4.1).

    rewards (N, G) -> advantages (N, G). A group of equal rewards gets exactly 0.
    """
    advantages = rewards - rewards.mean(1, keepdim=True)  # (N, G)
    if scale_by_std:
        advantages = advantages / (rewards.std(1, keepdim=True, unbiased=False) + 1e-6)
    return advantages.masked_fill((rewards == rewards[:, :1]).all(1, keepdim=True), 0.0)


@dataclass
class Forward:
    """The live forward of b rows of at most L tokens: what a credit function may look at."""
    embeddings: torch.Tensor       # (b, L, H) output of the embedding layer, in the graph
    hidden_states: tuple           # (b, L, H) each: embeddings, block outputs (last one normed)
    place: torch.Tensor            # (b, T) where completion token t stands in the row of L
    hidden: torch.Tensor           # (b, T, H) what the LM head reads where it predicts token t
    head: torch.nn.Module          # the LM head, H -> V
    temperature: float
    logprobs: torch.Tensor         # (b, T) of the completion tokens, 0 on padding, in the graph
    entropy: torch.Tensor          # (b, T) in nats, detached
    completion_ids: torch.Tensor   # (b, T)
    completion_mask: torch.Tensor  # (b, T) bool, stop token included
    texts: list                    # b strings
    rewards: torch.Tensor          # (b,)
    advantages: torch.Tensor       # (b,)
    tokenizer: object


def uniform(forward):
    """GRPO: every token of a completion gets the same credit. Returns ones (b, T)."""
    return torch.ones_like(forward.logprobs)  # (b, T)


def token_logprobs(hidden, head, ids, mask, temperature=1.0, chunk=512):
    """log pi(token | what came before) at this temperature, without ever holding (B, T, V).

    hidden (B, T, H) at the positions that PREDICT the tokens ids (B, T), so no shift is left to the
    caller; mask (B, T) bool. Returns logprobs (B, T) fp32 with gradient and entropy (B, T) without;
    both 0 off the mask. The head runs on `chunk` tokens at a time and again in the backward.
    """
    def head_on(h, y):
        # fp32 before the softmax: log-probs taken in bf16 are off by up to 0.004.
        logits = head(h).float() / temperature  # (chunk, V)
        normaliser = logits.logsumexp(-1)  # (chunk,)
        with torch.no_grad():
            entropy = normaliser - (logits.softmax(-1) * logits).sum(-1)  # (chunk,)
        return logits.gather(1, y[:, None])[:, 0] - normaliser, entropy

    h, y = hidden[mask], ids[mask]  # (M, H), (M,)
    parts = [checkpoint(head_on, h[i:i + chunk], y[i:i + chunk], use_reentrant=False)
             for i in range(0, max(1, len(y)), chunk)]
    zeros = torch.zeros(ids.shape, device=ids.device)  # (B, T)
    logprobs, entropy = (torch.cat(part) for part in zip(*parts))  # (M,) each
    return zeros.masked_scatter(mask, logprobs), zeros.masked_scatter(mask, entropy)


def forward_pass(model, rollouts, rows, temperature, **about):
    """Score completions `rows` (b,) with the policy: one forward, as a Forward.

    Prompt and completion are joined and the padding squeezed out to the right, L = the longest row.
    No mask is then needed, for causality hides what follows; left padding would make positions that
    see no key at all, which some PyTorch builds turn into NaN.
    """
    mask = rollouts.completion_mask[rows, :int(rollouts.lengths[rows].max())]  # (b, T)
    completion_ids = rollouts.completion_ids[rows, :mask.shape[1]]  # (b, T)
    ids = torch.cat([rollouts.prompt_ids[rows], completion_ids], 1)  # (b, P + T)
    real = torch.cat([rollouts.prompt_mask[rows], mask], 1)  # (b, P + T)
    left = real.int().argsort(dim=1, descending=True, stable=True)  # (b, P + T)
    ids = ids.gather(1, left)[:, :int(real.sum(1).max())]  # (b, L)
    prompt_lengths = rollouts.prompt_mask[rows].sum(1, keepdim=True)  # (b, 1)
    place = prompt_lengths + torch.arange(mask.shape[1], device=ids.device)  # (b, T)
    place = place.clamp(max=ids.shape[1] - 1)  # (b, T) beyond a row's end anything will do
    embeddings = model.get_input_embeddings()(ids)  # (b, L, H)
    out = model.base_model(inputs_embeds=embeddings, use_cache=False, output_hidden_states=True)
    hidden = out.last_hidden_state.gather(
        1, (place - 1)[:, :, None].expand(-1, -1, embeddings.shape[2]))  # (b, T, H)
    head = model.get_output_embeddings()
    logprobs, entropy = token_logprobs(hidden, head, completion_ids, mask, temperature)
    return Forward(embeddings, out.hidden_states, place, hidden, head, temperature, logprobs,
                   entropy, completion_ids, mask, **about)


def token_scale(mask, loss, max_new_tokens):
    """What each token's term is multiplied by, (B, T): one denominator for the whole step.

    token     1 / tokens of the step                long completions weigh more   (DAPO, 2.3)
    sequence  1 / (B * own length)                  every completion weighs alike (GRPO paper)
    constant  1 / (B * max_new_tokens)              no length enters              (Dr. GRPO)

    A row that --mask-truncated empties has no tokens left to count, but stays one of the B.
    """
    lengths = mask.sum(1, keepdim=True)  # (B, 1)
    if loss == "token":
        return mask / lengths.sum().clamp(min=1)  # (B, T)
    if loss == "sequence":
        return mask / (len(mask) * lengths.clamp(min=1))  # (B, T)
    return mask / (len(mask) * max_new_tokens)  # (B, T)


def clipped_surrogate(ratio, A, low, high):
    """min(ratio A, clip(ratio, 1 - low, 1 + high) A), (B, T): the pessimist for both signs of A."""
    return torch.min(ratio * A, ratio.clamp(1 - low, 1 + high) * A)


def k3(logprobs, reference):
    """KL(policy || reference) a token: r - 1 - log r, r = ref / policy; unbiased and never < 0."""
    return (reference - logprobs).exp() - 1 - (reference - logprobs)


# ------------------------------------------------------------------------------ one update


def update(model, optimizer, rollouts, rewards, credit, config, tokenizer, reference=None,
           token_advantages=None):
    """`config.inner` optimizer steps on one batch of rollouts; returns statistics for the log.

    rewards (N, G). Weights and old log-probs come from the first pass and are kept for the others.
    token_advantages (B, T): a method's own, which the loss then takes instead of the group's.
    """
    B, T = rollouts.completion_ids.shape
    device = rollouts.lengths.device
    advantages = group_advantages(rewards, config.scale_by_std).flatten()  # (B,)
    if token_advantages is None:
        token_advantages = advantages[:, None].expand(B, T)  # (B, T)
    trained = rollouts.finished | (not config.mask_truncated)  # (B,)
    mask = rollouts.completion_mask & trained[:, None]  # (B, T)
    scale = token_scale(mask, config.loss, config.max_new_tokens)  # (B, T)
    # A row of advantage 0 has gradient 0: skip its forward, keep it in the denominator. Not under
    # a KL penalty, which pulls on every row.
    needed = trained & ((token_advantages != 0).any(1) | (config.kl > 0))  # (B,)
    order = rollouts.lengths.argsort(descending=True)  # alike lengths together, the longest first
    rows_to_train = order[needed[order]]  # (R,)
    batches = rows_to_train.split(config.microbatch) if len(rows_to_train) else []
    old, weights, ref = (torch.zeros(B, T, device=device) for _ in range(3))  # (B, T) each
    total = dict.fromkeys(("loss", "clipped", "entropy", "tokens", "gap_sum", "gap_max", "kl"), 0.0)
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
    grad_norm = 0.0
    for inner in range(config.inner if batches else 0):
        for rows in tqdm(batches, desc="update", leave=False, disable=None):
            with autocast:
                forward = forward_pass(
                    model, rollouts, rows, config.temperature, tokenizer=tokenizer,
                    texts=[rollouts.texts[i] for i in rows.tolist()],
                    rewards=rewards.flatten()[rows], advantages=advantages[rows])
            t = forward.logprobs.shape[1]
            if inner == 0:
                old[rows, :t] = forward.logprobs.detach()
                weights[rows, :t] = credit(forward) * forward.completion_mask
                if reference is not None:
                    with autocast, torch.no_grad():
                        ref[rows, :t] = forward_pass(reference, rollouts, rows, config.temperature,
                                                     texts=[], rewards=None, advantages=None,
                                                     tokenizer=None).logprobs
            # Padding has log-prob 0 on both sides: the ratio there is exp(0), never inf * 0.
            ratio = (forward.logprobs - old[rows, :t]).exp()  # (b, t)
            A = token_advantages[rows, :t]  # (b, t)
            surrogate = clipped_surrogate(ratio, A, config.clip_low, config.clip_high)  # (b, t)
            objective = weights[rows, :t] * surrogate  # (b, t)
            if reference is not None:
                penalty = k3(forward.logprobs, ref[rows, :t])  # (b, t)
                objective = objective - config.kl * penalty
                total["kl"] += float(penalty.detach().sum())
            loss = -(objective * scale[rows, :t]).sum()
            loss.backward()

            on = forward.completion_mask
            total["loss"] += loss.item()
            total["tokens"] += int(on.sum())
            total["clipped"] += int((on & (surrogate < ratio * A)).sum())
            if inner == 0:
                total["entropy"] += float(forward.entropy.sum())
                gap = (forward.logprobs.detach() - rollouts.logprobs[rows, :t]).abs()  # (b, t)
                total["gap_sum"] += float(gap.sum())
                total["gap_max"] = max(total["gap_max"], float(gap.max()))
            del forward, ratio, surrogate, objective, loss  # free before the next forward is built
        grad_norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip))
        if not math.isfinite(total["loss"] + grad_norm):
            raise BadInput(f"--lr {config.lr}: loss {total['loss']}, gradient norm {grad_norm}; "
                           "nothing was overwritten, halve --lr or raise --warmup.")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)  # 4 bytes a parameter, back before the next sampling
    first = max(1.0, total["tokens"] / config.inner)
    on = mask & needed[:, None]  # (B, T)
    w = weights[on] if on.any() else torch.ones(1)  # (tokens,)
    stats = {"loss": total["loss"], "groups": len(rewards), "entropy": total["entropy"] / first,
             "informative": int((token_advantages.reshape(len(rewards), -1) != 0).any(1).sum()),
             "clipped": total["clipped"] / max(1.0, total["tokens"]), "grad_norm": grad_norm,
             "kl": total["kl"] / max(1.0, total["tokens"]), "gap_mean": total["gap_sum"] / first,
             "gap_max": total["gap_max"],
             "weight_mean": float(w.mean()), "weight_min": float(w.min()),
             "weight_max": float(w.max())}
    return stats, weights


# ------------------------------------------------------------------------------ the loop


def ask_once(tokenizer, row, config):
    """GRPO's prompt for a problem. A method may ask m prompts: each gets G / m of the rollouts."""
    return [problems.build_prompt(tokenizer, row["problem"], config.thinking)]


def judge_outcome(rollouts, rows, config, tokenizer):
    """(rewards (N, G), advantages a token (B, T) if they are not the group's, figures to log)."""
    golds = [row["answer"] for row in rows for _ in range(config.group)]
    right = verify.verify_all(list(zip(rollouts.texts, golds)), strict=True)
    rewards = torch.tensor(right, dtype=torch.float32, device=rollouts.lengths.device)  # (B,)
    return rewards.view(len(rows), config.group), None, {}


def train(config, credit=uniform, ask=ask_once, judge=judge_outcome):
    """Train config.model by GRPO with this credit function; returns a summary (dict).

    The folder of the run is described in runs.py. Raises BadInput for a user's mistake.
    """
    check(config)
    source = f"{config.resume}/checkpoint" if config.resume else config.model
    model, tokenizer = problems.load_policy(source, config.device)
    device = model.device
    rows, held_out = load_split(config)
    reference = None
    if config.kl > 0:
        reference = problems.load_policy(config.model, config.device)[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=0.0,
                                  fused=device.type == "cuda")
    prompts = [ask(tokenizer, row, config) for row in rows]
    m = len(prompts[0])
    folder, step = open_run(config, optimizer)
    if config.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()  # Hugging Face models checkpoint in train mode only; dropout is 0 in these
    size = sum(p.numel() for p in model.parameters()) / 1e6
    longest = len(tokenizer.encode(max((p for ps in prompts for p in ps), key=len)))
    print(f"{config.method}: {config.model} ({size:.2f} M parameters) on {device}, {config.data} "
          f"({len(rows):,} problems)")
    print("settings:", " ".join(f"{k}={v}" for k, v in sorted(vars(config).items())))
    print("stopping on:", [tokenizer.decode([i]) for i in stop_ids(model, tokenizer)])
    print("first prompt:", *map(repr, prompts[0]))
    print(memory_estimate(model, config, longest))
    before = measure(model, tokenizer, held_out, config, "before") if step == 0 else None
    example = None
    with steps_uninterrupted() as stop:
        while step < config.steps and not stop:
            began = time.time()
            for group in optimizer.param_groups:
                group["lr"] = config.lr * min(1.0, (step + 1) / max(1, config.warmup))
            picked = pick(len(rows), step * config.prompts, config.prompts, config.seed)
            rollouts = sample(model, tokenizer, [p for i in picked for p in prompts[i]],
                              samples=config.group // m, max_new_tokens=config.max_new_tokens,
                              temperature=config.temperature, seed=config.seed * 1_000_003 + step,
                              keys=prompt_keys(picked, m, len(rows)))
            sampled = time.time()
            asked = [rows[i] for i in picked]
            rewards, token_advantages, figures = judge(rollouts, asked, config, tokenizer)
            stats, weights = update(model, optimizer, rollouts, rewards, credit, config,
                                    tokenizer, reference, token_advantages)
            if stats["gap_mean"] > 0.05:
                raise BadInput(f"--model {config.model}: sampler and scorer differ by "
                               f"{stats['gap_mean']:.2f} nats a token; models that scale or cap "
                               "their logits are not supported.")
            step += 1
            seconds, tokens = time.time() - began, int(rollouts.lengths.sum())
            peak = torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else 0.0
            line = {"step": step, "reward": float(rewards.mean()), **figures, **stats,
                    "truncated": float((~rollouts.finished).float().mean()),
                    "length": tokens / len(rollouts.texts), "tokens_per_second": tokens / seconds,
                    "sampling_share": (sampled - began) / seconds, "seconds": seconds,
                    "peak_gb": peak}
            print(LOG.format(**line), *(f" {k} {v:.2f}" for k, v in figures.items()), flush=True)
            append(folder / "metrics.jsonl", [line])
            append(folder / "samples.jsonl", [  # one whole group: RL is debugged by reading samples
                {"step": step, "problem": asked[0]["problem"], "gold": asked[0]["answer"],
                 "completion": text, "reward": float(reward)}
                for text, reward in zip(rollouts.texts, rewards[0])])
            example = widest(rollouts, rewards, weights, asked) or example
            if config.save_every and step % config.save_every == 0:
                save(folder, model, tokenizer, optimizer, step)
            if config.snapshot_every and step % config.snapshot_every == 0:
                model.save_pretrained(folder / "snapshots" / f"step_{step:05d}")
    save(folder, model, tokenizer, optimizer, step)
    if stop:
        print(f"stopped by Ctrl-C after step {step}; continue with --resume {folder}")
    after = None if stop else measure(model, tokenizer, held_out, config, "after ")
    summary = {"folder": str(folder), "step": step, "before": before, "after": after,
               "example": example}
    path = folder / "summary.json"
    old = json.loads(path.read_text()) if path.exists() else {}  # a resumed run keeps its "before"
    path.write_text(json.dumps(old | {k: v for k, v in summary.items() if v is not None}, indent=1))
    print(f"checkpoint, metrics and samples are in {folder}")
    return summary


# ------------------------------------------------------------------------------ the command line


def main():
    train(parse(flags("grpo", "GRPO: every token of a completion gets the same credit.")))


if __name__ == "__main__":
    problems.run(main)
