"""The fast decode step against Hugging Face's forward and against the simple loop, on a CPU."""
import pytest
import torch

import decode
import graphs
import rollout
from test_rollout import PROMPTS, Numbers, tiny


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
        decoder.prefill(model, ids, mask, 2)
        said = torch.tensor([[5, 11, 3], [2, 7, 13], [4, 4, 9], [6, 1, 2]])  # (4, 3)
        starts = mask.sum(1).repeat_interleave(2)
        for i in range(3):
            got = decoder.logits(said[:, i], torch.arange(4), starts + i, starts + i + 1)
            for row in range(4):
                whole = torch.cat([ids[row // 2][mask[row // 2]], said[row, :i + 1]])
                want = model(whole[None]).logits[0, -1]
                torch.testing.assert_close(got[row], want, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"temperature": .7}, {"temperature": 0.}, {"top_p": .8},
                                      {"top_k": 3}])
def test_the_fast_loop_draws_what_the_simple_loop_draws(monkeypatch, settings):
    """Same keys, same texts: stops, compaction to half the rows and row order included."""
    model = tiny("qwen3", True)

    def drawn():
        return rollout.sample(model, Numbers(), PROMPTS, samples=16, max_new_tokens=60, seed=5,
                              **settings)
    want = drawn()
    monkeypatch.setattr(rollout, "speak", decode.speak)
    got = drawn()
    assert got.completion_ids.tolist() == want.completion_ids.tolist()
    assert got.lengths.tolist() == want.lengths.tolist()
    assert got.finished.tolist() == want.finished.tolist()
    torch.testing.assert_close(got.logprobs, want.logprobs, atol=1e-5, rtol=1e-5)
    assert settings or len(set(got.lengths.tolist())) > 5  # some stop early: rows do move


def test_the_draw_by_blocks_inverts_the_same_distribution_function():
    """Hierarchical search == plain search, V not a multiple of the block, mass on few tokens."""
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(400, 1000, generator=g) * 6
    logits[:, 17] = -float("inf")
    u = torch.rand(400, generator=g, dtype=torch.float64)
    want, want_logprobs = rollout.draw(logits, u, .8)
    got, logprobs = decode.draw_by_blocks(logits, u, .8)
    assert (got == want).float().mean() > .99  # a rounding apart at the seams
    same = got == want
    torch.testing.assert_close(logprobs[same], want_logprobs[same], atol=1e-5, rtol=1e-5)
    edges = torch.tensor([1e-300, 1 - 2 ** -53], dtype=torch.float64)
    ids, logprobs = decode.draw_by_blocks(torch.tensor([[-torch.inf, 0., -torch.inf]]).expand(2, 3),
                                          edges, 1.)
    assert ids.tolist() == [1, 1] and logprobs.tolist() == [0, 0]


@pytest.mark.parametrize("name, more", [
    ("gated", []), ("add_norm", [(5, 512), (512,), 1e-6, torch.float32]),
    ("draw_by_blocks", [(5,), 0.7]), ("read", [(5,), 0.7]), ("slope", [(5,), (5,), (5,), 0.7])])
def test_what_is_compiled_knows_its_width_and_takes_any_number_of_rows(monkeypatch, name, more):
    """Were the width free, too, Inductor would find a kernel tuned for a vocabulary of 61 on disk
    and use it for one of 151,936. The numbers must be those of the function as it is written."""
    whole = (getattr(decode, name) if hasattr(decode, name)
             else getattr(graphs, name).__wrapped__)
    built, compile = [], torch.compile

    def backend(module, inputs):
        built.append(module)
        return module.forward

    monkeypatch.setattr(torch, "compile", lambda f, **options: compile(
        f, backend=backend, **options))
    torch._dynamo.reset()
    made = decode.compiled(whole)

    def both(rows, width):
        def argument(x):
            if not isinstance(x, tuple):
                return x
            shape = [{5: rows, 512: width}[n] for n in x]
            counts = name in ("read", "slope") and x is more[0]  # the ids of tokens
            return torch.randint(width, shape) if counts else torch.rand(shape)

        values = [argument((5, 512)), *map(argument, more)]
        got, want = made(*values), whole(*values)
        for one, other in zip(*((x if isinstance(x, tuple) else (x,)) for x in (got, want))):
            torch.testing.assert_close(one, other)

    both(5, 512), both(7, 512), both(3, 512)
    assert len(built) == 1
    both(5, 256)
    assert len(built) == 2
