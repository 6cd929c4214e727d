"""One forward by its parts: defaults, what is handed on, and what never waits for the card."""
import copy
from types import SimpleNamespace

import pytest
import torch
from test_grail import known_qwen3, known_rollouts

import logprobs
from logprobs import Forward, forward_pass, to_device, token_logprobs

HEAD = torch.nn.Linear(3, 4, bias=False)


def test_at_temperature_one_a_score_is_the_head_s_log_softmax():
    """Nothing is divided where no temperature is given; the entropy is -sum p log p."""
    hidden, ids = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0)), torch.ones(2, 5)
    ids, mask = ids.long(), torch.ones(2, 5, dtype=torch.bool)
    with torch.no_grad():
        expected = HEAD(hidden).log_softmax(-1)
        found, entropy = token_logprobs(hidden, HEAD, ids, mask)
    torch.testing.assert_close(found, expected[..., 1])
    torch.testing.assert_close(entropy, -(expected.exp() * expected).sum(-1))


def test_the_head_runs_on_512_tokens_at_a_time():
    seen = []
    hook = HEAD.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
    mask = torch.ones(3, 400, dtype=torch.bool)
    with torch.no_grad():
        token_logprobs(torch.zeros(3, 400, 3), HEAD, torch.zeros(3, 400).long(), mask)
    hook.remove()
    assert seen == [512, 512, 176]


def test_a_forward_s_defaults():
    """Temperature 1, an empty dict of metrics of its own; signs come of the advantages, unless they
    are given, and then the card is not asked."""
    tensors = [torch.zeros(1)] * 8
    one, other = (Forward(*tensors, HEAD, advantages=torch.tensor([-.5, 0, 2.])) for _ in range(2))
    assert one.temperature == 1.0 and one.signs == [-1, 0, 1]
    assert one.metrics == {} and one.metrics is not other.metrics
    assert Forward(*tensors, HEAD).signs is None
    given = Forward(*tensors, HEAD, advantages=torch.tensor([-.5]), signs="given")
    assert given.signs == "given"


def test_what_a_forward_hands_on():
    """Every position, the head, the layers and the body are the model's; the cache is off, for it
    would hold every key twice."""
    model, rollouts = known_qwen3(), known_rollouts()
    caches = []
    hook = model.base_model.register_forward_pre_hook(
        lambda module, args, options: caches.append(options["use_cache"]), with_kwargs=True)
    forward = forward_pass(model, rollouts, [0, 1], texts=["a", "b"])
    again = forward.layers(forward.embeddings)
    hook.remove()
    assert caches == [False, False]
    assert forward.body is model.base_model and forward.head is model.lm_head
    assert forward.temperature == 1.0 and forward.version is None and forward.texts == ["a", "b"]
    assert len(forward.hidden_states) == 4  # embeddings, three blocks
    assert forward.hidden_states[0] is forward.embeddings
    assert forward.sampled == [[4, 8, 15, 16, 23, 30, 10, 12, 20, 1],
                               [6, 21, 17, 13, 28, 30, 11, 1]]
    assert forward.position[:, :7].tolist() == [list(range(3, 10)), list(range(4, 11))]
    torch.testing.assert_close(again.gather(
        1, (forward.position - 1)[:, :, None].expand(-1, -1, 16)), forward.hidden)
    with torch.no_grad():
        logits = model(forward.ids).logits.log_softmax(-1)
    for row, first, n in ((0, 3, 10), (1, 4, 8)):
        at = torch.arange(n)
        expected = logits[row, first - 1 + at, forward.completion_ids[row, :n]]
        torch.testing.assert_close(forward.logprobs[row, :n].detach(), expected)


class Recordings:
    """What --compile puts at model.graphs, as far as a forward asks."""
    def __init__(self, model):
        self.body, self.version = model.base_model, 5

    def __call__(self, x):
        return self.body(inputs_embeds=x, use_cache=False).last_hidden_state

    def head(self, h, y, temperature):
        return torch.full((len(y),), -7.0), torch.full((len(y),), temperature)


def test_recordings_are_used_where_there_are_some():
    model = known_qwen3()
    plain = forward_pass(model, known_rollouts(), [0, 1])
    model.graphs = Recordings(model)
    forward = forward_pass(model, known_rollouts(), [0, 1], .6)
    on = forward.completion_mask
    assert (forward.logprobs[on] == -7).all() and (forward.logprobs[~on] == 0).all()
    assert forward.entropy[on].unique().tolist() == pytest.approx([.6])
    assert forward.hidden_states is None and forward.layers is model.graphs
    assert forward.version == 5
    torch.testing.assert_close(forward.hidden, plain.hidden)


# ------------------------------------------------------------------ the card


class Numbers:
    """A tensor as far as to_device asks; `said` is what was done to it."""
    def __init__(self, kind):
        self.device, self.said = SimpleNamespace(type=kind), []

    def pin_memory(self):
        self.said.append("pinned")
        return self

    def to(self, *args, **options):
        self.said.append((args, options))
        return self


@pytest.mark.parametrize("here, there, said", [
    ("cpu", "cuda", ["pinned", (("card",), dict(non_blocking=True))]),
    ("cpu", "cpu", [(("card",), {})]), ("cuda", "cuda", [(("card",), {})]),
    ("cuda", "cpu", [(("card",), {})])])
def test_only_what_goes_from_the_cpu_to_a_card_is_pinned(here, there, said, monkeypatch):
    """Pinned memory can be sent while the card works; memory of the card cannot be pinned."""
    class Device(str):
        type = there

    values = Numbers(here)
    monkeypatch.setattr(logprobs.torch, "as_tensor", lambda x: x)
    to_device(values, Device("card"))
    assert values.said == said


def test_rows_are_joined_where_they_are():
    """On the meta device a number that is read, or a tensor made elsewhere, is an error. What must
    be known of the sizes is taken from the CPU."""
    here, there = known_rollouts(), copy.copy(known_rollouts())
    for name in ("prompt_ids", "prompt_mask", "completion_ids", "lengths"):
        setattr(there, name, getattr(here, name).to("meta"))
    found = logprobs.join(there, to_device([0, 1], torch.device("meta")), here.sizes)
    assert [(x.device.type, tuple(x.shape)) for x in found] == [
        ("meta", shape) for shape in ((2, 13), (2, 10), (2, 10), (2, 10))]


def test_the_number_of_tokens_is_known_and_not_asked_for(monkeypatch):
    counts, real = [], token_logprobs

    def counting(*args, count=None, **options):
        counts.append(count)
        return real(*args, count=count, **options)

    monkeypatch.setattr(logprobs, "token_logprobs", counting)
    forward_pass(known_qwen3(), known_rollouts(), [0, 1])
    assert counts == [18]
