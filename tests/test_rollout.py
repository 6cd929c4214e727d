"""The sampler is the policy, a row depends on its own key alone, and lengths are counted."""
import contextlib
import math
from types import SimpleNamespace

import pytest
import torch
import transformers

import grpo
import rollout
from engine import seeds
from logprobs import forward_pass


class Numbers:
    """A tokenizer of space-separated integers; 0 pads, 1 stops, both special. Like Llama's, it
    begins with a BOS, 2, unless it is told not to."""
    pad_token_id, eos_token_id = 0, 1

    def __call__(self, texts, add_special_tokens=True):
        ids = [[2] * add_special_tokens + [int(x) for x in text.split()] for text in texts]
        return SimpleNamespace(input_ids=ids)

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


def test_a_nucleus_that_is_reached_exactly_is_full():
    """Four tokens of a quarter each: two of them reach 0.5, and 0.5 is not below 0.5."""
    u = (torch.arange(400).double() + 0.5) / 400
    for top_p, kept in ((0.5, 2), (0.75, 3), (0.75 + 1e-9, 4)):
        ids, _ = rollout.draw(torch.zeros(400, 4), u, top_p=top_p)
        assert ids.bincount(minlength=4).nonzero().numel() == kept


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


class Bar:
    """Counts what a progress bar is told."""
    def __init__(self, total, **_):
        self.total, self.n = total, 0

    def __enter__(self):
        Bar.last = self
        return self

    def __exit__(self, *_):
        pass

    def update(self, n):
        self.n += n


@pytest.mark.parametrize("batch_size", [None, 8])
def test_a_row_ends_at_the_limit_of_its_own_prompt(batch_size, monkeypatch):
    """The tokens before the limit are those of a longer call. A row that is cut has not finished,
    also if it would draw its stop just after the limit. No row is asked for more."""
    monkeypatch.setattr(rollout, "tqdm", Bar)
    model, prompts = tiny(), [*PROMPTS, *PROMPTS]
    options = {"samples": 4, "keys": range(6), "seed": 0}
    whole = rollout.sample(model, Numbers(), prompts, max_new_tokens=40, **options)
    limits = [11, 40, 7, 4, 20, 1]
    found = rollout.sample(model, Numbers(), prompts, max_new_tokens=limits,
                           batch_size=batch_size, **options)
    for row, ids in enumerate(whole.sampled):
        limit = limits[row // 4]
        assert found.sampled[row] == ids[:limit]
        assert found.finished[row] == (whole.finished[row] and len(ids) <= limit)
        assert found.logprobs[row].count_nonzero() == found.lengths[row]
    assert (Bar.last.total, Bar.last.n) == (4 * sum(limits), found.lengths.sum())
    ends = [n - limits[row // 4] for row, n in enumerate(whole.lengths.tolist())]
    assert min(ends) < 0 < max(ends) and 1 in ends and 0 in ends  # every kind of row is there


def row_by_row(model, prompts, samples, new, temperature, seed, keys, pad_id, stops):
    """`sample` without a cache or a batch: each token of each row from the whole model's logits.
    Returns the fields of Rollouts as lists."""
    found = []
    for prompt, key in zip(prompts, keys):
        for number in seeds.row_keys(seed, [key], samples):
            ids, logprobs = [], []
            while len(ids) < new and not (ids and ids[-1] in stops):
                with torch.no_grad():
                    logits = model(torch.tensor([prompt + ids])).logits[0, -1:]
                u = seeds.uniforms(number[None], len(ids))
                token, logprob = rollout.draw(logits, u, temperature)
                ids.append(int(token))
                logprobs.append(float(logprob))
            found.append((prompt, ids, logprobs))
    P, T = max(map(len, prompts)), max(len(ids) for _, ids, _ in found)
    return dict(
        prompt_ids=[[pad_id] * (P - len(prompt)) + prompt for prompt, _, _ in found],
        prompt_mask=[[t >= P - len(prompt) for t in range(P)] for prompt, _, _ in found],
        completion_ids=[ids + [pad_id] * (T - len(ids)) for _, ids, _ in found],
        lengths=[len(ids) for _, ids, _ in found], finished=[i[-1] in stops for _, i, _ in found],
        logprobs=[said + [0.0] * (T - len(said)) for _, _, said in found])


@pytest.fixture(scope="module")
def by_hand():
    """(model, prompts by their ids, in an order that no length sorts, all fields of 12 rows)."""
    model, prompts = tiny(), [[5, 6, 7], [8] * 9, [3], [11, 12, 13, 14]]
    model.generation_config.eos_token_id = [1, 9]
    return model, prompts, row_by_row(model, prompts, 3, 30, 0.8, 5, [4, 0, 7, 2], 7, [1, 9])


@pytest.mark.parametrize("batch_size", [None, 1, 3, 7, 8, 100])
def test_all_of_it_is_the_sampler_without_cache_and_batch(batch_size, by_hand):
    """Every field of every row, under keys of their own, with a padding id that is a token like any
    other; the longest completion of one batch is not that of another."""
    (model, prompts, right), tokenizer = by_hand, Numbers()
    tokenizer.pad_token_id = 7
    longest = [max(right["lengths"][i:i + 3]) for i in range(0, 12, 3)]
    assert len(set(longest)) > 1
    out = rollout.sample(model, tokenizer, prompts, samples=3, max_new_tokens=30, temperature=0.8,
                         seed=5, keys=[4, 0, 7, 2], batch_size=batch_size)
    for name, expected in right.items():
        value = getattr(out, name)
        assert value.dtype == {"logprobs": torch.float32, "prompt_mask": torch.bool,
                               "finished": torch.bool}.get(name, torch.int64)
        torch.testing.assert_close(value.double(), torch.tensor(expected).double(), atol=1e-5,
                                   rtol=0)
    spoken = [ids[:n] for ids, n in zip(right["completion_ids"], right["lengths"])]
    assert out.sampled == spoken and out.texts == tokenizer.batch_decode(spoken)
    assert out.sizes == [(len(prompts[i // 3]), n) for i, n in enumerate(right["lengths"])]
    assert len(set(right["lengths"])) > 3 and len(set(right["finished"])) == 2


def test_rows_leave_the_batch_a_quarter_at_a_time(by_hand, monkeypatch):
    """Copying the cache at every stop would cost more than the rows that have stopped."""
    (model, prompts, right), left, select = by_hand, [], rollout.select_rows

    def noted(cache, keep):
        left.append(len(keep))
        select(cache, keep)

    monkeypatch.setattr(rollout, "select_rows", noted)
    rollout.sample(model, Numbers(), prompts, samples=3, max_new_tokens=30, temperature=0.8, seed=5,
                   keys=[4, 0, 7, 2])
    rows, expected = 12, []
    for t in range(1, 30):
        alive = sum(n > t for n in right["lengths"])
        if alive <= 0.75 * rows:
            rows = alive
            expected.append(rows)
    assert left == expected and len(left) > 2


def test_every_tensor_is_made_where_the_model_is(by_hand):
    """Where nothing is said a tensor is made on the meta device here, which has no numbers."""
    model, prompts, _ = by_hand
    options = dict(samples=3, max_new_tokens=30, batch_size=6, top_p=0.9, top_k=9)
    right = rollout.sample(model, Numbers(), prompts, **options)
    with torch.device("meta"):
        out = rollout.sample(model, Numbers(), prompts, **options)
        assert torch.equal(out.completion_mask, right.completion_mask)
    for name in ("prompt_ids", "prompt_mask", "completion_ids", "lengths", "finished", "logprobs"):
        assert torch.equal(getattr(out, name), getattr(right, name))


def test_keys_are_the_places_of_the_prompts_if_none_are_given():
    options = dict(samples=2, max_new_tokens=8, seed=3)
    out = rollout.sample(tiny(), Numbers(), PROMPTS, **options)
    same = rollout.sample(tiny(), Numbers(), PROMPTS, keys=[0, 1, 2], **options)
    other = rollout.sample(tiny(), Numbers(), PROMPTS, keys=[1, 2, 3], **options)
    assert out.texts == same.texts != other.texts


class Card:
    """What a card tells the sampler: bytes that are free, and recordings that can be let go."""
    config = "its own"

    def __init__(self, monkeypatch, free, recorded=None):
        self.free, self.released = free, 0
        monkeypatch.setattr(rollout, "cache_bytes", {"its own": 10}.get)
        monkeypatch.setattr(rollout, "free_bytes", lambda model: model.free)
        if recorded is not None:
            self.graphs = self
            self.recorded = recorded

    def release(self):
        self.released += 1
        self.free = 10_000


@pytest.mark.parametrize("free, wanted, fit", [
    (10_000, 7, 7), (10_000, 8, 7), (9_999, 7, 6), (100, 5, 1), (0, 5, 1), (10**9, 64, 64)])
def test_a_batch_takes_seven_tenths_of_what_is_free(free, wanted, fit, monkeypatch):
    """A prompt of 100 slots at 10 bytes takes 1,000; one prompt is tried whatever is free."""
    assert rollout.prompts_that_fit(Card(monkeypatch, free), wanted, 100) == fit


@pytest.mark.parametrize("wanted, recorded, fit, released", [
    (7, {1: 2}, 7, 1), (4, {1: 2}, 4, 1), (3, {1: 2}, 3, 0), (7, {}, 3, 0), (3, {}, 3, 0)])
def test_recordings_go_where_the_batch_would_not_fit_beside_them(wanted, recorded, fit, released,
                                                                monkeypatch):
    """4,286 free bytes hold three prompts, and 10,000 once the recordings are gone."""
    card = Card(monkeypatch, 4_286, recorded)
    assert (rollout.prompts_that_fit(card, wanted, 100), card.released) == (fit, released)


class LikeACard(str):
    """The CPU, which says that it is a card."""
    type = "cuda"


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
@pytest.mark.parametrize("fast", [False, True])
def test_on_a_card_the_fast_loop_samples_what_fits(fast, monkeypatch, capsys):
    """Two prompts at a time, asked for with the slots that the longest takes; the fast loop where
    it knows the model, else the simple one, which is said once. In the simple loop a row of 1 + 30
    tokens begins after the longest prompt, of 7."""
    options = dict(samples=2, max_new_tokens=8, seed=3)
    plain = rollout.sample(tiny(), Numbers(), PROMPTS, **options)
    model, asked, loops = tiny(), [], []
    model.__class__ = type("Card", (type(model),), {"device": LikeACard("cpu")})
    simple = rollout.generate

    def loop(*args, **more):
        loops.append((len(args[1]), more))
        return simple(*args)

    monkeypatch.setattr(rollout, "prompts_that_fit", lambda *about: asked.append(about) or 2)
    monkeypatch.setattr(rollout.decode, "supports", lambda model: fast)
    monkeypatch.setattr(rollout.decode if fast else rollout, "generate", loop)
    rollout.say_once.cache_clear()
    for _ in range(2):
        assert rollout.sample(model, Numbers(), PROMPTS, **options).texts == plain.texts
    rollout.sample(model, Numbers(), PROMPTS, batch_size=2, **options)
    assert asked == [(model, 3, 2 * (7 + 8))] * 2 + [(model, 1, 2 * (7 + 8))]
    rollout.sample(model, Numbers(), PROMPTS, **{**options, "max_new_tokens": [8, 30, 8]})
    assert asked[3:] == [(model, 3, 2 * ((1 if fast else 7) + 30))]
    more = dict(draw=rollout.draw, new_cache=rollout.Cache) if fast else {}
    assert loops == [(2, more), (1, more)] * 4
    said = "qwen3: no fast decode step, the simple loop samples\n"
    assert capsys.readouterr().out == said * (not fast)


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


@pytest.mark.parametrize("side, ids, mask", [
    ("left", [[9, 9, 3], [4, 9, 6], [9, 9, 9]], [[0, 0, 1], [1, 1, 1], [0, 0, 0]]),
    ("right", [[3, 9, 9], [4, 9, 6], [9, 9, 9]], [[1, 0, 0], [1, 1, 1], [0, 0, 0]])])
def test_lists_padded_by_hand(side, ids, mask):
    """A token that is the padding's id stays real. A list may be empty."""
    got, real = rollout.pad([[3], [4, 9, 6], []], 9, side)
    assert (got.tolist(), real.int().tolist()) == (ids, mask)
    assert got.dtype == torch.int64 and real.dtype == torch.bool


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


@pytest.mark.parametrize("device, enabled", [("cpu", False), ("cuda", True)])
@pytest.mark.parametrize("context", [
    lambda device: rollout.sampling(SimpleNamespace(
        device=device, training=False, eval=lambda: None, train=lambda mode: None)),
    grpo.autocast])
def test_a_card_multiplies_in_bf16_and_a_cpu_in_fp32(context, device, enabled, monkeypatch):
    """The sampler and the scorer alike: what PyTorch takes on a card by default is fp16."""
    asked = []
    monkeypatch.setattr(torch, "autocast", lambda device, dtype, enabled=True: asked.append(
        (device, dtype, enabled)) or contextlib.nullcontext())
    with context(torch.device(device)):
        pass
    assert asked == [(device, torch.bfloat16, enabled)]


@pytest.mark.parametrize("width", [2, 31, 32, 33, 34, 60])
def test_padding_opens_no_thought_and_the_prompt_s_first_token_may(width):
    """Token 5 is <think>, 6 </think>. A box in a thought that never ends is no answer."""
    words = {5: "<think>", 6: "</think>"}
    tokenizer = SimpleNamespace(decode=lambda ids: " ".join(words.get(i, "x") for i in ids))
    prompts, texts = [[5, 9], [7, 9], [5, 6], [6, 5]], ["a", "b", "c", "d</think> e"]
    ids, mask = rollout.pad([*prompts, [7] * width], 5, "left")
    asked = SimpleNamespace(prompt_ids=ids, prompt_mask=mask, texts=[*texts, "f"])
    assert rollout.answers(asked, tokenizer) == ["", "b", "c", "d</think> e", "f"]


LONG = {"rope_type": "longrope", "original_max_position_embeddings": 32}


@pytest.mark.parametrize("config, most, why", [
    ({}, math.inf, "the model's context of inf"),
    ({"max_position_embeddings": None}, math.inf, "the model's context of inf"),
    ({"max_position_embeddings": 4096}, 4096, "the model's context of 4,096"),
    ({"max_position_embeddings": 64, "rope_parameters": {"rope_type": "yarn"}}, 64, "the model's"),
    ({"max_position_embeddings": 64, "rope_parameters": LONG}, 32, "32, where its longrope RoPE "
     "changes and cached keys do not"),
    ({"max_position_embeddings": 64, "rope_parameters": {"full": {"rope_type": "default"},
                                                         "local": LONG}}, 32, "32, where"),
    ({"max_position_embeddings": 64, "rope_scaling": {"type": "dynamic"}}, 64, "64, where its dyn"),
    ({"max_position_embeddings": 64, "original_max_position_embeddings": 48,
      "rope_scaling": {"type": "dynamic"}}, 48, "48, where its dynamic"),
    ({"max_position_embeddings": 64, "original_max_position_embeddings": 48,
      "rope_parameters": {"rope_type": "default"}}, 64, "the model's context of 64")])
def test_how_long_a_row_may_be_and_why(config, most, why):
    found, said = rollout.longest_row(SimpleNamespace(**config))
    assert found == most and said.startswith(why)


def test_what_does_not_fit_is_said_to_the_token():
    config = SimpleNamespace(max_position_embeddings=2048)
    rollout.refuse_beyond_context(config, 2000, 48)
    rollout.refuse_beyond_context(SimpleNamespace(), 10**9, 10**9)
    for prompt, new, fit in ((2000, 49, 48), (2048, 1, 0), (3000, 1, 0)):
        with pytest.raises(rollout.BadInput) as refused:
            rollout.refuse_beyond_context(config, prompt, new)
        assert str(refused.value) == (
            f"--max-new-tokens {new}: after a prompt of {prompt:,} tokens they "
            f"exceed the model's context of 2,048; at most {fit} fit.")


def test_bad_requests_are_refused():
    for prompts, options in (([], {}), (["5", ""], {}), (["5"], {"samples": 0}),
                             (["5", "6"], {"max_new_tokens": [2, 0]}),
                             (["5", "6"], {"max_new_tokens": [2]})):
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


@pytest.mark.parametrize("kind, most, more", [
    ("gemma3", 32, {"sliding_window": 32}),
    ("llama", 128, {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.}})])
def test_each_row_alone_fits_a_window_or_a_context_that_rows_together_do_not(kind, most, more):
    """Limits that end at `most`. The gap after a short prompt would use up the window. A row that
    has ended would leave the context, where this RoPE changes for all rows."""
    model = tiny(kind, **more)
    long = most - 4
    prompts = ["5 6 7", " ".join(str(3 + i % 20) for i in range(long)), "8 9", "10", "11 12 13"]
    limits = [most - 3, 4, most - 2, most - 1, most - 3]
    out = rollout.sample(model, Numbers(), prompts, max_new_tokens=limits, seed=4)
    assert (scores(model, out) - out.logprobs).abs().max() < 1e-4
    assert out.lengths.max() > 20 and not out.finished[1]


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
