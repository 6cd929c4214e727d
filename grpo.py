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
import math
import time

import torch
from tqdm import tqdm

import controls
import problems
import saliency
import show
import verify
from engine.checkpoints import find, save, snapshot, stop_at, watch
from engine.errors import BadInput, run_cli
from engine.graphs import WIDTH, Graphs
from engine.memory import peak_gb
from engine.runs import (
    LOG,
    announce,
    check,
    flags,
    open_run,
    parse,
    recompute,
    record,
    report,
    warn,
    widest,
)
from engine.seeds import pick, prompt_keys
from evaluate import measure
from logprobs import Forward, forward_pass, on_card, token_logprobs  # noqa: F401
from rollout import sample, stop_ids

# ------------------------------------------------------------------------------ the concept


def group_advantages(rewards, scale_by_std=False):
    """A = r - mean(r) within each group, over its population std if asked (Shao et al. 2024, 4.1).

    rewards (N, G) -> advantages (N, G). A group of equal rewards gets exactly 0.
    """
    advantages = rewards - rewards.mean(1, keepdim=True)  # (N, G)
    if scale_by_std:
        advantages = advantages / (rewards.std(1, keepdim=True, unbiased=False) + 1e-6)
    return advantages.masked_fill((rewards == rewards[:, :1]).all(1, keepdim=True), 0.0)


def uniform(forward):
    """GRPO: every token of a completion gets the same credit. Returns ones (b, T)."""
    return torch.ones_like(forward.logprobs)  # (b, T)


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


def microbatches(rows, tokens, budget):
    """`rows`, a list of row numbers in order, cut so that rows x longest row <= budget tokens.

    tokens: of every row, prompt and completion. A row that is over the budget goes alone.
    """
    batches, longest = [], 0
    for row in rows:
        longest = max(longest, tokens[row])
        if batches and (len(batches[-1]) + 1) * longest <= budget:
            batches[-1].append(row)
        else:
            batches.append([row])
            longest = tokens[row]
    return batches


def credit_name(credit):
    """What an error calls a credit function, e.g. grail.credit.<locals>.weights."""
    return f"{credit.__module__}.{getattr(credit, '__qualname__', type(credit).__name__)}"


def token_weights(credit, forward):
    """The weights of this credit function, (b, T), outside of the graph, 0 on padding.

    Raises BadInput for another shape. Their values are checked in `update`, once a step.
    """
    weights = credit(forward)
    if weights.shape != forward.logprobs.shape:
        raise BadInput(f"the credit function {credit_name(credit)} gave weights of shape "
                       f"{tuple(weights.shape)}; it must give one for each token, "
                       f"{tuple(forward.logprobs.shape)}.")
    # A weight is a constant of the loss: its own gradient would be another objective.
    return weights.detach().masked_fill(~forward.completion_mask, 0)  # (b, T)


def update(model, optimizer, rollouts, rewards, credit, config, tokenizer, reference=None,
           token_advantages=None, batch_credit=None):
    """`config.inner` optimizer steps on one batch of rollouts; returns statistics for the log.

    Of several passes, `loss` and `grad_norm` (before clipping) are the means; `clipped` and `kl`
    are shares of all their tokens; entropy and gap are the first pass's.

    rewards (N, G). Weights and old log-probs come from the first pass and are kept for the others.
    token_advantages (B, T): a method's own, which the loss then takes instead of the group's.
    batch_credit(forwards, advantages (B,), mask (B, T)) -> credit: for a method that must see the
    whole batch first. It gets the Forwards of a pass without gradient, one at a time.
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
    counts = trained & (token_advantages != 0).any(1)  # (B,) rows that have a gradient
    needed = counts | (trained & (config.kl > 0))      # (B,)
    order = needed.nonzero()[:, 0].tolist()
    # Alike signs together, for a credit of one sign then has whole batches to skip; then lengths.
    signs, total_tokens = advantages.sign().tolist(), [sum(size) for size in rollouts.sizes]
    order.sort(key=lambda i: (signs[i], -total_tokens[i]))
    width = WIDTH if config.compile else 1  # what a recording pads rows to
    batches = microbatches(order, [-(-n // width) * width for n in total_tokens],
                           config.tokens_per_microbatch)
    old, weights, ref = (torch.zeros(B, T, device=device) for _ in range(3))  # (B, T) each
    total = {name: torch.zeros((), device=device)  # read once a step: to read is to wait
             for name in ("loss", "grad_norm", "clipped", "entropy", "tokens", "gap_sum",
                          "gap_max", "kl")}
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
    noted = {}  # name -> (2,): sum of Forward.figures over the rows that count, and their number

    def forward_of(rows, logprobs=None):
        at = on_card(rows, device)  # (b,)
        with autocast:
            return forward_pass(model, rollouts, rows, config.temperature, config.compile,
                                logprobs, tokenizer=tokenizer,
                                texts=[rollouts.texts[i] for i in rows],
                                rewards=rewards.flatten()[at], advantages=advantages[at],
                                signs=[signs[i] for i in rows])

    if batch_credit is not None and batches:
        with torch.no_grad():
            seen = (forward_of(batch, rollouts.logprobs) for batch in batches)
            credit = batch_credit(seen, advantages, mask)
    for inner in range(config.inner if batches else 0):
        for batch in tqdm(batches, desc="update", leave=False, disable=None):
            forward = forward_of(batch)
            rows, t = forward.rows, forward.logprobs.shape[1]
            if inner == 0:
                turn = config.compile and model.graphs.turn
                weights[rows, :t] = token_weights(credit, forward)
                for name, values in forward.figures.items():
                    on = counts[rows] & ~values.isnan()  # (b,) NaN: says nothing of this row
                    both = [torch.where(on, values.float(), 0.0).sum(), on.sum().float()]
                    noted[name] = noted.get(name, 0) + torch.stack(both)  # (2,)
                if config.compile and model.graphs.turn != turn:
                    forward = forward_of(batch)  # credit ran the recordings, this forward is gone
                old[rows, :t] = forward.logprobs.detach()
                if reference is not None:
                    with autocast, torch.no_grad():
                        ref[rows, :t] = forward_pass(reference, rollouts, batch, config.temperature,
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
                total["kl"] += penalty.detach().sum()
            loss = -(objective * scale[rows, :t]).sum()
            (model.graphs.backward if config.compile else torch.Tensor.backward)(loss)

            on = forward.completion_mask
            total["loss"] += loss.detach()
            total["tokens"] += on.sum()
            total["clipped"] += (on & (surrogate < ratio * A)).sum()
            if inner == 0:
                total["entropy"] += forward.entropy.sum()
                gap = (forward.logprobs.detach() - rollouts.logprobs[rows, :t]).abs()  # (b, t)
                total["gap_sum"] += gap.sum()
                total["gap_max"] = torch.maximum(total["gap_max"], gap.max())
            del forward, ratio, surrogate, objective, loss  # free before the next forward is built
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        norm = torch.nn.utils.get_total_norm(list(gradients.values()))
        total["grad_norm"] += norm
        # Read together, for to read is to wait, and before any parameter is touched.
        least, most = weights.aminmax()
        loss, grad_norm, least, most = torch.stack([total["loss"], norm, least, most]).tolist()
        if not 0 <= least <= most < math.inf and old.isfinite().all():
            raise FloatingPointError(
                f"the credit function {credit_name(credit)} gave weights from {least:g} to "
                f"{most:g}; each must be finite and at least 0")
        if not math.isfinite(loss + grad_norm):
            stop_at(loss, grad_norm, config, {"log-probabilities": old, **gradients})
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), config.grad_clip, norm)
        optimizer.step()
        # 4 bytes a parameter, back before the next sampling, unless recordings hold on to them.
        optimizer.zero_grad(set_to_none=not config.compile)
    total = {name: float(value) for name, value in total.items()}
    first = max(1.0, total["tokens"] / config.inner)
    on, credited = mask & counts[:, None], token_advantages * weights  # (B, T) each
    w = weights[on] if on.any() else torch.ones(1)                     # (tokens,)
    noted |= {"ess": (saliency.effective_sample_size_ratio(credited, on).sum(), counts.sum()),
              "top10": (saliency.top_mass(credited, on).sum(), counts.sum())}
    stats = {"loss": total["loss"] / config.inner, "groups": len(rewards),
             "grad_norm": total["grad_norm"] / config.inner, "entropy": total["entropy"] / first,
             "informative": int((token_advantages.reshape(len(rewards), -1) != 0).any(1).sum()),
             "clipped": total["clipped"] / max(1.0, total["tokens"]),
             "kl": total["kl"] / max(1.0, total["tokens"]), "gap_mean": total["gap_sum"] / first,
             "gap_max": total["gap_max"],
             "weight_mean": float(w.mean()), "weight_min": float(w.min()),
             "weight_max": float(w.max()),
             **{name: float(value) / max(1.0, float(n)) for name, (value, n) in noted.items()}}
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


def train(config, credit=uniform, ask=ask_once, judge=judge_outcome, batch_credit=None):
    """Train config.model by GRPO with this credit function; returns a summary (dict).

    The folder of the run is described in runs.py. Raises BadInput for a user's mistake, and
    SystemExit(130 or 143) when Ctrl-C or SIGTERM ended it, after saving the last whole step.
    """
    check(config)
    credit, judge, batch_credit = controls.apply(config, credit, judge, batch_credit)
    checkpoint = find(config.resume) if config.resume else None
    model, tokenizer = problems.load_policy(checkpoint or config.model, config.device)
    device = model.device
    rows, held_out = problems.load_split(config)
    reference = None
    if config.kl > 0:
        reference = problems.load_policy(config.model, config.device)[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=0.0,
                                  fused=device.type == "cuda")
    prompts = [ask(tokenizer, row, config) for row in rows]
    m = len(prompts[0])
    longest = problems.fit(model, tokenizer, [prompt for asked in prompts for prompt in asked])
    if config.compile:
        model.graphs = Graphs(model, config.tokens_per_microbatch)
    folder, saved, settings = open_run(config, optimizer, rows, checkpoint)
    if config.checkpointing:
        recompute(model)
    announce(config, model, tokenizer, prompts[0], len(rows), longest,
             stop_ids(model, tokenizer))
    if saved == 0:
        report(folder, before=measure(model, tokenizer, held_out, config, "before"))
    example, warned = None, {}
    peak_gb(model)  # forgets what loading and evaluating took
    with watch(folder, config, saved) as at:
        while at.step < config.steps and not at.signal:
            began, seed = time.time(), config.seed * 1_000_003 + at.step
            torch.manual_seed(seed)  # only a model with dropout reads it
            for group in optimizer.param_groups:
                group["lr"] = config.lr * min(1.0, (at.step + 1) / max(1, config.warmup))
            picked = pick(len(rows), at.step * config.prompts, config.prompts, config.seed)
            rollouts = sample(model, tokenizer, [p for i in picked for p in prompts[i]],
                              samples=config.group // m, max_new_tokens=config.max_new_tokens,
                              seed=seed, temperature=config.temperature,
                              keys=prompt_keys(picked, m, len(rows)))
            peak = peak_gb(model)  # of sampling alone: recordings may go and come back
            sampled, asked = time.time(), [rows[i] for i in picked]
            rewards, token_advantages, figures = judge(rollouts, asked, config, tokenizer)
            stats, weights = update(model, optimizer, rollouts, rewards, credit, config,
                                    tokenizer, reference, token_advantages, batch_credit)
            figures |= {k: v for k, v in stats.items() if k == "fallback"}  # printed with the line
            if stats["gap_mean"] > 0.05:
                raise BadInput(f"--model {config.model}: sampler and scorer differ by "
                               f"{stats['gap_mean']:.2f} nats a token; models that scale or cap "
                               "their logits are not supported.")
            at.step += 1
            seconds, tokens = time.time() - began, int(rollouts.lengths.sum())
            peak = max(peak, peak_gb(model))
            boxes = sum(verify.last_boxed(text) is not None for text in rollouts.texts)
            line = {"step": at.step, "reward": float(rewards.mean()), **figures, **stats,
                    "truncated": float((~rollouts.finished).float().mean()),
                    "boxed": boxes / len(rollouts.texts), "length": tokens / len(rollouts.texts),
                    "tokens_per_second": tokens / seconds, "seconds": seconds, "peak_gb": peak,
                    "sampling_share": (sampled - began) / seconds}
            print(LOG.format(**line), *(f" {k} {v:.2f}" for k, v in figures.items()), flush=True)
            warn(line, weights, config, model.config.vocab_size, warned)
            record(folder, line, asked[0], rollouts.texts, rewards[0])
            example = widest(rollouts, rewards, weights, asked) or example
            if config.pages_every and at.step % config.pages_every == 0:
                show.of_step(folder / "pages" / f"step_{at.step:05d}.html",
                             f"{config.method}, step {at.step}", tokenizer, rollouts, rewards,
                             weights, asked, config.method)
            if config.snapshot_every and at.step % config.snapshot_every == 0:
                snapshot(folder, model, at.step)  # first: a step that is saved is not done again
            if config.save_every and at.step % config.save_every == 0:
                save(folder, model, tokenizer, optimizer, at.step, settings)
                saved = at.step
        if saved < at.step:
            save(folder, model, tokenizer, optimizer, at.step, settings)
        report(folder, step=at.step, example=example)
    print(f"checkpoint, metrics and samples are in {folder}")
    if at.signal:
        print(f"stopped after step {at.step}; continue with --resume {folder}")
        raise SystemExit(128 + at.signal)
    return report(folder, after=measure(model, tokenizer, held_out, config, "after "))


# ------------------------------------------------------------------------------ the command line


def main(argv=None):
    train(parse(flags("grpo", "GRPO: every token of a completion gets the same credit."), argv))


if __name__ == "__main__":
    run_cli(main)
