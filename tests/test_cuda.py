"""What only a card can show: kernel, graph, compiled pieces and bf16 against fp32 on the CPU.

    python -m pytest tests/test_cuda.py    # two to three minutes (without a card it is skipped)
"""
import copy
import dataclasses
import json
from types import SimpleNamespace

import pytest
import torch
from test_grpo import CONFIG
from test_rollout import Numbers
from transformers import Qwen3Config, Qwen3ForCausalLM

import grail
import grpo
import oar
import problems
import rollout
import saliency
from engine import attention, decode, graphs, seeds
from logprobs import forward_pass, scores

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
SHAPE = dict(vocab_size=61, hidden_size=128, intermediate_size=256, num_hidden_layers=3,
             num_attention_heads=8, num_key_value_heads=4, head_dim=64, eos_token_id=60,
             pad_token_id=0, bos_token_id=None)
PROMPTS = ["3 4 5 6 7 8 9", "11 12", "20 21 22 23"]


def model_on(device):
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**SHAPE)).to(device).eval()


@pytest.mark.parametrize("R, kv_heads, group, D, norm", [
    (5, 8, 2, 128, True), (3, 2, 7, 64, False), (2, 1, 1, 32, True), (4, 4, 16, 256, False),
    (64, 8, 2, 128, True), (130, 2, 7, 64, False), (256, 1, 1, 32, True), (64, 4, 16, 256, False)])
def test_the_kernel_attends_like_plain_pytorch(R, kv_heads, group, D, norm):
    """Against the same in fp32: bf16 rounding apart, for lengths at and around a block's, with few
    programs (the first four) and with many."""
    g = torch.Generator("cuda").manual_seed(R)

    def normal(*shape):
        return torch.randn(*shape, generator=g, device="cuda")

    slots = 300
    qkv = normal(R, (group + 2) * kv_heads * D).bfloat16()
    keys, values = (normal(R + 4, kv_heads, slots, D).bfloat16() for _ in range(2))
    rows = torch.randperm(R + 4, generator=g, device="cuda")[:R]
    places = torch.tensor([299, 0, 64, 63, 200, 31, 32], device="cuda").repeat(R // 7 + 1)[:R]
    norms = (normal(D).abs(), normal(D).abs()) if norm else (None, None)
    rest = (rows, places, places + 1, normal(slots, D), normal(slots, D), *norms, 1e-6)
    exact = [x.float() for x in (keys, values)]
    want = attention.attend(qkv.float(), *exact, *rest)
    got = attention.attend_on_card(qkv, keys, values, *rest)
    assert (got.float() - want).norm() / want.norm() < 5e-3
    assert all((a.float() - b).norm() / b.norm() < 5e-3 for a, b in zip((keys, values), exact))


def test_a_stopped_row_and_the_scorer_agree_with_the_graph():
    """Captured sampling: its log-probs are the scorer's in bf16, its lengths end at the stop."""
    model = model_on("cuda")
    assert decode.supports(model)
    prompts = [*PROMPTS, PROMPTS[0][:5]]  # the last is the start of the first: its keys are shared
    out = rollout.sample(model, Numbers(), prompts, samples=32, max_new_tokens=[96, 96, 96, 20],
                         seed=1)
    assert out.lengths[-32:].max() == 20
    ends = out.completion_ids.gather(1, out.lengths[:, None] - 1)[:, 0]
    assert torch.equal((ends == 60) | (ends == 1), out.finished)  # the model's and Numbers' stop
    assert 5 < int(out.finished.sum()) < len(out.finished) - 5
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        forward = forward_pass(model, out, torch.arange(128), 1.0, texts=[], rewards=None,
                                    advantages=None, tokenizer=None)
    gap = (forward.logprobs - out.logprobs).abs()
    assert gap.mean() < 5e-3 and gap.max() < 0.1


def test_graph_frequencies_are_the_softmax():
    """4,096 first tokens, with uniforms that are the CPU's by key: within 4 standard errors."""
    model = model_on("cuda")
    out = rollout.sample(model, Numbers(), ["3 4 5"], samples=4096, max_new_tokens=2, seed=2)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        p = model(torch.tensor([[3, 4, 5]], device="cuda")).logits[0, -1].float().softmax(-1)
    seen = torch.bincount(out.completion_ids[:, 0], minlength=61) / 4096
    assert ((seen - p).abs() < 4 * (p * (1 - p) / 4096).sqrt() + 1e-3).all()


@pytest.mark.parametrize("rows", [3, 300])
def test_the_compiled_draw_inverts_the_distribution_function(rows):
    """Each id is where the cumulative probabilities, in float64, reach the row's random number.
    Qwen3's vocabulary is not a whole number of blocks."""
    g = torch.Generator("cuda").manual_seed(rows)
    logits = (4 * torch.randn(rows, 151_936, generator=g, device="cuda")).bfloat16()
    key = seeds.row_keys(3, list(range(rows)), 1, "cuda")
    t = torch.arange(rows, device="cuda")
    ids, logprobs = decode.compiled(decode.draw_by_keys)(logits, key, t, .7)

    logp = (logits.double() / .7).log_softmax(-1)  # (rows, V)
    torch.testing.assert_close(logprobs.double(), logp.gather(1, ids[:, None])[:, 0],
                               atol=1e-5, rtol=1e-5)
    upto, u = logp.exp().cumsum(-1), seeds.uniforms(key, t)
    row = torch.arange(rows, device="cuda")
    assert (u <= upto[row, ids] + 1e-5).all()
    assert (u >= torch.where(ids > 0, upto[row, ids - 1], 0) - 1e-5).all()


def test_sampling_gives_its_memory_back():
    """Cache and graphs live for a call: three calls in a row peak alike."""
    model, peaks = model_on("cuda"), []
    for seed in range(4):
        torch.cuda.reset_peak_memory_stats()
        rollout.sample(model, Numbers(), PROMPTS, samples=64, max_new_tokens=64, seed=seed)
        peaks.append(torch.cuda.max_memory_allocated())
    assert max(peaks[1:]) < 1.05 * peaks[1]


@pytest.mark.parametrize("compiled", [False, True])
def test_losses_weights_and_gradients_are_the_cpu_s_in_fp32(compiled, monkeypatch):
    """One GRAIL update on the same rollouts: bf16 autocast on the card against fp32 on the CPU."""
    monkeypatch.setattr(saliency, "answer_span", lambda *_: (6, 7, 8, 9))
    plain = model_on("cpu")
    rollouts = rollout.sample(plain, Numbers(), PROMPTS, samples=4, max_new_tokens=12, seed=3)
    rollouts = dataclasses.replace(rollouts, lengths=torch.full((12,), 12))
    rewards = (torch.arange(12) % 2).float().view(3, 4)
    settings = {**CONFIG, "max_new_tokens": 12, "tokens_per_microbatch": 256}  # 4 rows of 64
    config = SimpleNamespace(**settings | {"compile": compiled}, as_released=False,
                             activation="embeddings", reweight="both")
    results = []
    for device in ("cpu", "cuda"):
        model = copy.deepcopy(plain).to(device)
        config.compile = compiled and device == "cuda"
        if config.compile:
            model.graphs = graphs.Graphs(model, config.tokens_per_microbatch)
        moved = dataclasses.replace(rollouts, **{
            name: value.to(device) for name, value in vars(rollouts).items()
            if isinstance(value, torch.Tensor)})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        kept = {}
        optimizer.zero_grad = lambda **_: kept.update(  # noqa: B023
            {n: p.grad.float().cpu() for n, p in model.named_parameters()})  # noqa: B023
        stats, weights = grpo.update(model, optimizer, moved, rewards.to(device),
                                     grail.credit(config), config, None)
        results.append((stats, weights.cpu(), kept))
    (a, w, g), (b, v, h) = results
    assert abs(a["entropy"] - b["entropy"]) < 0.01 and abs(a["loss"] - b["loss"]) < 0.01
    assert (w - v).abs().mean() < 0.05
    whole = torch.cat([x.flatten() for x in g.values()])
    apart = torch.cat([(g[n] - h[n]).flatten() for n in g])
    assert apart.norm() / whole.norm() < 0.05


def test_the_fused_head_is_the_plain_one(monkeypatch):
    """Log-probs, entropy and both gradients over several chunks, at T = 0.7, against fp32."""
    monkeypatch.setattr(graphs.Head, "chunk", 16)
    torch.manual_seed(1)
    h, weight = torch.randn(37, 64, device="cuda"), torch.randn(501, 64, device="cuda") / 4
    y, g = torch.randint(501, (37,), device="cuda"), torch.randn(37, device="cuda")
    results = []
    for exact in (True, False):
        leaves = [x.clone().requires_grad_() for x in (h, weight)]
        if exact:
            logprobs, entropy = scores(leaves[0] @ leaves[1].T, y, 0.7)
        else:
            logprobs, entropy = graphs.Head.apply(*leaves, y, 0.7)
        results.append([logprobs, entropy, *torch.autograd.grad((g * logprobs).sum(), leaves)])
    for want, got in zip(*results):
        assert (want - got).norm() / want.norm() < 0.01


def test_recorded_layers_are_the_plain_ones_for_any_shape():
    """Both gradients of two micro-batches of other shapes, taken in turn and again."""
    model = model_on("cuda")
    plain, body = copy.deepcopy(model), graphs.Graphs(model, 256)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    with torch.no_grad():  # the first recording of all may be one without a gradient
        e = torch.randn(1, 300, 128, device="cuda")  # and a row alone may be over the budget
        want = plain.model(inputs_embeds=e, use_cache=False).last_hidden_state
        assert (body(e) - want).norm() / want.norm() < 0.02
    for b, L in [(3, 70), (2, 30), (3, 70), (4, 64)]:
        e = torch.randn(b, L, 128, device="cuda", requires_grad=True)
        out, want = body(e), plain.model(inputs_embeds=e, use_cache=False).last_hidden_state
        assert (out - want).norm() / want.norm() < 0.02
        v = torch.randn_like(out)
        kept = {n: p.grad.clone() for n, p in model.named_parameters()}
        inner, = torch.autograd.grad((out * v).sum(), e, retain_graph=True)
        wanted, = torch.autograd.grad((want * v).sum(), e, retain_graph=True)
        assert (inner - wanted).norm() / wanted.norm() < 0.03
        assert all(torch.equal(p.grad, kept[n]) for n, p in model.named_parameters())
        body.backward((out * v).sum())
        (want * v).sum().backward()
    stale, _ = body(e).sum(), body(e)
    with pytest.raises(RuntimeError, match="gone"):
        torch.autograd.grad(stale, e)
    for (n, p), q in zip(model.model.layers.named_parameters(), plain.model.layers.parameters()):
        assert (p.grad - q.grad).norm() / q.grad.norm() < 0.03, n


def test_a_wider_micro_batch_compiles_nothing_new():
    """2,560 tokens x 16 heads x 128 are 5 * 2**20 numbers of a norm, where Inductor would fuse."""
    torch._dynamo.reset()  # what other tests compiled counts towards a limit
    shape = SHAPE | {"num_attention_heads": 16, "head_dim": 128}
    model = Qwen3ForCausalLM(Qwen3Config(**shape)).cuda().eval()
    body, counted = graphs.Graphs(model, 2560), torch._dynamo.utils.counters["aot_autograd"]
    before, built = counted["total"], []
    for L in (1152, 1216, 1280):
        e = torch.randn(2, L, 128, device="cuda", requires_grad=True)  # (2, L, H)
        body.backward(body(e).square().sum())
        built.append(counted["total"])
    assert before < built[0] == built[1] == built[2]


def test_oar_g_by_recordings_is_oar_g():
    """Strong noise, so that bf16 does not drown it. The policy's own forward is gone after it."""
    model = model_on("cuda")
    out = rollout.sample(model, Numbers(), PROMPTS, samples=2, max_new_tokens=12, seed=3)
    out = dataclasses.replace(out, lengths=torch.full((6,), 12, device="cuda"))
    plain, found = copy.deepcopy(model), []
    model.graphs = graphs.Graphs(model, 256)
    for compiled in (False, True):
        with torch.autocast("cuda", torch.bfloat16):
            forward = forward_pass(model if compiled else plain, out, range(6), 1.0,
                                        texts=[], rewards=None, advantages=None, tokenizer=None)
        found.append(saliency.input_gradient(
            forward, torch.tensor([(6, 7, 8, 9)] * 6), draws=1, sigma=0.02))
    plain, recorded = found
    assert (plain[:, :6].amax(1) > 0).all() and (plain[:, 6:] == 0).all()
    assert (recorded - plain).norm() / plain.norm() < 0.15  # bf16 and fp32 are 0.03 apart
    with pytest.raises(RuntimeError, match="gone"):
        forward.logprobs.sum().backward()


def test_recordings_go_when_the_sampler_is_short_of_memory_and_come_back(monkeypatch):
    """The same hidden states and gradients from the second recording; .grad is never touched."""
    model = model_on("cuda")
    model.graphs = graphs.Graphs(model, 256)
    e = torch.randn(3, 70, 128, device="cuda", requires_grad=True)

    def both():
        out = model.graphs(e)
        inner, = torch.autograd.grad(out.square().sum(), e, retain_graph=True)
        model.graphs.backward(out.square().sum())
        return out.detach(), inner

    first = both()
    kept, held = [p.grad.clone() for p in model.graphs.weights], model.graphs.held()
    rollout.sample(model, Numbers(), PROMPTS, samples=4, max_new_tokens=8, seed=0)
    assert held > 0 and model.graphs.held() == held  # there was room for both
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (0, 2**40))
    rollout.sample(model, Numbers(), PROMPTS, samples=256, max_new_tokens=400, seed=0)
    assert model.graphs.held() == 0 and not model.graphs.recorded
    assert all(torch.equal(p.grad, g) for p, g in zip(model.graphs.weights, kept))
    for one, other in zip(first, both()):
        assert (one - other).norm() / one.norm() < 1e-3
    for p, g in zip(model.graphs.weights, kept):
        assert (p.grad - 2 * g).norm() / g.norm() < 1e-3


def test_the_embedded_model_trains_on_a_card(tmp_path):
    """--device cuda: heads of 32, the narrowest that the kernel takes."""
    grpo.main(["--device", "cuda", "--steps", "2", "--eval-problems", "0",
               "--name", str(tmp_path / "run")])
    assert decode.supports(problems.load_policy("tiny", "cuda")[0])


def test_what_recordings_kept_goes_back_to_the_card():
    """And what was computed before they went, which holds on to them, has no backward any more."""
    body = graphs.Graphs(model_on("cuda"), 256)
    e = torch.randn(3, 70, 128, device="cuda", requires_grad=True)
    body(e)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    body.release()
    assert torch.cuda.memory_reserved() < before
    stale = body(e).sum()
    body.release()
    with pytest.raises(RuntimeError, match="gone"):
        torch.autograd.grad(stale, e)


@pytest.mark.parametrize("main, more", [
    (grail.main, []), (oar.main, []), (oar.main, ["--signal", "perturbation"])])
def test_the_loop_trains_with_recordings_and_resumes(main, more, tmp_path):
    """The whole loop with --compile: two steps, saved, a third; each says what it took."""
    argv = ["--device", "cuda", "--compile", "--eval-problems", "0", *more]
    main([*argv, "--steps", "2", "--name", str(tmp_path / "run")])
    main([*argv, "--steps", "3", "--resume", str(tmp_path / "run")])
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(line["peak_gb"] > 0 and line["grad_norm"] > 0 for line in lines)
    assert max(line["gap_mean"] for line in lines) < 0.02
