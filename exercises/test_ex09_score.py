"""Marks exercise 9."""
import torch
from transformers import GPT2Config, GPT2LMHeadModel

PAD = END = 0  # one id for both, as in many tokenizers


def tiny():
    """A random model that learns a vector for each position, as GPT-2 does: places matter to it."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=11, n_positions=32, n_embd=16, n_layer=2, n_head=2,
                                      initializer_range=0.5, bos_token_id=END, eos_token_id=END,
                                      attn_implementation="eager")).eval()


def alone(model, prompt, completion):
    """The row by itself: no padding, no mask, a loop over its tokens."""
    logits = model(torch.tensor([prompt + completion])).logits[0].log_softmax(-1)
    return torch.stack([logits[len(prompt) + t - 1, token] for t, token in enumerate(completion)])


def test_the_token_that_ends_a_completion_is_part_of_it(attempt):
    """Masked out, it is never trained, and the policy never learns to stop."""
    _, mask, _ = attempt(tiny(), [[5, 6]] * 2, [[3, 4, END], [END]], PAD)
    assert mask.tolist() == [[True, True, True], [True, False, False]]


def test_a_longer_neighbour_does_not_move_a_row(attempt):
    """Padding on the left puts the short prompt's first token at position 4."""
    model = tiny()
    logprobs, _, _ = attempt(model, [[5], [1, 2, 3, 4, 5]], [[6, 7], [8, 9]], PAD)
    torch.testing.assert_close(logprobs[0], alone(model, [5], [6, 7]))


def test_a_prompt_of_two_turns_is_read_in_full(attempt):
    """No padding is needed here at all: what looks like padding is the end of a turn."""
    model, prompt = tiny(), [5, END, 6, 7]
    logprobs, _, _ = attempt(model, [prompt], [[8, 9]], PAD)
    torch.testing.assert_close(logprobs[0], alone(model, prompt, [8, 9]))


def test_a_short_completion_has_a_mean_of_its_own_tokens(attempt):
    """Divided by the longest one's length, a short completion counts for less than it is."""
    model = tiny()
    logprobs, _, mean = attempt(model, [[5, 6]] * 2, [[3], [3, 4, 7, 8]], PAD)
    assert logprobs[0, 1:].tolist() == [0.0] * 3
    torch.testing.assert_close(mean[0], alone(model, [5, 6], [3])[0])
    torch.testing.assert_close(mean[1], alone(model, [5, 6], [3, 4, 7, 8]).mean())
