r"""Controls that test a claim about credit; every method has these flags.

    python grail.py --credit shuffled     # the same weights, permuted inside each completion
    python grail.py --credit uniform      # all 1: GRPO
    python grpo.py --reward random        # a fair coin for each completion, right or wrong
    python grpo.py --credit oracle        # perfect credit, known only for the embedded arithmetic
    python grpo.py --credit entropy       # weights from each token's entropy, at no extra cost

Weights change the size of the step as well as its direction, and a small model can improve under
random rewards. If shuffled weights train as well, the position of the weights did not matter. If a
coin does, the verdict did not matter. The oracle is the other extreme: it knows which line of a
wrong completion made the error. Its gain over GRPO is what a signal that finds that line can gain.

Every random number is keyed by the seed and the completions' own ids. So neither micro-batches nor
--resume change a draw. The coins are keyed by the whole batch of completions. If the same text
always got the same coin, the coin would be a verdict that the model can learn.
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
    """Weights (b, T), permuted among the tokens of each completion, (b, T).

    sampled: b lists of the completions' ids. The values on padding stay where they are.
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
    """The same credit for every token, (b, T): grpo.uniform, which this file cannot import."""
    return torch.ones_like(forward.logprobs)


def shuffled_whole_batch(whole_batch, seed):
    """The same for a method that sees the whole batch first."""
    def look(forwards, advantages, mask):
        return shuffled_credit(whole_batch(forwards, advantages, mask), seed)
    return look


def coin_rewards(rollouts, shape, seed):
    """Rewards of this shape (N, G), 0 or 1 with equal chance, right or wrong."""
    ids = rollouts.completion_ids.flatten().tolist()
    coins = torch.rand(shape, generator=generator_for(seed, "coin", ids)) < 0.5  # (N, G)
    return coins.float().to(rollouts.lengths.device)


def random_reward(reward_fn, seed):
    """`reward_fn` with coins as rewards. The log shows the share that is really right: `right`."""
    def toss(rollouts, rows, config, tokenizer, model):
        rewards, _, metrics = reward_fn(rollouts, rows, config, tokenizer, model)
        metrics = {**metrics, "right": float(rewards.mean())}
        coins = coin_rewards(rollouts, rewards.shape, seed)  # (N, G)
        return coins, None, metrics
    return toss


# ------------------------------------------------------------------------------ entropy


def entropy_credit(forward):
    """Each token's entropy over its completion's mean, (b, T). All 1 if every entropy is 0."""
    mask = forward.completion_mask                             # (b, T)
    H = forward.entropy * mask                                 # (b, T) nats
    mean = H.sum(1, keepdim=True) / mask.sum(1, keepdim=True)  # (b, 1)
    flat = mean[:, 0] == 0                                     # (b,)
    forward.metrics["fallback"] = flat
    return torch.where(flat[:, None], 1.0, H / mean) * mask    # (b, T)


# ------------------------------------------------------------------------------ the step oracle

STATEMENT = re.compile(r"Start with ([0-9]{1,4})((?:, (?:add|minus|times) [0-9]{1,4})+)\.")
OPERATION = re.compile(r"(add|minus|times) ([0-9]+)")
# One line, perhaps after words: 12+3=15. No number is longer than six digits.
STEP = re.compile(r"[A-Za-z, ]*(-?[0-9]{1,6})([-+*])([0-9]{1,6})=(-?[0-9]{1,6})\s*", re.ASCII)
SIGN = {"add": "+", "minus": "-", "times": "*"}


def applied(value, sign, operand):
    return {"+": value + operand, "-": value - operand, "*": value * operand}[sign]


def first_slip(problem, text):
    """The first error (slip) of a wrong completion: (begin, end) in characters, or None.

    It is the first line with a wrong sum, with another start than the last line's result, or with
    another operation than the problem's next one. Later lines that continue from it do not count.
    If all lines are right, it is the line of the box, which gives another value or comes too early.
    If there is no line of steps, it is the whole answer. None: no line is wrong and there is no
    box, for example in a completion that was cut off. Raises ValueError for any other problem.
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
            return None  # the last line, without a box: it may have been cut off
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
    """Weights (b, T): in a wrong completion 1 on the tokens of the first slip and 0 on all others.
    All 1 in a right completion, and where no slip is found."""
    weights = torch.ones(forward.logprobs.shape)              # (b, T) on the CPU
    lost = torch.full((len(weights),), torch.nan)             # (b,) NaN: not counted
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

    Raises BadInput if a control would change nothing, such as a shuffle of equal weights, or if it
    has no meaning.
    """
    if config.credit == "oracle":
        refuse_an_oracle(config)
    if config.credit == "shuffled":
        if config.method in ("grpo", "scrl", "vine"):
            raise BadInput(f"--credit shuffled: {config.method}.py gives all tokens one weight, so "
                           "a shuffle changes nothing; take grail.py, oar.py or delta.py.")
        if whole_batch is not None:
            whole_batch = shuffled_whole_batch(whole_batch, config.seed)
        credit_fn = shuffled_credit(credit_fn, config.seed)
    fixed = {"uniform": ones, "entropy": entropy_credit, "oracle": oracle_credit}
    if config.credit in fixed:
        credit_fn = fixed[config.credit]
        whole_batch = None
    if config.reward == "random":
        if config.method == "scrl":
            raise BadInput("--reward random: SCRL grades the parts of an answer, but there is only "
                           "one coin per completion; take grpo.py --reward random.")
        if config.method == "vine":
            raise BadInput("--reward random: vine.py estimates the chance of a right answer, but "
                           "a coin ignores the answer; take grpo.py --reward random.")
        reward_fn = random_reward(reward_fn, config.seed)
    return credit_fn, reward_fn, whole_batch


def refuse_an_oracle(config):
    """Raise BadInput if the slip cannot be known, or if a method has its own advantages."""
    known = config.data in problems.SETS
    if config.data.endswith(".jsonl"):
        rows = problems.read_jsonl(Path(config.data))
        known = all(STATEMENT.search(row["problem"]) for row in rows)
    if not known:
        raise BadInput(f"--credit oracle: it only knows the steps of the embedded arithmetic, "
                       f"not those of --data {config.data}; take another --credit.")
    if config.method in ("scrl", "vine"):
        raise BadInput(f"--credit oracle: {config.method}.py has its own advantages for parts "
                       "of a completion; take grpo.py --credit oracle.")
    if config.reward == "random":
        raise BadInput("--credit oracle: if a coin decides what is wrong, no line is to blame; "
                       "leave out --reward random.")
