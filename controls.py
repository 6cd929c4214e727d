r"""Controls that make a claim about credit falsifiable; flags of every method.

    python grail.py --credit shuffled     # the same weights, permuted inside each completion
    python grail.py --credit uniform      # all 1: GRPO
    python grpo.py --reward random        # a fair coin a completion, whatever it says

Weights change the size of the step as well as its direction, and a small model can improve under
rewards that mean nothing. If shuffled weights train as well, it was not where they stood; if a
coin does, it was not the verdict.

Every random number is keyed by the seed and the completions' own ids, so neither micro-batches nor
--resume change a draw. The coins are keyed by the whole batch of completions: the same text does
not get the same coin twice, or the coin would be a verdict after all.
"""
import torch

from engine.errors import BadInput
from engine.seeds import generator_for
from logprobs import to_device


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
    """Every token the same credit, (b, T): GRPO's."""
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


def apply(config, credit_fn, reward_fn, whole_batch):
    """The three functions of grpo.train under config.credit and config.reward.

    Raises BadInput where a control would change nothing: weights that are all alike, shuffled.
    """
    if config.credit == "shuffled":
        if config.method in ("grpo", "scrl", "vine"):
            raise BadInput(f"--credit shuffled: {config.method}.py weighs all tokens alike, so a "
                           "shuffle changes nothing; take grail.py, oar.py or delta.py.")
        if whole_batch is not None:
            whole_batch = shuffled_whole_batch(whole_batch, config.seed)
        credit_fn = shuffled_credit(credit_fn, config.seed)
    if config.credit == "uniform":
        credit_fn = ones
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
