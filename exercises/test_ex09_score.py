"""Marks exercise 9."""
import copy
import random

import torch
from expected import expect, expect_unchanged
from toy import Reader

PAD = END = 0  # one id for both, as in many tokenizers


def alone(model, prompt, completion):
    """The row by itself: no padding, no mask, a loop over its tokens."""
    logits = model(torch.tensor([prompt + completion])).logits[0].log_softmax(-1)      # (L, V)
    return [logits[len(prompt) + t - 1, token].item() for t, token in enumerate(completion)]


def test_the_token_that_ends_a_completion_is_part_of_it(attempt):
    """The model sampled it, so it is trained. A mask made of `ids != pad` leaves it out, and the
    policy never learns to stop. How long a completion is, only its list knows."""
    _, mask, _ = attempt(Reader(), [[5, 6]] * 2, [[3, 4, END], [END]], PAD)
    expect(mask, [[True, True, True], [True, False, False]], tolerance=0, about="mask",
           mistakes={
        "tokens that look like padding are left out": [[1, 1, 0], [0, 0, 0]]})


def test_a_longer_neighbour_does_not_move_a_row(attempt):
    """Padding on the left puts the short prompt's first token at place 4, and the model reads
    another text. Tell it the places: position_ids count a row's own tokens from 0."""
    model = Reader()
    logprobs, _, _ = attempt(model, [[5], [1, 2, 3, 4, 5]], [[6, 7], [8, 9]], PAD)
    expect(logprobs, [alone(model, [5], [6, 7]), alone(model, [1, 2, 3, 4, 5], [8, 9])],
           about="log-probabilities")


def test_a_prompt_of_two_turns_is_read_in_full(attempt):
    """No padding is needed here at all: what looks like padding ends a turn. An attention mask made
    of `ids != pad` hides it from all that follows."""
    model, prompt = Reader(), [5, END, 6, 7]
    logprobs, _, _ = attempt(model, [prompt], [[8, 9]], PAD)
    expect(logprobs, [alone(model, prompt, [8, 9])], about="log-probabilities")


def test_a_short_completion_has_a_mean_of_its_own_tokens(attempt):
    """Divided by the longest one's length, or with what stands on padding added, a short completion
    counts for something else than it is. Padding has log-probability 0, and a row's
    sum is divided by the number of its own tokens."""
    model = Reader()
    rows = [alone(model, [5, 6], [3]), alone(model, [5, 6], [3, 4, 7, 8])]
    logprobs, _, mean = attempt(model, [[5, 6]] * 2, [[3], [3, 4, 7, 8]], PAD)
    expect(logprobs, [rows[0] + [0.0] * 3, rows[1]], about="log-probabilities")
    expect(mean, [sum(row) / len(row) for row in rows], about="mean", mistakes={
        "the sums are divided by the longest completion's length": [sum(row) / 4 for row in rows],
        "these are sums": [sum(row) for row in rows]})


def test_any_rows_with_any_padding_id(attempt):
    """Forty batches: unequal prompts and completions, turns that end inside, another padding id.
    The lists that come in are needed again: build new ones."""
    draw, model = random.Random(1), Reader()
    for _ in range(40):
        B, pad = draw.randint(1, 4), draw.choice([PAD, PAD, 3])
        prompts, completions = ([[draw.choice([END, *range(11)]) for _ in range(draw.randint(1, 7))]
                                 for _ in range(B)] for _ in range(2))
        before = copy.deepcopy((prompts, completions))
        logprobs, mask, mean = attempt(model, prompts, completions, pad)
        expect_unchanged(prompts, before[0], "prompts")
        expect_unchanged(completions, before[1], "completions")
        T = max(map(len, completions))
        rows = [alone(model, *row) for row in zip(prompts, completions)]
        expect(mask, [[True] * len(c) + [False] * (T - len(c)) for c in completions], tolerance=0,
               about="mask")
        expect(logprobs, [row + [0.0] * (T - len(row)) for row in rows],
               about="log-probabilities")
        expect(mean, [sum(row) / len(row) for row in rows], about="mean")


if __name__ == "__main__":
    raise SystemExit("Mark it with: python -m pytest exercises -k ex09")
