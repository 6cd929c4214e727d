r"""Who is blamed for a slip? The two measurements of the walkthrough's last section.

    python docs/slips.py                        # about a minute on two cores

First, the wrong completion of the walkthrough, row 2: one step from the same start with four
choices of weights, and what each does to the slip. Second, whether row 2 is typical: wrong
completions of the embedded model on held-out problems whose first false equation is not their last
one, and the weight that GRAIL gives to the false result and to the result of the last equation.
"""
import argparse
import re
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import grail
import grpo
import intervals
import problems
import rollout
import saliency
import verify
from engine.errors import run_cli
from logprobs import forward_pass

PROBLEM, GOLD = "Start with 10, minus 3, minus 4.", "3"  # the walkthrough's
ROW, SLIP = 2, slice(6, 8)                               # its wrong completion, and the false 17
EQUATION = re.compile(r"([0-9]{1,6})([-+*])([0-9]{1,6})=(-?[0-9]{1,6})", re.ASCII)


def score(model, tokenizer, rollouts, rows, rewards, advantages):
    """One forward of these rows (b,); rewards and advantages (B,) are those of all rollouts."""
    return forward_pass(model, rollouts, rows, 1.0, tokenizer=tokenizer,
                        texts=[rollouts.texts[i] for i in rows.tolist()],
                        rewards=rewards[rows], advantages=advantages[rows])


def weights_of(forward):
    """GRAIL's weights (b, T) at its defaults: wrong completions alone."""
    spans = saliency.answer_spans(forward)                                           # (b, 4)
    s = saliency.gradient_activation(forward, spans)                                 # (b, T)
    return grail.grail_credit(s, forward.completion_mask, spans, forward.advantages)


# ------------------------------------------------------------------------------ one step, four ways


def choices(w, mask):
    """{name: weights (b, T)} of four ways to blame; w: GRAIL's weights (b, T), mask (b, T) bool."""
    ones = mask.float()                                           # (b, T)
    mean = (w * ones).sum(1, keepdim=True) / ones.sum(1, keepdim=True)  # (b, 1)
    slip = ones.clone()                                           # (b, T)
    slip[1:] = 0                                                  # rows 1 to 3 are wrong
    slip[ROW, SLIP] = 1
    return {"GRAIL": w, "GRPO": ones, "GRAIL, mean 1": w / mean, "the slip alone": slip}


def after_one_step(rollouts, rewards, advantages, choose, lr=0.05):
    """A step of plain gradient descent from the start: (p of the slip's first token before, after,
    how far each row's log-probability moved (b,)). choose: forward -> weights (b, T)."""
    model, tokenizer = problems.load_policy("tiny")
    rows = torch.arange(len(rollouts.texts))                                         # (b,)
    before = score(model, tokenizer, rollouts, rows, rewards, advantages)
    old = before.logprobs.detach()                                                   # (b, T)
    ratio = (before.logprobs - old).exp()                                            # (b, T)
    surrogate = grpo.clipped_surrogate(ratio, advantages[:, None], 0.2, 0.28)        # (b, T)
    scale = grpo.token_scale(before.completion_mask, "token", old.shape[1])
    loss = -(choose(before) * surrogate * scale).sum()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= lr * p.grad
    now = score(model, tokenizer, rollouts, rows, rewards, advantages).logprobs.detach()  # (b, T)
    first = ROW, SLIP.start
    return old[first].exp().item(), now[first].exp().item(), (now - old).sum(1).tolist()


def four_steps():
    """Print what each of the four choices does to the walkthrough's four completions."""
    model, tokenizer = problems.load_policy("tiny")
    prompt = problems.build_prompt(tokenizer, PROBLEM)
    rollouts = rollout.sample(model, tokenizer, [prompt], samples=4, max_new_tokens=72)
    rewards = torch.tensor([float(verify.verify(t, GOLD, strict=True)) for t in rollouts.texts])
    advantages = grpo.group_advantages(rewards[None])[0]                             # (4,)
    print(f"{'weights':16}{'p(slip)':>16}   log p moved: right, guess, slip's row, guess")
    for name in ("GRAIL", "GRPO", "GRAIL, mean 1", "the slip alone"):
        def choose(forward, name=name):
            return choices(weights_of(forward), forward.completion_mask)[name]
        p, now, moved = after_one_step(rollouts, rewards, advantages, choose)
        print(f"{name:16}{p:7.3f} -> {now:.3f}   " + "".join(f"{x:+8.2f}" for x in moved))


# ------------------------------------------------------------------------------ is row 2 typical?


def equations(text):
    """[((begin, end) of the result, is it true)] of all `a+b=c` in a text, in order."""
    found = []
    for match in EQUATION.finditer(text):
        a, b, c = int(match[1]), int(match[3]), int(match[4])
        true = {"+": a + b, "-": a - b, "*": a * b}[match[2]] == c
        found.append((match.span(4), true))
    return found


def early_slip(text):
    """Characters of the first false result and of the last result, or None where they are the same
    equation or none is false."""
    found = equations(text)
    false = [place for place, true in found if not true]
    if not false or false[0] == found[-1][0]:
        return None
    return false[0], found[-1][0]


def survey(count, group):
    """GRAIL's weights in wrong completions with an early slip, (n, 4): the mean weight of the false
    result's tokens, of the last result's, of the whole completion, and the problem's number."""
    model, tokenizer = problems.load_policy("tiny")
    rows = problems.load_problems("arithmetic", "test", count)
    prompts = [problems.build_prompt(tokenizer, row["problem"]) for row in rows]
    rollouts = rollout.sample(model, tokenizer, prompts, samples=group, max_new_tokens=72)
    gold = [row["answer"] for row in rows for _ in range(group)]
    rewards = torch.tensor([float(verify.verify(text, answer, strict=True))
                            for text, answer in zip(rollouts.texts, gold)])          # (B,)
    advantages = grpo.group_advantages(rewards.view(-1, group)).flatten()            # (B,)
    found = []
    for batch in torch.arange(len(rewards)).split(64):
        forward = score(model, tokenizer, rollouts, batch, rewards, advantages)
        boxed = saliency.answer_spans(forward)[:, 0] >= 2                            # (b,)
        for i, w, box in zip(batch.tolist(), weights_of(forward), boxed.tolist()):
            text, ids = rollouts.texts[i], rollouts.sampled[i]
            slip = early_slip(text) if box and rewards[i] == 0 else None
            if slip is None:
                continue
            false, last = (w[saliency.tokens_of(tokenizer, ids, text, place)].mean()
                           for place in slip)
            found.append([false.item(), last.item(), w[:len(ids)].mean().item(), i // group])
    return torch.tensor(found)                                                       # (n, 4)


def interval(w, problem):
    """95 % interval of the mean of w (n,), by drawing problems: completions of one are alike."""
    _, of = problem.unique(return_inverse=True)                                      # (n,)
    sums = torch.zeros(int(of.max()) + 1, 2).double()                                # (N, 2)
    sums.index_add_(0, of, torch.stack([w, torch.ones_like(w)], 1).double())
    draws = intervals.bootstrap(sums)                                                # (R, 2)
    return intervals.middle95(draws[:, :1] / draws[:, 1:])[:, 0].tolist()


def say(found):
    """Print what the survey found, (n, 4)."""
    false, last, mean, problem = found.T                                             # (n,) each
    print(f"{len(found)} wrong completions, of {len(problem.unique())} problems, whose first false "
          f"equation is not the last one\n{'weight (GRPO: 1)':22}{'mean':>6}   95 % interval   "
          "below 1")
    for name, w in (("the false result", false), ("the last result", last),
                    ("false, mean weight 1", false / mean), ("last, mean weight 1", last / mean)):
        low, high = interval(w, problem)
        print(f"{name:22}{w.mean():6.2f}   [{low:.2f}, {high:.2f}]"
              f"{100 * (w < 1).float().mean():10.0f} %")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--problems", type=int, default=200, help="held-out problems of the survey")
    parser.add_argument("--group", type=int, default=8, help="completions of each")
    args = parser.parse_args()
    if args.problems < 1 or args.group < 2:
        parser.error(f"--problems {args.problems} --group {args.group}: take at least 1 and 2.")
    four_steps()
    print()
    say(survey(args.problems, args.group))


if __name__ == "__main__":
    run_cli(main)
