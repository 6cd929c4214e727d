r"""GRPO on mathematics, one card, no framework: the baseline, and the loop all methods share.

    python grpo.py                                  # CPU, a minute: a tiny model learns to think
    python grpo.py --model Qwen/Qwen3-0.6B          # one card: GSM8K, 64 rollouts a step
    python grpo.py --model FOLDER --data FILE.jsonl --steps 50

Sample G completions for each of N problems. Reward those whose final answer, in \boxed{}, is right.
Make the completions that beat their own group more likely. A method of token-level credit is one
function, `credit_fn(forward) -> weights (b, t)`, one weight a token. GRPO's is `uniform`: all ones.

What we left out, on purpose: a value network, a reward model, several optimizer steps on parts of
one batch, learning-rate decay, LoRA, more than one card.
"""
import math
from typing import NamedTuple

import torch
from tqdm import tqdm

import controls
import problems
import saliency
import show
import verify
from engine import graphs
from engine.checkpoints import find, graceful_stop, stop_at
from engine.errors import BadInput, run_cli
from engine.flags import check, flags, parse
from engine.folders import try_to_save
from engine.runs import Clock, Step, enable_checkpointing, open_run, print_settings
from engine.seeds import problems_of_step, prompt_keys
from evaluate import measure, point
from logprobs import forward_pass, to_device
from rollout import answers, rewardable, sample, stop_ids

# ------------------------------------------------------------------------------ the concept


def group_advantages(rewards, scale_by_std=False):
    """A = r - mean(r) within each group (Shao et al. 2024, 4.1). rewards (N, G) -> (N, G).

    scale_by_std also divides by the group's population std. Equal rewards give exactly 0.
    """
    advantages = rewards - rewards.mean(1, keepdim=True)  # (N, G)
    if scale_by_std:
        advantages = advantages / (rewards.std(1, keepdim=True, unbiased=False) + 1e-6)
    return advantages.masked_fill((rewards == rewards[:, :1]).all(1, keepdim=True), 0.0)


def uniform(forward):
    """GRPO: every token of a completion gets the same credit. Returns ones (b, T)."""
    return torch.ones_like(forward.logprobs)  # (b, T)


def token_scale(mask, loss, max_new_tokens):
    """The factor of each token's loss, (B, T), with one denominator for the whole step.

    token     1 / tokens of the step                long completions weigh more  (DAPO, 2.3)
    sequence  1 / (B * own length)                  completions weigh the same   (GRPO paper)
    constant  1 / (B * max_new_tokens)              lengths play no part         (Dr. GRPO)

    A row that --mask-truncated empties has no tokens left, but still counts in B.
    """
    lengths = mask.sum(1, keepdim=True)  # (B, 1)
    if loss == "token":
        return mask / lengths.sum().clamp(min=1)  # (B, T)
    if loss == "sequence":
        return mask / (len(mask) * lengths.clamp(min=1))  # (B, T)
    return mask / (len(mask) * max_new_tokens)  # (B, T)


def clipped_surrogate(ratio, A, low, high):
    """min(ratio A, clip(ratio, 1 - low, 1 + high) A), (B, T), for both signs of A."""
    return torch.min(ratio * A, ratio.clamp(1 - low, 1 + high) * A)


def k3(logprobs, reference):
    """KL(policy || reference) per token: r - 1 - log r, r = ref / policy. Unbiased, at least 0."""
    return (reference - logprobs).exp() - 1 - (reference - logprobs)


# ------------------------------------------------------------------------------ one update


def update(model, optimizer, rollouts, rewards, credit_fn, config, tokenizer, reference=None,
           token_advantages=None, whole_batch=None):
    """`config.num_iterations` optimizer steps on one batch of rollouts: (metrics, weights (B, T)).

    rewards (N, G). credit_fn(forward) -> weights (b, T) runs in the first pass only. The other
    passes keep its weights and the old log-probs. Those returned are 0 in rows of advantage 0.
    token_advantages (B, T): a method's own, which replace the group's. whole_batch(forwards,
    advantages (B,), mask (B, T)) -> credit_fn is for a method that must see all rows first. It gets
    the Forwards of a pass without gradient.
    """
    advantages = group_advantages(rewards, config.scale_by_std).flatten()  # (B,)
    if token_advantages is None:
        token_advantages = advantages[:, None].expand_as(rollouts.completion_ids)  # (B, T)
    batch = plan(model, rollouts, rewards, advantages, token_advantages, config, tokenizer)
    scale = token_scale(batch.mask, config.loss, config.max_new_tokens)  # (B, T)
    weights, old, ref = (torch.zeros_like(scale) for _ in range(3))      # (B, T) each
    rollouts.entropy = torch.zeros_like(scale)                           # (B, T)
    sums = Sums(batch)

    if whole_batch is not None and batch.micro:
        with torch.no_grad():
            forwards = (policy_forward(model, batch, rows, config, rollouts.logprobs)
                        for rows in batch.micro)
            credit_fn = whole_batch(forwards, advantages, batch.mask)

    for iteration in range(config.num_iterations if batch.micro else 0):
        for rows in tqdm(batch.micro, desc="update", leave=False, disable=None):
            forward = policy_forward(model, batch, rows, config)
            at = forward.rows, slice(forward.logprobs.shape[1])  # their place in (B, T)
            if iteration == 0:
                weights[at] = token_weights(credit_fn, forward)
                sums.add_rollouts(forward)
                if graphs.overwritten(model, forward):  # by credit_fn; only with --compile
                    forward = policy_forward(model, batch, rows, config)
                old[at] = forward.logprobs.detach()
                if reference is not None:
                    ref[at] = reference_logprobs(reference, batch, rows, config)

            # Padding has log-prob 0 on both sides, so its ratio is exp(0) and never inf * 0.
            ratio = (forward.logprobs - old[at]).exp()  # (b, t)
            A = token_advantages[at]                    # (b, t)
            surrogate = clipped_surrogate(ratio, A, config.clip_low, config.clip_high)  # (b, t)
            # Here GRAIL differs from GRPO, whose weights are all 1.
            objective = weights[at] * surrogate         # (b, t)
            if reference is not None:
                penalty = k3(forward.logprobs, ref[at])      # (b, t)
                objective = objective - config.kl * penalty  # (b, t)
                sums.kl = sums.kl + penalty.detach().sum()
            loss = -(objective * scale[at]).sum()
            graphs.backward(model, loss)  # loss.backward()

            sums.add_pass(forward, surrogate < ratio * A, loss)
            del forward, ratio, surrogate, objective, loss  # free before the next forward is built
        optimizer_step(model, optimizer, sums, old, weights, credit_fn, config)
    # With a KL term rows of advantage 0 run as well, but their weights move nothing.
    return sums.metrics(weights, config), weights * batch.has_gradient[:, None]


# ------------------------------------------------------------------------------ helpers of update


class Batch(NamedTuple):
    """What an update trains on: B rows, and the micro-batches they run in."""
    rollouts: object
    rewards: torch.Tensor           # (B,)
    advantages: torch.Tensor        # (B,)
    token_advantages: torch.Tensor  # (B, T)
    mask: torch.Tensor              # (B, T) bool, completion tokens of the rows that count
    has_gradient: torch.Tensor      # (B,) bool
    signs: list                     # B signs of the advantages: -1, 0, 1; on the CPU
    micro: list                     # lists of row numbers
    groups: int                     # N
    tokenizer: object
    texts: list                     # B strings, see rollout.answers


def plan(model, rollouts, rewards, advantages, token_advantages, config, tokenizer):
    """Decide which rows run, and in which micro-batches. Returns a Batch."""
    trained = torch.ones_like(rollouts.finished)  # (B,)
    if config.mask_truncated:
        trained = rollouts.finished
    mask = rollouts.completion_mask & trained[:, None]  # (B, T)

    # A row of advantage 0 has gradient 0: skip its forward, but keep it in the denominator. A KL
    # penalty has a gradient on every row, so then all rows run.
    has_gradient = trained & (token_advantages != 0).any(1)  # (B,)
    needed = trained if config.kl > 0 else has_gradient      # (B,)

    # Sort by sign first: a credit function that reweights one sign can skip whole micro-batches.
    # Then sort by length, because the rows of a micro-batch are padded to its longest.
    signs = advantages.sign().tolist()
    tokens = [prompt + completion for prompt, completion in rollouts.sizes]
    order = needed.nonzero()[:, 0].tolist()
    order.sort(key=lambda i: (signs[i], -tokens[i]))
    padded = [graphs.padded_length(model, n) for n in tokens]
    micro = microbatches(order, padded, config.tokens_per_microbatch)
    texts = rollouts.texts
    if tokenizer:
        texts = answers(rollouts, tokenizer)
    return Batch(rollouts, rewards.flatten(), advantages, token_advantages, mask, has_gradient,
                 signs, micro, len(rewards), tokenizer, texts)


def microbatches(rows, tokens, budget):
    """Cut `rows`, a list of row numbers, into parts with rows x longest row <= budget tokens.

    tokens: prompt and completion tokens of every row. A row over the budget runs alone.
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


def autocast(device):
    """Matrix products in bf16 on CUDA, everything in fp32 on a CPU. Weights are always fp32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def policy_forward(model, batch, rows, config, logprobs=None):
    """The policy's Forward of `rows`, a list of b row numbers; logprobs: see forward_pass."""
    device = batch.mask.device
    at = to_device(rows, device)  # (b,)
    with autocast(device):
        return forward_pass(
            model, batch.rollouts, rows, config.temperature, logprobs, tokenizer=batch.tokenizer,
            texts=[batch.texts[i] for i in rows], rewards=batch.rewards[at],
            advantages=batch.advantages[at], signs=[batch.signs[i] for i in rows])


def reference_logprobs(reference, batch, rows, config):
    """The same completions' log-probs (b, t) under the reference, at the same temperature."""
    with autocast(batch.mask.device), torch.no_grad():
        return forward_pass(reference, batch.rollouts, rows, config.temperature).logprobs


def name_of(credit_fn):
    """A credit function's name for error messages, e.g. grail.credit.<locals>.weights."""
    name = getattr(credit_fn, "__qualname__", type(credit_fn).__name__)
    return f"{credit_fn.__module__}.{name}"


def token_weights(credit_fn, forward):
    """The weights of this credit function, (b, T), detached, 0 on padding.

    Raises BadInput for a wrong shape. `optimizer_step` checks their values once per pass.
    """
    weights = credit_fn(forward)
    if weights.shape != forward.logprobs.shape:
        raise BadInput(f"the credit function {name_of(credit_fn)} gave weights of shape "
                       f"{tuple(weights.shape)}; it must give one for each token, "
                       f"{tuple(forward.logprobs.shape)}.")
    # A weight is a constant in the loss. With its own gradient the objective would change.
    return weights.detach().masked_fill(~forward.completion_mask, 0)  # (b, T)


def optimizer_step(model, optimizer, sums, old, weights, credit_fn, config):
    """Clip the gradient and step. If a number is not finite, raise and change no parameter."""
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    norm = torch.nn.utils.get_total_norm(list(gradients.values()))
    sums.grad_norm = sums.grad_norm + norm
    refuse_bad_numbers(norm, gradients, sums, old, weights, credit_fn, config)
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), config.grad_clip, norm)
    optimizer.step()
    graphs.zero_grad(model, optimizer)


def refuse_bad_numbers(norm, gradients, sums, old, weights, credit_fn, config):
    """Raise FloatingPointError for weights below 0 and for anything not finite, with its name."""
    # Read all at once: each read is a GPU sync.
    least, most = weights.aminmax()
    loss, grad_norm, least, most = torch.stack([sums.loss, norm, least, most]).tolist()
    if not 0 <= least <= most < math.inf and old.isfinite().all():
        raise FloatingPointError(
            f"the credit function {name_of(credit_fn)} gave weights from {least:g} to {most:g}; "
            "each must be finite and at least 0")
    if not math.isfinite(loss + grad_norm):
        stop_at(loss, grad_norm, config, {"log-probabilities": old, **gradients})


class Sums:
    """The log's sums over an update. They stay on the device: each read is a GPU sync."""

    def __init__(self, batch):
        self.batch = batch
        self.method = {}  # name -> (2,): sum of Forward.metrics over rows, number of rows
        zero = torch.zeros((), device=batch.mask.device)
        self.loss = self.grad_norm = self.clipped = self.tokens = self.kl = zero
        self.entropy = self.first_tokens = self.gap = self.gap_max = zero

    def add_rollouts(self, forward):
        """Add the first pass's figures of the rollouts, and what the credit function logs."""
        t = forward.logprobs.shape[1]
        sampler = self.batch.rollouts.logprobs[forward.rows, :t]   # (b, t)
        gap = (forward.logprobs.detach() - sampler).abs()          # (b, t)
        self.gap = self.gap + gap.sum()
        self.gap_max = torch.maximum(self.gap_max, gap.max())
        self.batch.rollouts.entropy[forward.rows, :t] = forward.entropy  # (b, t)
        self.entropy = self.entropy + forward.entropy.sum()
        self.first_tokens = self.first_tokens + forward.completion_mask.sum()
        for name, values in forward.metrics.items():  # NaN: this row is not counted
            on = self.batch.has_gradient[forward.rows] & ~values.isnan()  # (b,)
            total = torch.where(on, values.float(), 0.0).sum()
            self.method[name] = self.method.get(name, 0) + torch.stack([total, on.sum().float()])

    def add_pass(self, forward, clipped, loss):
        """Add the figures of every pass. clipped (b, t): where the clip removed the gradient."""
        self.loss = self.loss + loss.detach()
        self.tokens = self.tokens + forward.completion_mask.sum()
        self.clipped = self.clipped + (forward.completion_mask & clipped).sum()

    def metrics(self, weights, config):
        """The numbers of the log, floats. `loss` and `grad_norm` (before clipping) are means over
        passes. `clipped` and `kl` are means over all tokens. The rest is the first pass's."""
        batch, passes = self.batch, config.num_iterations
        on = batch.mask & batch.has_gradient[:, None]               # (B, T)
        credited = batch.token_advantages * weights           # (B, T)
        w = weights[on] if on.any() else torch.ones(1)        # (tokens,)
        rows = max(1, int(batch.has_gradient.sum()))
        tokens = max(1.0, float(self.tokens))
        first = max(1.0, float(self.first_tokens))
        informative = batch.has_gradient.view(batch.groups, -1).any(1)  # (N,)
        return {
            "loss": float(self.loss) / passes,
            "groups": batch.groups,
            "informative": int(informative.sum()),
            "grad_norm": float(self.grad_norm) / passes,
            "clipped": float(self.clipped) / tokens,
            "kl": float(self.kl) / tokens,
            "entropy": float(self.entropy) / first,
            "gap_mean": float(self.gap) / first,
            "gap_max": float(self.gap_max),
            "weight_mean": float(w.mean()),
            "weight_min": float(w.min()),
            "weight_max": float(w.max()),
            "ess": float(saliency.effective_sample_size_ratio(credited, on).sum()) / rows,
            "top10": float(saliency.top_mass(credited, on).sum()) / rows,
            **{name: float(total) / max(1.0, float(n)) for name, (total, n) in self.method.items()},
        }


# ------------------------------------------------------------------------------ the loop


def one_prompt(tokenizer, row, config):
    """GRPO's prompt for a problem. A method may use m prompts: each gets G / m rollouts."""
    return [problems.build_prompt(tokenizer, row["problem"], config.thinking)]


def outcome_reward(rollouts, rows, config, tokenizer, model=None):
    """(rewards (N, G), a method's own token advantages (B, T) or None, metrics to log).

    A method's own reward function takes the same five arguments. Only vine.py's uses the model.
    """
    asked = [(row["answer"], row["problem"]) for row in rows for _ in range(config.group)]
    texts = rewardable(answers(rollouts, tokenizer), rollouts.finished.tolist())
    triples = [(text, *gold) for text, gold in zip(texts, asked)]
    right = verify.verify_all(triples, strict=True)
    rewards = torch.tensor(right, dtype=torch.float32, device=rollouts.lengths.device)  # (B,)
    return rewards.view(len(rows), config.group), None, {}


def train(config, credit_fn=uniform, make_prompts=one_prompt, reward_fn=outcome_reward,
          whole_batch=None):
    """Train config.model by GRPO with this credit function. Returns a summary (dict).

    A method passes in the parts that it does differently:

        credit_fn     forward -> weights (b, t)                     grail.py, oar.py
        whole_batch   all forwards -> credit_fn                     delta.py
        make_prompts  problem -> its prompts                        scrl.py
        reward_fn     rollouts -> rewards, advantages of tokens     scrl.py

    engine/runs.py describes the run's folder. Raises BadInput for a user's mistake. After a signal
    it saves the last whole step and raises SystemExit(129, 130 or 143).
    """
    check(config)
    # --credit and --reward may replace them by a control.
    credit_fn, reward_fn, whole_batch = controls.apply(config, credit_fn, reward_fn, whole_batch)
    model, tokenizer, reference, optimizer, checkpoint = load(config)
    train_set, held_out = problems.load_split(config)
    prompts = [make_prompts(tokenizer, row, config) for row in train_set]
    m = len(prompts[0])  # prompts per problem
    run = prepare(config, model, tokenizer, optimizer, train_set, held_out, prompts, checkpoint,
                  reference)
    if run.step == 0:
        run.keep(held_out)
        run.summarise(before=measure(model, tokenizer, held_out, config, "before"))

    with graceful_stop(run, config):
        while run.step < config.steps and not run.signal:
            clock = Clock(model)
            seed = config.seed * 1_000_003 + run.step
            torch.manual_seed(seed)  # only dropout uses it
            for group in optimizer.param_groups:
                group["lr"] = config.lr * min(1.0, (run.step + 1) / max(1, config.warmup))

            numbers = problems_of_step(run.step, config.prompts, len(train_set), config.seed)
            chosen = [train_set[i] for i in numbers]  # N problems
            rollouts = sample(model, tokenizer, [p for i in numbers for p in prompts[i]],
                              samples=config.group // m, max_new_tokens=config.max_new_tokens,
                              temperature=config.temperature, seed=seed,
                              keys=prompt_keys(numbers, m, len(train_set)))
            clock.sampling_ended()

            rewards, token_advantages, own = reward_fn(rollouts, chosen, config, tokenizer, model)
            clock.judging_ended()
            stats, weights = update(model, optimizer, rollouts, rewards, credit_fn, config,
                                    tokenizer, reference, token_advantages, whole_batch)

            run.step += 1
            metrics = {"step": run.step, "reward": float(rewards.mean()), **own, **stats,
                       **of_rollouts(rollouts, tokenizer), **clock.metrics(rollouts)}
            advantages = group_advantages(rewards, config.scale_by_std)  # (N, G)
            done = Step(chosen, rollouts, rewards, advantages, token_advantages, weights)
            run.log(metrics, own, done, model.config.vocab_size)
            show.of_step(run, tokenizer, done)
            run.save(model, tokenizer, optimizer)
            run.add(point(model, tokenizer, held_out, config, run))
        run.save(model, tokenizer, optimizer, last=True)
    run.end()
    summary = run.summarise(after=measure(model, tokenizer, held_out, config, "after "))
    show.list_pages(run.folder, config)
    return summary


# ------------------------------------------------------------------------------ helpers of train


def load(config):
    """(policy, tokenizer, KL reference or None, optimizer, checkpoint to resume from or None)."""
    checkpoint = find(config.resume, held=True) if config.resume else None
    model, tokenizer = problems.load_policy(checkpoint or config.model, config.device)
    reference = None
    if config.kl > 0:  # the model that the run started from, also on --resume
        reference = problems.load_policy(config.model, config.device)[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=0.0,
                                  fused=model.device.type == "cuda")
    return model, tokenizer, reference, optimizer, checkpoint


def prepare(config, model, tokenizer, optimizer, train_set, held_out, prompts, checkpoint,
            reference):
    """Check all that can be checked before the first step. Returns the Run, new or resumed."""
    longest = problems.longest_prompt(model, tokenizer, [p for several in prompts for p in several],
                                      config.max_new_tokens)
    try_to_save(model, tokenizer, config.model)
    config.compile = graphs.wanted(model, config)
    if config.compile:
        model.graphs = graphs.Graphs(model, config.tokens_per_microbatch)
    run = open_run(config, optimizer, train_set, checkpoint, reference, held_out)
    if config.checkpointing:
        enable_checkpointing(model)
    print_settings(config, model, tokenizer, prompts[0], len(train_set), longest,
                   stop_ids(model, tokenizer))
    return run


def of_rollouts(rollouts, tokenizer):
    """The log's figures of the rollouts. `repeats`: share cut off with two boxes or more."""
    graded = answers(rollouts, tokenizer)
    n, paid = len(graded), rewardable(graded, rollouts.finished.tolist())
    boxed = sum(verify.last_boxed(text) is not None for text in graded)
    repeats = sum(text != kept for text, kept in zip(graded, paid))
    return {"truncated": float((~rollouts.finished).float().mean()), "boxed": boxed / n,
            "repeats": repeats / n, "length": int(rollouts.lengths.sum()) / n}


# ------------------------------------------------------------------------------ the command line


def main(argv=None):
    train(parse(flags("grpo", "GRPO: every token of a completion gets the same credit."), argv))


if __name__ == "__main__":
    run_cli(main)
