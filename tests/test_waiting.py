"""No credit function waits for the card: each runs on tensors of the meta device, which have shapes
and no values. An .item(), a .tolist(), an `if` on a tensor or an index by a mask raises there; on a
card it would stop the CPU until all the work before it is done.
"""
from types import SimpleNamespace

import pytest
import torch
from test_grail import Pieces

import delta
import grail
import oar
import saliency

CONFIG = SimpleNamespace(activation="embeddings", reweight="both", signal="gradient", draws=2,
                         seed=3, outcome="each", replace="pad", chunk=4, gradient="head-row",
                         refinements=2)
PIECES = [b"", None, b"so ", b"then ", rb"\boxed{", b"7", b"}", b"8", b"."]
IDS = torch.tensor([[2, 3, 4, 5, 6, 3, 4, 7, 6, 1], [3, 2, 4, 7, 6, 2, 4, 5, 6, 1]])


def on_meta():
    """A live forward of two rows with a box each, without values; its ids and texts are known on
    the CPU, as in training. The model is a running sum (transformers' own would wait)."""
    tokenizer = Pieces(*PIECES)
    embeddings = torch.empty(2, 14, 3, device="meta", requires_grad=True)       # (b, L, H)
    head = torch.nn.Linear(3, 9, bias=False, device="meta")
    hidden = embeddings.cumsum(1)                                               # (b, L, H)
    return SimpleNamespace(
        embeddings=embeddings, hidden=hidden[:, 3:-1], layers=lambda x: x.cumsum(1), head=head,
        position=torch.arange(4, 14, device="meta").expand(2, 10), temperature=1.0,
        logprobs=torch.empty(2, 10, device="meta"), completion_ids=IDS.to("meta"),
        completion_mask=torch.empty(2, 10, dtype=torch.bool, device="meta"), tokenizer=tokenizer,
        texts=[tokenizer.decode(row) for row in IDS.tolist()], sampled=IDS.tolist(), signs=[-1, 1],
        advantages=torch.empty(2, device="meta"), rows=torch.arange(2, device="meta"), metrics={})


@pytest.fixture(autouse=True)
def without_values(monkeypatch):
    """The meta device has neither random numbers nor autocast."""
    monkeypatch.setattr(saliency, "normals", lambda key, like: torch.zeros_like(like))
    monkeypatch.setattr(saliency, "layers_again", lambda forward, x: forward.layers(x))


@pytest.mark.parametrize("credit, as_released", [
    (grail.credit, False), (grail.credit, True), (oar.credit, "no"), (oar.credit, "authors"),
    (oar.credit, "reproduction")])
def test_credit_asks_the_card_nothing(credit, as_released, monkeypatch):
    ran = []
    monkeypatch.setattr(torch.autograd, "grad", watched(torch.autograd.grad, ran))
    config = SimpleNamespace(**vars(CONFIG), as_released=as_released)
    forward = on_meta()
    w = credit(config)(forward)
    assert w.shape == (2, 10) and w.device.type == "meta" and ran  # the signal was taken
    assert forward.metrics["fallback"].shape == (2,)


def watched(function, calls):
    """The function, and a note of each call."""
    def call(*args, **options):
        calls.append(args)
        return function(*args, **options)
    return call


@pytest.mark.parametrize("as_released", [False, True])
@pytest.mark.parametrize("gradient", ["head-row", "lm-head"])
def test_delta_asks_the_card_nothing(as_released, gradient):
    config = SimpleNamespace(**vars(CONFIG) | {"gradient": gradient}, as_released=as_released)
    with torch.no_grad():
        forward = on_meta()
        look = delta.whole_batch(config)
        credit_fn = look(iter([forward]), forward.advantages, forward.completion_mask)
        assert credit_fn(forward).shape == (2, 10)
    assert forward.metrics["weight_good"].shape == forward.metrics["fallback"].shape == (2,)


def test_the_meta_device_does_notice():
    """Each of these waits on a card; if one passed here, the tests above would show nothing."""
    x = torch.zeros(3, device="meta")
    for ask in (lambda: x.sum().item(), x.tolist, lambda: bool(x.any()), lambda: x[x > 0]):
        with pytest.raises((RuntimeError, NotImplementedError)):
            ask()
