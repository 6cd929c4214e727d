r"""What does a credit push up, and what down? By kind of token, before any training.

    python examples/push.py                                  # the embedded model, seconds
    python examples/push.py --model FOLDER --data FILE.jsonl --max-new-tokens 512

A token with advantage A and weight w gets the push A w: its log-probability goes up where A is
positive. Summed over all tokens of a kind, and divided by the sum of their |A|:

     0    right and wrong completions balance
    -1    as if only wrong completions had it, with weight 1; +1: only right ones

The advantages of a group add up to 0. So under GRPO, where w is 1, a token that every completion
has once gets 0. If it has weight w in wrong completions alone, it gets (1 - w) / 2.

Compare kinds that could stand at the same place, such as words and symbols: a difference between
them is a drift. What all tokens that could stand at a place have in common acts like a baseline,
and favours none of them, such as the 5 on whatever stands in the box. (There it makes the verdict
count for more, because the content of the box decides it.)

What we left out, on purpose: the step that follows (tokens share parameters, so a push on one moves
others), OAR, DelTA and SCRL.
"""
import argparse
import re
import sys
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "results")]
from arms import ABLATIONS, ARMS

import grail
import grpo
import problems
import saliency
from engine.errors import BadInput, run_cli
from engine.flags import check, flags, parse
from engine.seeds import problems_of_step
from rollout import sample

SHOWN = ("grpo", "grail", "grail-boost-all", "grail-no-boost", "grail-both", "grail-released",
         "grail-correct")
KINDS = ("words", "digits", "symbols", "spaces", "marks of the box", "content of the box",
         "after the box")


def kind_of(text, t, span):
    """The kind of token t, which decodes to `text`. span: see saliency.answer_span; -1 if none."""
    start, content, close, end = span
    if content <= t < close:
        return "content of the box"
    if start <= t < end:
        return "marks of the box"
    if 0 <= end <= t:
        return "after the box"
    if re.search(r"\d", text):
        return "digits"
    if re.search(r"[^\W_]", text):
        return "words"
    return "symbols" if text.strip() else "spaces"


def credit_of(arm):
    """The credit function of an arm in SHOWN: Forward -> weights (b, T)."""
    script, options, *own = (ARMS | ABLATIONS)[arm]
    if script is grpo:
        return grpo.uniform
    config = SimpleNamespace(reweight="wrong", activation="embeddings",
                             as_released="--as-released" in options)
    if "--reweight" in options:
        config.reweight = options.split()[1]
    return (own or [grail.credit])[0](config)


def pushes(model, tokenizer, rollouts, rewards, config):
    """{kind: {arm: push}}, and {kind: [tokens in right, in wrong completions]}. rewards (N, G)."""
    A = grpo.group_advantages(rewards).flatten()                     # (B,)
    batch = grpo.plan(model, rollouts, rewards, A, A[:, None].expand_as(rollouts.completion_ids),
                      config, tokenizer)
    credits = {arm: credit_of(arm) for arm in SHOWN}
    sums = {kind: dict.fromkeys(SHOWN, 0.0) for kind in KINDS}
    size, counts = dict.fromkeys(KINDS, 0.0), {kind: [0, 0] for kind in KINDS}

    for rows in batch.micro:
        forward = grpo.policy_forward(model, batch, rows, config)
        spans = saliency.answer_spans(forward).tolist()
        weights = {arm: grpo.token_weights(credit, forward).tolist()  # (b, T)
                   for arm, credit in credits.items()}
        for i, ids in enumerate(forward.sampled):
            a = forward.advantages[i].item()
            for t, token in enumerate(ids):
                kind = kind_of(tokenizer.decode([token]), t, spans[i])
                counts[kind][int(a < 0)] += 1
                size[kind] += abs(a)
                for arm in SHOWN:
                    sums[kind][arm] += a * weights[arm][i][t]
    found = [kind for kind in KINDS if size[kind]]
    return {kind: {arm: sums[kind][arm] / size[kind] for arm in SHOWN} for kind in found}, counts


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--model", default="tiny", help="hub id or folder; tiny: the embedded one")
    add("--data", default="", help="as for grpo.py, which also says what is taken without it")
    add("--prompts", type=int, default=16, help="problems")
    add("--group", type=int, default=8, help="completions of each")
    add("--max-new-tokens", type=int, default=160)
    add("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    given = [f"--{name.replace('_', '-')}={value}" for name, value in vars(args).items()
             if value != ""]
    config = parse(flags("grpo", ""), given)
    check(config)

    model, tokenizer = problems.load_policy(config.model, config.device)
    train_set, _ = problems.load_split(config)
    numbers = problems_of_step(0, config.prompts, len(train_set), config.seed)
    rows = [train_set[i] for i in numbers]  # N problems
    prompts = [problems.build_prompt(tokenizer, row["problem"]) for row in rows]
    rollouts = sample(model, tokenizer, prompts, samples=config.group,
                      max_new_tokens=config.max_new_tokens, seed=config.seed)
    rewards, _, _ = grpo.outcome_reward(rollouts, rows, config, tokenizer)
    found, counts = pushes(model, tokenizer, rollouts, rewards, config)
    if not found:
        raise BadInput(f"--prompts {config.prompts}: no group has right and wrong completions, so "
                       "nothing is pushed; take more.")
    print(f"\n{len(rows)} problems x {config.group}, reward {rewards.mean():.2f}\n")
    print("| tokens | in right | in wrong |", " | ".join(SHOWN), "|")
    print("|---" * (3 + len(SHOWN)) + "|")
    for kind, push in found.items():
        print(f"| {kind} | {counts[kind][0]} | {counts[kind][1]} |",
              " | ".join(f"{x:+.2f}" for x in push.values()), "|")


if __name__ == "__main__":
    run_cli(main)
