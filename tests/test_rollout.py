"""The sampler is the policy, a row depends on its own key alone, and lengths are counted."""
import math

import pytest
import torch
import transformers

import rollout
from engine import seeds
from logprobs import forward_pass


class Numbers:
    """A tokenizer of space-separated integers; 0 pads, 1 stops, both special."""
    pad_token_id, eos_token_id = 0, 1

    def __call__(self, texts, add_special_tokens=False):
        return type("Encoding", (), {"input_ids": [[int(x) for x in t.split()] for t in texts]})

    def decode(self, ids, skip_special_tokens=True, **_):
        return " ".join(str(int(i)) for i in ids if not (skip_special_tokens and i < 2))

    def batch_decode(self, rows, **options):
        return [self.decode(row, **options) for row in rows]


CONFIGS = {"qwen3": transformers.Qwen3Config, "qwen2": transformers.Qwen2Config,
           "llama": transformers.LlamaConfig, "gemma3": transformers.Gemma3TextConfig}


def tiny(architecture="qwen3", tied=True, vocab=32, scale=6.0, **more):
    """A random model with logits wide enough that sampling is neither flat nor greedy."""
    torch.manual_seed(0)
    config = CONFIGS[architecture](
        vocab_size=vocab, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, tie_word_embeddings=tied,
        max_position_embeddings=128, pad_token_id=None, eos_token_id=1, bos_token_id=2, **more)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for p in model.parameters():
        if p.dim() > 1:
            p.data *= scale
    return model


def scores(model, out, temperature=1.0):
    """Log-probs of the rollouts by the training code, (B, T)."""
    rows = torch.arange(len(out.texts))
    with torch.no_grad():
        return forward_pass(model, out, rows, temperature, texts=[], rewards=None,
                                 advantages=None, tokenizer=None).logprobs


PROMPTS = ["5 6 7 8 9 10 11", "12", "3 4 5"]


@pytest.mark.parametrize("architecture", CONFIGS)
@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
def test_the_sampler_s_logprobs_are_the_scorer_s(architecture, temperature):
    """A temperature applied on one side only, a shift by one, or wrong positions under left padding
    make a ratio that is not 1 before anything was learned."""
    model = tiny(architecture)
    out = rollout.sample(model, Numbers(), PROMPTS, samples=5, max_new_tokens=20,
                         temperature=temperature, seed=3)
    gap = (scores(model, out, temperature) - out.logprobs).abs()
    assert gap.max() < 1e-5
    assert out.finished.any() and not out.finished.all()  # both kinds of row were compared


def test_frequencies_are_the_softmax_whatever_the_generation_config_says():
    """Qwen ships top_p 0.8 and top_k 20; a sampler that reads them does not draw from the softmax
    that the loss scores.

    A right sampler fails this chi-square test (31 degrees of freedom, bound 80) once in 300,000
    draws of the seed; a sampler at T = 0.7 or top_k = 20 gives several thousand.
    """
    model = tiny(scale=3.0)
    model.generation_config.update(temperature=0.7, top_p=0.8, top_k=20, do_sample=True)
    n = 20_000
    out = rollout.sample(model, Numbers(), ["5 6 7"], samples=n, max_new_tokens=1, seed=1)
    counts = out.completion_ids[:, 0].bincount(minlength=32).double()
    with torch.no_grad():
        p = model(torch.tensor([[5, 6, 7]])).logits[0, -1].double().softmax(-1)
    assert float(((counts - n * p) ** 2 / (n * p)).sum()) < 80
    assert p.min() * n > 5  # where the chi-square is fair


@pytest.mark.parametrize("options, kept", [
    ({"top_k": 2}, 2), ({"top_p": 0.79}, 2), ({"top_p": 0.81}, 3), ({"top_p": 0.5}, 1),
    ({"temperature": 0}, 1)])
def test_cut_offs_keep_what_they_should(options, kept):
    """p = .5, .3, .15, .05: the nucleus of 0.79 is the first two, of 0.81 the first three."""
    p = torch.tensor([.05, .5, .15, .3])
    u = (torch.arange(4000).double() + 0.5) / 4000
    ids, logprobs = rollout.draw(p.log().expand(4000, 4), u, **{"temperature": 1.0, **options})
    support = [1, 3, 2, 0][:kept]
    q = p[support] / p[support].sum()
    frequencies = ids.bincount(minlength=4)[support] / 4000
    torch.testing.assert_close(frequencies, q, atol=6e-4, rtol=0)
    torch.testing.assert_close(logprobs, p[ids].log())  # of the full softmax, not the cut one


def test_rare_tokens_of_a_large_vocabulary_are_hit_exactly():
    """One token of 0.999, and Qwen's other 151,935 share the rest: u in the middle of a token's
    share must draw that token. Sums in fp32, whose steps near 1 are 9 shares wide, miss it."""
    V, k = 151_936, torch.arange(1, 151_936, 10_000)           # (16,)
    logits = torch.zeros(V)                                    # (V,)
    logits[0] = math.log(999 * (V - 1))
    first = math.exp(float(logits[0]))
    u = (first + k.double() - .5) / (first + V - 1)            # (16,)
    ids, _ = rollout.draw(logits.expand(len(k), V), u)
    assert torch.equal(ids, k)


def test_temperature_zero_is_the_argmax():
    model = tiny()
    out = rollout.sample(model, Numbers(), ["5 6"], max_new_tokens=6, temperature=0)
    ids = [5, 6]
    for token in out.completion_ids[0, :out.lengths[0]].tolist():
        with torch.no_grad():
            assert int(model(torch.tensor([ids])).logits[0, -1].argmax()) == token
        ids.append(token)


def test_a_text_depends_on_neither_batch_nor_neighbours():
    """Random numbers drawn in batch order make every result a function of --batch-size."""
    model = tiny()
    options = {"samples": 4, "max_new_tokens": 15, "seed": 7}
    together = rollout.sample(model, Numbers(), PROMPTS, **options)
    in_parts = rollout.sample(model, Numbers(), PROMPTS, batch_size=4, **options)
    alone = rollout.sample(model, Numbers(), [PROMPTS[1]], keys=[1], **options)
    assert together.texts == in_parts.texts and together.texts[4:8] == alone.texts
    assert torch.equal(together.lengths, in_parts.lengths)
    assert len(set(together.texts)) > 6  # and the rows do differ
    other = rollout.sample(model, Numbers(), PROMPTS, **{**options, "seed": 8})
    assert other.texts != together.texts


def test_uniforms_are_uniform_and_uncorrelated():
    """Mean 1/2, variance 1/12, no correlation along rows, prompts or positions (5 sigma each)."""
    keys = seeds.row_keys(0, list(range(100)), 10)
    u = torch.stack([seeds.uniforms(keys, t) for t in range(100)])  # (100, 1000)
    n = u.numel()
    assert 0 < u.min() and u.max() < 1
    assert abs(float(u.mean()) - .5) < 5 * math.sqrt(1 / 12 / n)
    assert abs(float(u.var()) - 1 / 12) < 5 * math.sqrt(1 / 180 / n)
    c = u - .5
    for a, b in ((c[1:], c[:-1]), (c[:, 1:], c[:, :-1]), (c[:, 10:], c[:, :-10])):
        assert abs(float((a * b).mean() * 12)) < 5 / math.sqrt(a.numel())


def test_left_padding_changes_nothing():
    """The same prompt alone and beside one that is 7 tokens longer: same text, same log-probs."""
    model = tiny()
    alone = rollout.sample(model, Numbers(), ["5 6 7"], keys=[0], samples=3, max_new_tokens=12)
    padded = rollout.sample(model, Numbers(), ["5 6 7", "8 9 10 11 12 13 14 15 16 17"], samples=3,
                            max_new_tokens=12)
    assert padded.texts[:3] == alone.texts and not padded.prompt_mask[0, :7].any()
    T = alone.logprobs.shape[1]
    for beside, by_itself in ((padded.logprobs, alone.logprobs),
                              (scores(model, padded), scores(model, alone))):
        torch.testing.assert_close(beside[:3, :T], by_itself, atol=1e-4, rtol=0)


def test_lengths_count_the_stop_token_even_when_it_is_the_padding():
    """With pad == eos, a mask made from ids erases the stop token, and nobody learns to stop."""
    model = tiny()
    tokenizer = Numbers()
    tokenizer.pad_token_id = 1
    out = rollout.sample(model, tokenizer, PROMPTS, samples=8, max_new_tokens=20)
    for row, n, finished, on in zip(out.completion_ids, out.lengths, out.finished,
                                    out.completion_mask):
        stops = (row == 1).nonzero()[:, 0]
        assert bool(finished) == (len(stops) > 0 and n == stops[0] + 1)
        assert finished or n == 20
        assert on.sum() == n and on[:n].all()
    assert out.finished.sum() > 3


def test_every_stop_id_counts():
    model = tiny()
    model.generation_config.eos_token_id = [1, 9]
    assert rollout.stop_ids(model, Numbers()) == [1, 9]
    out = rollout.sample(model, Numbers(), PROMPTS, samples=8, max_new_tokens=20)
    assert any(9 in row[:n].tolist() for row, n in zip(out.completion_ids, out.lengths))
    assert all(9 not in row[:n - 1].tolist() for row, n in zip(out.completion_ids, out.lengths))


def test_sampling_restores_the_mode_and_leaves_no_graph():
    model = tiny().train()
    out = rollout.sample(model, Numbers(), ["5 6"], max_new_tokens=3)
    assert model.training and not out.logprobs.requires_grad
    model.gradient_checkpointing_enable({"use_reentrant": False})
    again = rollout.sample(model, Numbers(), ["5 6"], max_new_tokens=3)
    assert again.texts == out.texts  # the cache survived the checkpointing


def test_bad_requests_are_refused():
    for prompts, options in (([], {}), (["5", ""], {}), (["5"], {"samples": 0})):
        with pytest.raises(ValueError):
            rollout.sample(tiny(), Numbers(), prompts, **{"max_new_tokens": 2, **options})


def test_a_sliding_window_is_not_used_up_by_the_gap_after_a_short_prompt():
    """The window counts cache slots: 27 of padding beside a prompt of 3 would hide all of it.

    The sampler was 1.3 nats off the scorer there; prompts of unequal length now go apart.
    """
    model = tiny("gemma3", sliding_window=8)
    prompts = ["5 6 7", " ".join(str(3 + i % 20) for i in range(30)), "8 9 10"]
    out = rollout.sample(model, Numbers(), prompts, samples=3, max_new_tokens=30, seed=2)
    assert (scores(model, out) - out.logprobs).abs().max() < 1e-5


def test_the_cache_holds_keys_in_the_values_dtype():
    """Under autocast a normalised key comes in fp32: half as much memory again, for nothing."""
    cache = rollout.Cache()
    cache.update(torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4, dtype=torch.bfloat16), 0)
    assert cache.layers[0].keys.dtype == torch.bfloat16


def test_a_box_again_and_again_up_to_the_cut_earns_nothing():
    """Cut off, and two boxes: both are needed. (Stopped, the last of several boxes is the answer;
    cut off behind its first one, a completion may have been about to stop.)"""
    one, two = r"so \boxed{7} and", r"so \boxed{7}. \boxed{7}. \box"
    assert rollout.rewardable([one, two, one, two, ""], [True, True, False, False, False]) == [
        one, two, one, "", ""]
