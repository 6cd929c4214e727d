"""Marks exercise 10: the rules. Whether it is any good is for leaderboard.py to say."""
from functools import lru_cache

import torch

import grpo
import problems
import rollout
from logprobs import forward_pass


@lru_cache(1)
def rollouts():
    """Two problems, three completions each, of the embedded model; 0, 1 of 3 and all are right."""
    model, tokenizer = problems.load_policy("tiny")
    prompts = [problems.build_prompt(tokenizer, problem) for problem in
               ("Start with 7, add 5, times 3.", "Start with 2, add 9.")]
    return model, tokenizer, rollout.sample(model, tokenizer, prompts, samples=3, max_new_tokens=72)


def forward_of(rows):
    model, tokenizer, out = rollouts()
    rewards = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    advantages = grpo.group_advantages(rewards).flatten()
    model.zero_grad(set_to_none=True)
    rows = torch.tensor(rows)
    return model, forward_pass(
        model, out, rows, 1.0, tokenizer=tokenizer, texts=[out.texts[i] for i in rows],
        rewards=rewards.flatten()[rows], advantages=advantages[rows])


def test_finite_weights_without_gradient(attempt):
    _, forward = forward_of(range(6))
    weights = attempt(forward)
    assert weights.shape == forward.logprobs.shape and not weights.requires_grad
    assert torch.isfinite(weights).all() and (weights >= 0).all() and weights.sum() > 0


def test_a_row_s_weights_depend_on_no_other_row(attempt):
    """With a mean over the micro-batch, --tokens-per-microbatch changes the update: it must only
    say how much memory to take."""
    _, forward = forward_of(range(6))
    together, mask = attempt(forward), forward.completion_mask
    for rows in ([0, 1], [5, 4], [3], [2]):
        _, part = forward_of(rows)
        apart, on = attempt(part), part.completion_mask
        for i, row in enumerate(rows):
            torch.testing.assert_close(apart[i][on[i]], together[row][mask[row]], atol=0.01,
                                       rtol=0.01)


def test_the_policy_s_gradient_is_left_alone(attempt):
    model, forward = forward_of(range(6))
    attempt(forward)
    assert all(p.grad is None for p in model.parameters())
    forward.logprobs.sum().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
