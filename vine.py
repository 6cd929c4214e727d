r"""VinePPO's credit: how much did each line change the chance that the answer will be right?

    python vine.py                                  # CPU, minutes: the embedded model
    python vine.py --cut 8 --continuations 4        # text without lines: a value every 8 tokens
    python vine.py --model Qwen/Qwen3-0.6B --continuations 4

GRPO's advantage judges a whole completion. VinePPO (Kazemnejad et al. 2024, arXiv
2410.01679) cuts it into lines, and at the end of each it asks the policy how it would go on:

    V(prefix) = share of K continuations that are right, sampled from the policy as rollouts are
    A_t       = V(after the line of token t) - V(before it)              the same for the whole line
    V(end)    = the verdict itself, so that the lines of a completion add up to verdict - V(prompt)

V is sampled, not learned: its mean is the true chance, whatever K. A line cannot move V(before),
and V(after) is fair, so A_t gives the gradient of the reward in the mean. A larger K buys less
noise: the variance is V (1 - V) / K. The log says what V costs: `judging_share` of the seconds,
`value_tokens`, and `value_variance`, a mean over prefixes.

A prefix that several completions of a problem share is sampled once. A continuation gets the tokens
that its completion had left, and starts from the ids of the prefix, since the same text encoded
again can be other tokens. K = 9 and the cut at newlines are the released code's, which trains by
PPO with a KL term at temperature 0.6. We have read the abstract and that code, not the paper.

What we left out, on purpose: continuations as rollouts to learn from, values of earlier steps.
"""
import re

import torch

from engine.context import longest_row, rows_that_fit
from engine.errors import BadInput, run_cli
from engine.flags import flags, parse
from engine.seeds import seed_for
from grpo import outcome_reward, train
from rollout import rewardable, sample, without_thoughts
from verify import verify_all


def line_ends(tokenizer, ids, cut="newline"):
    """Where the lines of a completion end: token counts, ascending, the last of them len(ids).

    ids: a list. cut: "newline" (blank lines, and a stop token alone, belong to the line before), or
    an int, for a cut every so many tokens.
    """
    if cut != "newline":
        return [*range(cut, len(ids), cut), len(ids)]
    # A token at a time: a newline is a byte of its own in UTF-8, so no neighbour can hide it.
    text = {i: tokenizer.decode([i], skip_special_tokens=True) for i in set(ids)}
    ends = [t for t in range(1, len(ids)) if "\n" in text[ids[t - 1]] and text[ids[t]].strip("\n")]
    return [*ends, len(ids)]


def verdicts(model, tokenizer, prompts, prefixes, rows, samples, max_new_tokens, temperature=1.0,
             seed=0, batch_size=512):
    """Are K = `samples` continuations of each of P prefixes right? ((P, K) float, tokens sampled).

    prompts, prefixes: P lists of ids each; rows: their problems, P dicts. A prefix and its
    continuation have max_new_tokens together. The random numbers of a continuation depend on seed,
    its place in P and its place in K.
    """
    starts = [prompt + prefix for prompt, prefix in zip(prompts, prefixes)]
    left = [max_new_tokens - len(prefix) for prefix in prefixes]  # P counts of tokens
    context, _ = longest_row(model.config)
    found, tokens = {}, 0  # place in (P, K) -> the completion's ids, and whether they stopped
    for some in rows_that_fit([len(start) for start in starts], left, context):
        more = sample(model, tokenizer, [starts[i] for i in some], samples=samples, keys=some,
                      max_new_tokens=max(left[i] for i in some), temperature=temperature,
                      seed=seed, batch_size=batch_size)
        tokens += int(more.lengths.sum())
        # What a row says beyond its own tokens is cut off, which changes nothing before it.
        for k, (ids, done) in enumerate(zip(more.sampled, more.finished.tolist())):
            i = some[k // samples]
            whole = prefixes[i] + ids[:left[i]]
            found[i * samples + k % samples] = whole, done and len(ids) <= left[i]
    completions, finished = zip(*(found[k] for k in sorted(found)))

    texts = tokenizer.batch_decode(completions, skip_special_tokens=True,
                                   clean_up_tokenization_spaces=False)
    asked_by = [prompt for prompt in prompts for _ in range(samples)]  # P * K lists of ids
    texts = without_thoughts(tokenizer, asked_by, completions, texts)
    asked = [(row["answer"], row["problem"]) for row in rows for _ in range(samples)]
    triples = [(text, *gold) for text, gold in zip(rewardable(texts, finished), asked)]
    right = verify_all(triples, strict=True)
    return torch.tensor(right).float().view(-1, samples), tokens


def line_advantages(ends, values, verdict):
    """A (len,) of one completion: V(after) - V(before) on every token of a line.

    ends: see line_ends. values: V before each line, as many; verdict: V after the last one.
    """
    V = torch.tensor([*values, float(verdict)])          # (lines + 1,)
    lengths = torch.tensor([0, *ends]).diff()            # (lines,)
    return V.diff().repeat_interleave(lengths)           # (len,)


def line_reward(rollouts, rows, config, tokenizer, model):
    """Rewards (N, G), advantages of the tokens (B, T), what V cost; see grpo.outcome_reward."""
    rewards, _, _ = outcome_reward(rollouts, rows, config, tokenizer, model)  # (N, G)
    cut = config.cut if config.cut == "newline" else int(config.cut)
    G = config.group
    prompts = [ids[real].tolist() for ids, real in zip(
        rollouts.prompt_ids[::G], rollouts.prompt_mask[::G])]            # N lists of ids

    # What stands before each line, and of all rows together each problem's prefix once.
    ends, before = [], []
    for row, ids in enumerate(rollouts.sampled):
        ends.append(line_ends(tokenizer, ids, cut))
        before.append([(row // G, tuple(ids[:end])) for end in [0, *ends[row][:-1]]])
    distinct = list(dict.fromkeys(key for keys in before for key in keys))   # P

    # Seeded by the rollouts: new numbers in each step, the same ones after --resume. A CPU's cache
    # likes few rows at a time, a card takes as many as fit.
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
    add("--cut", default="newline", help="newline, or a number: a value every so many tokens")
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
