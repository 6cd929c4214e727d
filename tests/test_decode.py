"""The fast decode step against Hugging Face's forward and against the simple loop, on a CPU."""
import functools
import importlib.util
import random

import pytest
import torch
from test_rollout import PROMPTS, Numbers, tiny

import rollout
from engine import decode, graphs


@pytest.mark.parametrize("architecture", ["qwen3", "qwen2", "llama"])
@pytest.mark.parametrize("tied", [True, False])
def test_logits_of_a_decode_step_are_the_model_s(architecture, tied):
    """Each architecture hides its own term: biases in Qwen2, q and k norms in Qwen3."""
    model = tiny(architecture, tied)
    with torch.no_grad():
        for name, p in model.named_parameters():  # norms of 1 and biases of 0 would hide mistakes
            if p.ndim == 1:
                g = torch.Generator().manual_seed(len(name))
                p.add_(torch.randn(p.shape, generator=g) * .3)
        ids, mask = rollout.pad([[3, 4, 5, 6, 7], [8, 9]], 0, "right")
        decoder = decode.Decoder(model, 4, 12)
        decoder.keys.fill_(3.), decoder.values.fill_(3.)  # what nobody wrote must not be read
        decoder.prefill(model, rollout.Cache(config=model.config), ids, mask, 2)
        said = torch.tensor([[5, 11, 3], [2, 7, 13], [4, 4, 9], [6, 1, 2]])  # (4, 3)
        starts = mask.sum(1).repeat_interleave(2)
        for i in range(3):
            got = decoder.logits(said[:, i], torch.arange(4), starts + i, starts + i + 1)
            for row in range(4):
                whole = torch.cat([ids[row // 2][mask[row // 2]], said[row, :i + 1]])
                want = model(whole[None]).logits[0, -1]
                torch.testing.assert_close(got[row], want, atol=2e-5, rtol=1e-5)


def test_a_graph_has_room_for_all_that_are_unfinished():
    """Never fewer rows than are unfinished, never more than before; many rows are left sooner."""
    for R in (1, 7, 8, 9, 64, 100, 512, 513, 700, 1000, 4400):
        for alive in range(1, R + 1):
            fewer = decode.rows_of_graph(alive, R)
            assert alive <= fewer <= R
            few = max(8, 2 * alive + 1)
            assert fewer <= (max(alive + 63, alive / 0.75) if R > 512 else few)
    found = [decode.rows_of_graph(*x) for x in ((51, 100), (50, 100), (3, 100), (3300, 4400),
                                                (3301, 4400), (9, 4400))]
    assert found == [100, 50, 6, 3328, 4400, 16]


def test_the_last_unfinished_row_that_fits_a_smaller_graph_is_in_it(monkeypatch):
    """Nobody stops by itself. From token 16 on, 8 of 16 rows go on, in a graph of 8 rows."""
    model = tiny("qwen3", True)
    monkeypatch.setattr(rollout, "stop_ids", lambda *_: [-1])
    sample = functools.partial(rollout.sample, model, Numbers(), ["5 6", "7 8 9"], samples=8,
                               seed=5, max_new_tokens=[16, 40])
    want = sample()
    monkeypatch.setattr(rollout, "generate", functools.partial(
        decode.generate, draw=rollout.draw, new_cache=rollout.Cache))
    got = sample()
    assert got.completion_ids.tolist() == want.completion_ids.tolist()
    assert got.lengths.tolist() == [16] * 8 + [40] * 8


def test_many_rows_are_drawn_as_the_simple_loop_draws_them(monkeypatch):
    """More than 512 rows, of which a few stop at every step."""
    model = tiny("qwen3", True)
    sample = functools.partial(rollout.sample, model, Numbers(), PROMPTS, samples=300, seed=5,
                               max_new_tokens=40)
    want = sample()
    monkeypatch.setattr(rollout, "generate", functools.partial(
        decode.generate, draw=rollout.draw, new_cache=rollout.Cache))
    computed = []  # rows of each step
    logits = decode.Decoder.logits

    def noted(self, token, *rest):
        computed.append(len(token))
        return logits(self, token, *rest)

    monkeypatch.setattr(decode.Decoder, "logits", noted)
    got = sample()
    assert got.completion_ids.tolist() == want.completion_ids.tolist()
    assert 450 < max(x for x in computed if x < 900) < 900  # a graph of 64 k rows took over


def test_which_prompt_has_the_keys_of_each_prompt():
    """Against a double loop; prompts of two letters, so many begin alike, and some are equal."""
    draw = random.Random(0)
    prompts = [[draw.randrange(2) for _ in range(draw.randrange(1, 6))] for _ in range(60)]
    whole = [one for one in prompts if not any(
        other[:len(one)] == one and len(other) > len(one) for other in prompts)]
    found = decode.longest_with(prompts)
    for one, i in zip(prompts, found):
        assert prompts[i] in whole and prompts[i][:len(one)] == one
    assert len(set(found)) == len(set(map(tuple, whole))) < 30


def test_what_begins_another_prompt_is_not_computed_again(monkeypatch):
    """The same texts, and the model reads 2 of 5 prompts: the fourth is the first again."""
    model = tiny("qwen3", True)
    read, slots = [], []
    prompts = [[5, 6, 7], [5, 6, 7, 8, 9], [3, 4], [5, 6, 7], [5]]
    sample = functools.partial(rollout.sample, model, Numbers(), prompts, samples=3, seed=5,
                               max_new_tokens=[20, 9, 30, 12, 25])
    want = sample()
    monkeypatch.setattr(rollout, "generate", functools.partial(
        decode.generate, draw=rollout.draw, new_cache=rollout.Cache))
    model.base_model.register_forward_pre_hook(lambda _, args: read.append(args[0].tolist()))
    built = decode.Decoder

    def noted(model, rows, some):
        slots.append(some)
        return built(model, rows, some)

    monkeypatch.setattr(decode, "Decoder", noted)
    got = sample()
    assert slots == [2 + 30]  # the longest row, not the longest prompt and the largest limit
    assert sorted(read[0]) == [[3, 4, 0, 0, 0], [5, 6, 7, 8, 9]] and len(read) == 1
    assert got.completion_ids.tolist() == want.completion_ids.tolist()
    torch.testing.assert_close(got.logprobs, want.logprobs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"temperature": .7}, {"temperature": 0.}, {"top_p": .8},
                                      {"top_k": 3}])
def test_the_fast_loop_draws_what_the_simple_loop_draws(monkeypatch, settings):
    """Same keys, same texts: stops, compaction to half the rows and row order included."""
    model = tiny("qwen3", True)

    def drawn():
        limits = [60] * (len(PROMPTS) - 1) + [7]
        return rollout.sample(model, Numbers(), PROMPTS, samples=16, max_new_tokens=limits, seed=5,
                              **settings)
    want = drawn()
    monkeypatch.setattr(rollout, "generate", functools.partial(
        decode.generate, draw=rollout.draw, new_cache=rollout.Cache))
    got = drawn()
    assert got.completion_ids.tolist() == want.completion_ids.tolist()
    assert got.lengths.tolist() == want.lengths.tolist()
    assert got.finished.tolist() == want.finished.tolist()
    torch.testing.assert_close(got.logprobs, want.logprobs, atol=1e-5, rtol=1e-5)
    assert settings or len(set(got.lengths.tolist())) > 5  # some stop early: rows do move
    assert got.lengths[-16:].max() == 7


def test_the_draw_by_blocks_inverts_the_same_distribution_function():
    """Hierarchical search == plain search, V not a multiple of the block, mass on few tokens."""
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(400, 1000, generator=g) * 6
    logits[:, 17] = -float("inf")
    logits[:200, 256:512] = -float("inf")  # a whole block of no probability
    logits[:100, 768:] = -float("inf")     # and the last one
    u = torch.rand(400, generator=g, dtype=torch.float64)
    want, want_logprobs = rollout.draw(logits, u, .8)
    got, logprobs = decode.draw_by_blocks(logits, u, .8)
    assert (got == want).float().mean() > .99  # a rounding apart at the seams
    upto = (logits.double() / .8).softmax(-1).cumsum(-1)  # (400, 1000)
    row = torch.arange(400)
    assert (u <= upto[row, got] + 1e-6).all()
    assert (u >= torch.where(got > 0, upto[row, got - 1], 0) - 1e-6).all()
    same = got == want
    torch.testing.assert_close(logprobs[same], want_logprobs[same], atol=1e-5, rtol=1e-5)
    edges = torch.tensor([1e-300, 1 - 2 ** -53], dtype=torch.float64)
    ids, logprobs = decode.draw_by_blocks(torch.tensor([[-torch.inf, 0., -torch.inf]]).expand(2, 3),
                                          edges, 1.)
    assert ids.tolist() == [1, 1] and logprobs.tolist() == [0, 0]


@pytest.mark.parametrize("V", [1000, 1024, 3])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_rows_of_nan_get_ids_in_range(V, bad):
    """Ids in range and log-probs that sample() refuses; an id out of range would end a
    process on a card. The rows beside it are drawn as without it."""
    logits = torch.randn(4, V, generator=torch.Generator().manual_seed(0))
    u = torch.tensor([.1, .5, .9, 1 - 2 ** -53], dtype=torch.float64)
    want, _ = decode.draw_by_blocks(logits, u, 1.)
    logits[1, V // 2] = logits[3, 0] = bad
    logits[3] *= bad  # no finite number
    for draw in (rollout.draw, decode.draw_by_blocks):
        ids, logprobs = draw(logits, u, 1.)
        assert ids.min() >= 0 and ids.max() < V
        assert logprobs.isfinite().tolist() == [True, False, True, False]
        assert ids[[0, 2]].tolist() == want[[0, 2]].tolist()


def test_nan_weights_are_refused_in_words(monkeypatch):
    model = tiny("qwen3", True)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] = torch.nan
    monkeypatch.setattr(rollout, "generate", functools.partial(
        decode.generate, draw=rollout.draw, new_cache=rollout.Cache))
    with pytest.raises(FloatingPointError, match="logits are not finite"):
        rollout.sample(model, Numbers(), PROMPTS, samples=2, max_new_tokens=4)


@pytest.fixture
def built(monkeypatch):
    """What torch.compile builds from here on: a list that grows by one a compilation."""
    modules, inductor = [], torch.compile

    def backend(module, inputs):
        modules.append(module)
        return module.forward

    monkeypatch.setattr(torch, "compile", lambda f, **options: inductor(
        f, backend=backend, **options))
    torch._dynamo.reset()
    yield modules
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["gated", "add_norm", "draw_by_keys"])
def test_what_is_compiled_knows_its_width_and_takes_any_number_of_rows(built, name):
    """Were the width free, too, Inductor could find a kernel tuned for a model of other widths on
    its disk: on a CPU, `slope` at 151,936 takes the one made at 61. Nothing else is free, either:
    the length of a block once was."""
    made = decode.compiled(getattr(decode, name))
    for rows, width, builds in [(5, 512, 1), (7, 512, 1), (3, 512, 1), (5, 256, 2)]:
        x = torch.rand(rows, width)
        more = {"gated": [],
                "add_norm": [torch.rand(rows, width), torch.rand(width), 1e-6, torch.float32],
                "draw_by_keys": [torch.arange(rows), torch.arange(rows), .7]}[name]
        torch.testing.assert_close(made(x, *more), getattr(decode, name)(x, *more))
        assert len(built) == builds
        free = [node for node in built[-1].graph.nodes if node.op == "placeholder"
                and isinstance(node.meta["example_value"], torch.SymInt)]
        assert len(free) == 1  # the number of rows


def test_the_head_s_pieces_know_their_width_and_are_log_softmax(built):
    """graphs.py itself, loaded once more with a backend that counts; against log_softmax and
    autograd, in bf16 as they get it."""
    spec = importlib.util.spec_from_file_location("graphs_again", graphs.__file__)
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    for rows, width, builds in [(5, 512, 2), (7, 512, 2), (3, 512, 2), (5, 256, 4)]:
        logits = (4 * torch.randn(rows, width)).bfloat16()
        y, g = torch.randint(width, (rows,)), torch.randn(rows)
        leaf = logits.float().requires_grad_()
        logp = (leaf / 0.7).log_softmax(-1)  # (rows, width)
        want = logp.gather(1, y[:, None])[:, 0]
        slope, = torch.autograd.grad((g * want).sum(), leaf)
        got, entropy, normaliser = again.read(logits, y, 0.7)
        torch.testing.assert_close(got, want.detach())
        torch.testing.assert_close(entropy, -(logp.exp() * logp).sum(-1).detach())
        torch.testing.assert_close(again.slope(logits, y, normaliser, g, 0.7).float(), slope,
                                   atol=1e-3, rtol=1e-2)
        assert len(built) == builds


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["qwen3", "qwen2", "llama"])
def test_layers_are_compiled_once_for_all_layers_rows_and_widths(architecture):
    """torch used to trace a layer twice, because its norms have a float, epsilon. One row is a case
    of its own, which torch always compiles apart."""
    torch._dynamo.reset()
    model, counted = tiny(architecture, True), torch._dynamo.utils.counters["aot_autograd"]
    H, before = model.config.hidden_size, counted["total"]
    inputs = [torch.randn(rows, width, H) for rows, width in [(3, 11), (2, 23), (5, 7)]]

    def run(x):
        x = x.clone().requires_grad_()                     # (rows, width, H)
        out = graphs.through_layers(model.base_model, x)   # (rows, width, H)
        return out, torch.autograd.grad(out.square().sum(), x)[0]

    plain = [run(x) for x in inputs]
    with torch._dynamo.config.patch(specialize_float=False):  # and back, afterwards
        graphs.compile_layers(model.base_model, backend="aot_eager")
        for x, want in zip(inputs, plain):
            for got, value in zip(run(x), want):
                torch.testing.assert_close(got, value)
            assert counted["total"] - before == 1
    torch._dynamo.reset()
