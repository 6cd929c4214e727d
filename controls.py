r"""Controls that make a claim about credit falsifiable; flags of every script.

    python grail.py --credit shuffled     # the same weights, permuted inside each completion
    python grail.py --credit uniform      # all 1: GRPO
    python grpo.py --reward random        # a fair coin a completion, whatever it says
    python grpo.py --credit oracle        # perfect credit, known on the embedded arithmetic alone
    python grpo.py --credit entropy       # weights from each token's entropy: they cost nothing

Weights change the size of the step as well as its direction, and a small model can improve under
rewards that mean nothing. If shuffled weights train as well, it was not where they stood; if a
coin does, it was not the verdict. The oracle is the other end: it knows in which line of a wrong
completion the error came in. What it gains over GRPO is what a signal could gain by finding that.

Every random number is keyed by the seed and the completions' own ids, so neither micro-batches nor
--resume change a draw. The coins are keyed by the whole batch of completions: the same text does
not get the same coin twice, or the coin would be a verdict after all.
"""
import re
from pathlib import Path

import torch

import problems
import verify
from engine.errors import BadInput
from engine.seeds import generator_for
from logprobs import to_device
from saliency import tokens_of


def shuffled(weights, sampled, seed):
    """Weights (b, T) permuted among the tokens of each completion: the same numbers, (b, T).

    sampled: b lists of the completions' ids. What stands after them, on padding, stays there.
    """
    b, T = weights.shape
    order = torch.arange(T).repeat(b, 1)                   # (b, T)
    for row, ids in zip(order, sampled):
        generator = generator_for(seed, "shuffle", ids)
        row[:len(ids)] = torch.randperm(len(ids), generator=generator)
    return weights.gather(1, to_device(order, weights.device))


def shuffled_credit(credit_fn, seed):
    """The credit function whose weights are those of `credit_fn`, shuffled."""
    def weights(forward):
        return shuffled(credit_fn(forward), forward.sampled, seed)
    return weights


def ones(forward):
    """Every token the same credit, (b, T): grpo.uniform, which this file cannot import."""
    return torch.ones_like(forward.logprobs)


def shuffled_whole_batch(whole_batch, seed):
    """The same for a method that looks at the whole batch first."""
    def look(forwards, advantages, mask):
        return shuffled_credit(whole_batch(forwards, advantages, mask), seed)
    return look


def coin_rewards(rollouts, shape, seed):
    """Rewards of this shape (N, G), 0 or 1 with equal chance, whatever the completions say."""
    ids = rollouts.completion_ids.flatten().tolist()
    coins = torch.rand(shape, generator=generator_for(seed, "coin", ids)) < 0.5  # (N, G)
    return coins.float().to(rollouts.lengths.device)


def random_reward(reward_fn, seed):
    """`reward_fn` with coins for rewards; the share that is really right is logged as `right`."""
    def toss(rollouts, rows, config, tokenizer, model):
        rewards, _, metrics = reward_fn(rollouts, rows, config, tokenizer, model)
        metrics = {**metrics, "right": float(rewards.mean())}
        coins = coin_rewards(rollouts, rewards.shape, seed)  # (N, G)
        return coins, None, metrics
    return toss


# ------------------------------------------------------------------------------ entropy


def entropy_credit(forward):
    """Each token's entropy over the mean of its completion, (b, T): mean 1; 1 if all are 0."""
    mask = forward.completion_mask                             # (b, T)
    H = forward.entropy * mask                                 # (b, T) nats
    mean = H.sum(1, keepdim=True) / mask.sum(1, keepdim=True)  # (b, 1)
    flat = mean[:, 0] == 0                                     # (b,)
    forward.metrics["fallback"] = flat
    return torch.where(flat[:, None], 1.0, H / mean) * mask    # (b, T)


# ------------------------------------------------------------------------------ the step oracle

STATEMENT = re.compile(r"Start with ([0-9]{1,4})((?:, (?:add|minus|times) [0-9]{1,4})+)\.")
OPERATION = re.compile(r"(add|minus|times) ([0-9]+)")
# One line, maybe after words: 12+3=15. No number is longer than six digits.
STEP = re.compile(r"[A-Za-z, ]*(-?[0-9]{1,6})([-+*])([0-9]{1,6})=(-?[0-9]{1,6})\s*", re.ASCII)
SIGN = {"add": "+", "minus": "-", "times": "*"}


def applied(value, sign, operand):
    return {"+": value + operand, "-": value - operand, "*": value * operand}[sign]


def first_slip(problem, text):
    """Where the error of a wrong completion came in: (begin, end) in characters, or None.

    A slip is the first line with a sum that is wrong, that does not go on from where the line
    before arrived, or that is not the problem's next operation. A line that carries a slip on is
    none. If all lines are right, the line of the box is at fault: it gives another value, or comes
    too early. An answer without any line, a glance, is at fault as a whole. None: there is no box,
    and no line is wrong, as when a completion was cut off. Raises ValueError for another problem.
    """
    statement = STATEMENT.search(problem)
    if statement is None:
        raise ValueError(f"no chain of operations: {problem[:60]!r}")
    value = int(statement[1])
    todo = [(SIGN[word], int(operand)) for word, operand in OPERATION.findall(statement[2])]
    box = verify.last_boxed(text)
    done, begin = 0, 0
    for line in text.split("\n"):
        end = begin + len(line) + 1  # a newline belongs to the line that it ends
        if box and box[0] < end:
            return (begin, end) if done else (0, len(text))
        if end > len(text):
            return None  # the last line, and no box: it may have been cut off
        if "=" in line:
            step = STEP.fullmatch(line)
            if step is None or done == len(todo):
                return begin, end
            left, sign, operand, result = int(step[1]), step[2], int(step[3]), int(step[4])
            wrong = (left, sign, operand) != (value, *todo[done])
            if wrong or applied(left, sign, operand) != result:
                return begin, end
            value = result
            done += 1
        begin = end
    return None


def oracle_credit(forward):
    """1 on the tokens of the first slip, 0 on all others of a wrong completion; 1 on every token of
    a right one, and of one in which no slip is found. (b, T)."""
    weights = torch.ones(forward.logprobs.shape)              # (b, T) on the CPU
    lost = torch.full((len(weights),), torch.nan)             # (b,) NaN: not asked
    for row, (ids, text) in enumerate(zip(forward.sampled, forward.texts)):
        if forward.signs[row] >= 0:
            continue
        prompt = forward.ids[row, :int(forward.position[row, 0])].tolist()
        slip = first_slip(forward.tokenizer.decode(prompt), text)
        lost[row] = slip is None
        if slip is not None:
            weights[row] = 0
            weights[row, tokens_of(forward.tokenizer, ids, text, slip)] = 1
    forward.metrics["fallback"] = to_device(lost, forward.logprobs.device)
    return to_device(weights, forward.logprobs.device) * forward.completion_mask


# ------------------------------------------------------------------------------ the switch


def apply(config, credit_fn, reward_fn, whole_batch):
    """The three functions of grpo.train under config.credit and config.reward.

    Raises BadInput where a control would change nothing: weights that are all alike, shuffled; and
    where it has no meaning.
    """
    if config.credit == "oracle":
        refuse_an_oracle(config)
    if config.credit == "shuffled":
        if config.method in ("grpo", "scrl", "vine"):
            raise BadInput(f"--credit shuffled: {config.method}.py weighs all tokens alike, so a "
                           "shuffle changes nothing; take grail.py, oar.py or delta.py.")
        if whole_batch is not None:
            whole_batch = shuffled_whole_batch(whole_batch, config.seed)
        credit_fn = shuffled_credit(credit_fn, config.seed)
    fixed = {"uniform": ones, "entropy": entropy_credit, "oracle": oracle_credit}
    if config.credit in fixed:
        credit_fn = fixed[config.credit]
        whole_batch = None
    if config.reward == "random":
        if config.method == "scrl":
            raise BadInput("--reward random: SCRL's verdicts are on the parts of an answer, where "
                           "one coin a completion has no place; take grpo.py --reward random.")
        if config.method == "vine":
            raise BadInput("--reward random: the values of vine.py are chances of a real success, "
                           "which a coin has not; take grpo.py --reward random.")
        reward_fn = random_reward(reward_fn, config.seed)
    return credit_fn, reward_fn, whole_batch


def refuse_an_oracle(config):
    """Raise BadInput where nobody knows the slip, or where a method has advantages of its own."""
    known = config.data in problems.SETS
    if config.data.endswith(".jsonl"):
        rows = problems.read_jsonl(Path(config.data))
        known = all(STATEMENT.search(row["problem"]) for row in rows)
    if not known:
        raise BadInput(f"--credit oracle: it knows the steps of the embedded arithmetic alone, "
                       f"not those of --data {config.data}; take another --credit.")
    if config.method in ("scrl", "vine"):
        raise BadInput(f"--credit oracle: {config.method}.py has advantages of its own for parts "
                       "of a completion; take grpo.py --credit oracle.")
    if config.reward == "random":
        raise BadInput("--credit oracle: where a coin decides what is wrong, no line is to blame; "
                       "leave --reward random out.")
