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


def shuffled(weights, ids, mask, seed):
    """Weights (b, T) permuted among the tokens of each completion: the same numbers, (b, T).

    ids (b, T) and mask (b, T) bool are the completion's, padding keeps what it has.
    """
    out = weights.clone()  # (b, T)
    for row, tokens, on in zip(out, ids, mask):
        generator = generator_for(seed, "shuffle", tokens[on].tolist())
        order = torch.randperm(int(on.sum()), generator=generator)  # (n,)
        row[on] = row[on][order.to(row.device)]
    return out


def shuffled_credit(credit, seed):
    """The credit function whose weights are those of `credit`, shuffled."""
    def weights(forward):
        return shuffled(credit(forward), forward.completion_ids, forward.completion_mask, seed)
    return weights


def coin_rewards(rollouts, shape, seed):
    """Rewards of this shape (N, G), 0 or 1 with equal chance, whatever the completions say."""
    text = rollouts.completion_ids.flatten().tolist()
    coins = torch.rand(shape, generator=generator_for(seed, "coin", text)) < 0.5  # (N, G)
    return coins.float().to(rollouts.lengths.device)


def random_judge(judge, seed):
    """`judge` with coins for rewards; the share that is really right is logged as `right`."""
    def toss(rollouts, rows, config, tokenizer):
        rewards, _, figures = judge(rollouts, rows, config, tokenizer)
        right = float(rewards.mean())
        return coin_rewards(rollouts, rewards.shape, seed), None, {**figures, "right": right}
    return toss


def apply(config, credit, judge, batch_credit):
    """The three functions of grpo.train under config.credit and config.reward.

    Raises BadInput where a control would change nothing: weights that are all alike, shuffled.
    """
    if config.credit == "shuffled":
        if config.method in ("grpo", "scrl"):
            raise BadInput(f"--credit shuffled: {config.method}.py weighs all tokens alike, so a "
                           "shuffle changes nothing; take grail.py, oar.py or delta.py.")
        if batch_credit is not None:
            whole = batch_credit

            def batch_credit(*batch):
                return shuffled_credit(whole(*batch), config.seed)
        credit = shuffled_credit(credit, config.seed)
    if config.credit == "uniform":
        credit, batch_credit = (lambda forward: torch.ones_like(forward.logprobs)), None
    if config.reward == "random":
        if config.method == "scrl":
            raise BadInput("--reward random: SCRL's verdicts are on the parts of an answer, where "
                           "one coin a completion has no place; take grpo.py --reward random.")
        judge = random_judge(judge, config.seed)
    return credit, judge, batch_credit
