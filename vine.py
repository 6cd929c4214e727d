r"""VinePPO's credit: how much did each line change the chance that the answer will be right?

    python vine.py                                  # CPU, minutes: the embedded model
    python vine.py --cut 8 --continuations 4        # text without lines: a value every 8 tokens
    python vine.py --model Qwen/Qwen3-0.6B --continuations 4

GRPO's advantage judges a whole completion. VinePPO (Kazemnejad et al. 2024, arXiv 2410.01679) cuts
the completion into lines. At the end of each line it samples how the policy would continue:

    V(prefix) = share of K continuations that are right, sampled from the policy like rollouts
    A_t       = V(after the line of token t) - V(before it)              the same for the whole line
    V(end)    = the verdict itself, so the lines of a completion sum to verdict - V(prompt)

V is not a learned network. For any K its mean is the true chance of success, so A_t gives an
unbiased gradient: V(before) was sampled without the line, which makes it a valid baseline. A larger
K means less noise: the variance is V (1 - V) / K. The log shows what V costs: `judging_share` of
the seconds, `value_tokens`, and `value_variance`, a mean over prefixes.

A prefix that several completions share is sampled once. A continuation gets the tokens that its
completion had left, and starts from the ids of the prefix, because the same text encoded again can
give other tokens. K = 9 and the cut at newlines are the released code's, which trains by PPO with a
KL term at temperature 0.6. We have read the abstract and that code, not the paper's body.

What we left out, on purpose: continuations as rollouts to learn from, values of earlier steps.
"""
import re

import torch

from engine.errors import BadInput, run_cli
from engine.flags import flags, parse
from engine.seeds import seed_for
from grpo import outcome_reward, train
from rollout import rewardable, sample, without_thoughts
from verify import verify_all


def line_ends(tokenizer, ids, cut="newline"):
    """Where the lines of a completion end: token counts, ascending; the last is len(ids).

    ids: a list. cut: "newline", or an int to cut after every `cut` tokens. Blank lines, and a stop
    token alone, belong to the line before.
    """
    if cut != "newline":
        return [*range(cut, len(ids), cut), len(ids)]
    # Decode one token at a time. This is safe: in UTF-8 a newline is always a byte of its own.
    text = {i: tokenizer.decode([i], skip_special_tokens=True) for i in set(ids)}
    ends = [t for t in range(1, len(ids)) if "\n" in text[ids[t - 1]] and text[ids[t]].strip("\n")]
    return [*ends, len(ids)]


def verdicts(model, tokenizer, prompts, prefixes, rows, samples, max_new_tokens, temperature=1.0,
             seed=0, batch_size=512):
    """Are K = `samples` continuations of each of P prefixes right? ((P, K) float, tokens sampled).

    prompts, prefixes: P lists of ids each. rows: their problems, P dicts. A prefix and its
    continuation together have at most max_new_tokens. A continuation's random numbers depend on
    seed, its index in P and its index in K.
    """
    starts = [prompt + prefix for prompt, prefix in zip(prompts, prefixes)]
    left = [max_new_tokens - len(prefix) for prefix in prefixes]  # P counts of tokens
    more = sample(model, tokenizer, starts, samples=samples, max_new_tokens=left,
                  temperature=temperature, seed=seed, batch_size=batch_size)
    completions = [prefixes[i // samples] + ids for i, ids in enumerate(more.sampled)]

    texts = tokenizer.batch_decode(completions, skip_special_tokens=True,
                                   clean_up_tokenization_spaces=False)
    asked_by = [prompt for prompt in prompts for _ in range(samples)]  # P * K lists of ids
    texts = without_thoughts(tokenizer, asked_by, completions, texts)
    asked = [(row["answer"], row["problem"]) for row in rows for _ in range(samples)]
    graded = rewardable(texts, more.finished.tolist())
    right = verify_all([(text, *gold) for text, gold in zip(graded, asked)], strict=True)
    return torch.tensor(right).float().view(-1, samples), int(more.lengths.sum())


def line_advantages(ends, values, verdict):
    """A (len,) of one completion: V(after) - V(before) on every token of a line.

    ends: see line_ends. values: V before each line. verdict: V after the last line.
    """
    V = torch.tensor([*values, float(verdict)])          # (lines + 1,)
    lengths = torch.tensor([0, *ends]).diff()            # (lines,)
    return V.diff().repeat_interleave(lengths)           # (len,)


def line_reward(rollouts, rows, config, tokenizer, model):
    """Rewards (N, G), advantages of the tokens (B, T), the cost of V; see grpo.outcome_reward."""
    rewards, _, _ = outcome_reward(rollouts, rows, config, tokenizer, model)  # (N, G)
    cut = config.cut if config.cut == "newline" else int(config.cut)
    G = config.group
    prompts = [ids[real].tolist() for ids, real in zip(
        rollouts.prompt_ids[::G], rollouts.prompt_mask[::G])]            # N lists of ids

    # The prefix before each line. Over all rows, each prefix of a problem is kept once.
    ends, before = [], []
    for row, ids in enumerate(rollouts.sampled):
        ends.append(line_ends(tokenizer, ids, cut))
        before.append([(row // G, tuple(ids[:end])) for end in [0, *ends[row][:-1]]])
    distinct = list(dict.fromkeys(key for keys in before for key in keys))   # P

    # Seeded by the rollouts: new numbers in each step, the same ones after --resume. A CPU is
    # faster with few rows at a time, because of its cache. A card takes as many as fit.
    right, tokens = verdicts(
        model, tokenizer, [prompts[i] for i, _ in distinct],
        [list(prefix) for _, prefix in distinct], [rows[i] for i, _ in distinct],
        config.continuations, config.max_new_tokens, config.temperature,
        seed=seed_for(config.seed, "vine", rollouts.sampled),
        batch_size=512 if rewards.device.type == "cpu" else None)        # (P, K)
    V = dict(zip(distinct, right.mean(1).tolist()))

    A = torch.zeros(rollouts.completion_ids.shape)                       # (B, T)
    for row, verdict in enumerate(rewards.flatten().tolist()):
        values = [V[key] for key in before[row]]
        A[row, :ends[row][-1]] = line_advantages(ends[row], values, verdict)
    metrics = {"lines": sum(map(len, ends)) / len(ends), "prefixes": len(V),
               "value_tokens": tokens}
    if config.continuations > 1:
        metrics["value_variance"] = float(right.var(1).mean()) / config.continuations
    return rewards, A.to(rewards.device), metrics


def main(argv=None):
    parser = flags("vine", __doc__.split("\n")[0])
    add = parser.add_argument
    add("--continuations", type=int, default=9, help="K, sampled from each prefix for its value")
    add("--cut", default="newline", help="newline, or a number of tokens between two values")
    config = parse(parser, argv)
    if config.continuations < 1:
        raise BadInput(f"--continuations {config.continuations}: must be at least 1.")
    if config.cut != "newline" and not re.fullmatch("[1-9][0-9]{0,8}", config.cut):
        raise BadInput(f"--cut {config.cut}: newline, or a number of tokens, at least 1.")
    if config.scale_by_std:
        raise BadInput("--scale-by-std: vine.py compares a line with the one before it, "
                       "not a completion with its group; leave it out.")
    train(config, reward_fn=line_reward)


if __name__ == "__main__":
    run_cli(main)
