"""examples/trl_grail.py inside real TRL, on the CPU: skipped where TRL is not installed.

    pip install trl peft && python -m pytest tests/test_trl.py -m "slow or not slow"
"""
import functools
import json
import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("trl")
pytest.importorskip("peft")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

import bench_cards
import trl_grail
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from datasets import Dataset
from peft import LoraConfig
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.utils.rnn import pad_sequence
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

import delta
import grail
import oar
import problems
import rollout
from engine import errors
from logprobs import forward_pass

GROUP = 4
REFERENCE = {
    "grail": grail.credit(SimpleNamespace(
        reweight="wrong", activation="embeddings", as_released=False)),
    "oar-g": oar.credit(SimpleNamespace(signal="gradient", outcome="mean", draws=4, seed=0,
                                        replace="pad", chunk=16, as_released="no"))}


@functools.lru_cache
def drawn():
    """Four problems, and completions of them by our own sampler: (tokenizer, data, {prompt ids:
    ids of its GROUP completions})."""
    model, tokenizer = problems.load_policy("tiny")
    with (ROOT / "data/arithmetic_train.jsonl").open() as lines:
        rows = [json.loads(next(lines)) for _ in range(4)]
    prompts = [problems.build_prompt(tokenizer, row["problem"]) for row in rows]
    out = rollout.sample(model, tokenizer, prompts, samples=GROUP, max_new_tokens=40, seed=3)
    known = {}
    for ids, on, text in zip(out.prompt_ids, out.prompt_mask, out.completion_ids):
        known.setdefault(tuple(ids[on].tolist()), []).append(text)
    data = [{"prompt": p, "answer": row["answer"]} for p, row in zip(prompts, rows)]
    return tokenizer, Dataset.from_list(data), known


def policy():
    """The tiny model, whose generate() returns the same completions however the rows are split.

    Row k of a prompt gets sample k of that prompt, drawn beforehand.
    """
    model, known = problems.load_policy("tiny")[0], drawn()[2]

    def generate(input_ids, attention_mask, **_):
        seen, said = {}, []
        for ids, on in zip(input_ids, attention_mask.bool()):
            prompt = tuple(ids[on].tolist())
            seen[prompt] = seen.get(prompt, -1) + 1
            said.append(known[prompt][seen[prompt]])
        return torch.cat([input_ids, torch.stack(said)], 1)

    model.generate = generate
    return model


def trainer_of(kind, folder, lora=False, **settings):
    """A trainer of 16 rows a step: 4 problems, 4 completions of each. kind: credit or "TRL"."""
    fixed, (tokenizer, data, _) = policy(), drawn()
    settings = dict(per_device_train_batch_size=8, gradient_accumulation_steps=2, max_steps=1,
                    num_generations=GROUP, max_completion_length=40, learning_rate=1e-3,
                    max_grad_norm=0.0, logging_steps=1, save_strategy="no", report_to="none",
                    bf16=False, use_cpu=True, disable_tqdm=True, seed=1) | settings
    about = dict(args=GRPOConfig(output_dir=str(folder), **settings), train_dataset=data,
                 processing_class=tokenizer, reward_funcs=trl_grail.right,
                 peft_config=LoraConfig(r=4, target_modules="all-linear") if lora else None)
    if kind == "TRL":
        return GRPOTrainer(fixed, **about)
    return trl_grail.CreditGRPOTrainer(fixed, credit=kind, **about)


def test_the_reward_sees_a_thought_that_the_prompt_opened():
    said = [r"It may be \boxed{12}. But", r"\boxed{1}.</think> So \boxed{12}.", r"\boxed{12}"]
    asked = ["Ask.<think>\n"] * 2 + ["Ask."]
    assert trl_grail.right(said, ["12"] * 3, prompts=asked) == [0, 1, 1]
    assert trl_grail.right(said, ["12"] * 3) == [1, 1, 1]


def gradients(kind, folder, **settings):
    """The gradients of the first optimizer step, name -> tensor."""
    found = {}

    class Keep(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **_):
            inner = getattr(model, "module", model)
            found.update({n: p.grad.clone() for n, p in inner.named_parameters()})

    trainer = trainer_of(kind, folder, **settings)
    trainer.add_callback(Keep())
    trainer.train()
    return found


def recorded(trainer):
    """Train, and return the scored batch with the weights it got, and what the loss was given."""
    batches, given = [], []
    weigh, loss = trainer.weights, trainer._compute_loss

    def weights(batch):
        batches.append((dict(batch), weigh(batch)))
        return batches[-1][1]

    def compute_loss(model, inputs):
        given.append(inputs)
        return loss(model, inputs)

    trainer.weights, trainer._compute_loss = weights, compute_loss
    trainer.train()
    return batches, given


def again(batch, size):
    """TRL's batch as our own Rollouts of `size` rows each, in its order: (rows, Rollouts)."""
    tokenizer, rows = drawn()[0], range(len(batch["advantages"]))
    prompts = [batch["prompt_ids"][i][batch["prompt_mask"][i].bool()] for i in rows]
    ids = [batch["completion_ids"][i][batch["completion_mask"][i].bool()] for i in rows]
    for i in range(0, len(rows), size):
        part = slice(i, i + size)
        lengths = torch.tensor([*map(len, prompts[part])])
        left = pad_sequence(prompts[part], batch_first=True, padding_side="left")
        yield list(rows[part]), rollout.Rollouts(
            left, torch.arange(left.shape[1]) >= left.shape[1] - lengths[:, None],
            pad_sequence(ids[part], batch_first=True), torch.tensor([*map(len, ids[part])]), None,
            None, tokenizer.batch_decode(ids[part], skip_special_tokens=True))


def weights_by(credit, model, accelerator):
    """CreditGRPOTrainer.weights of 8 completions of this process; in process 1 none has a box."""
    tokenizer, data, _ = drawn()
    out = rollout.sample(problems.load_policy("tiny")[0], tokenizer, data["prompt"], samples=2,
                         max_new_tokens=40, seed=accelerator.process_index)
    if accelerator.process_index:
        out.completion_ids[out.completion_mask] = tokenizer.encode("1")[0]
    batch = {"prompt_ids": out.prompt_ids, "prompt_mask": out.prompt_mask.long(),
             "completion_ids": out.completion_ids, "completion_mask": out.completion_mask.long(),
             "advantages": torch.tensor([1.0, -1.0] * 4)}
    stand_in = SimpleNamespace(
        credit=credit, model=model, accelerator=accelerator, processing_class=tokenizer,
        temperature=1.0, _train_batch_size=4, _metrics={"train": defaultdict(list)})
    return trl_grail.CreditGRPOTrainer.weights(stand_in, batch)


@pytest.mark.parametrize("credit, lora, size, tolerance", [
    ("grail", False, 8, 1e-6), ("grail", True, 8, 1e-6), ("grail", False, 1, 1e-5),
    ("oar-g", False, 8, 1e-2)])
def test_weights_are_those_of_our_own_loop(credit, lora, size, tolerance, tmp_path):
    """Left padding, a cut in the wrong place or a frozen embedding layer would each move them.

    The reference sees the same micro-batches, or every row alone and without any padding. A fresh
    LoRA adapter changes nothing, so under it the weights must be the same ones. OAR-G's signal is a
    difference between nearly equal logits, of which fp32 leaves three digits.
    """
    trainer = trainer_of(credit, tmp_path, lora, temperature=0.7, gradient_checkpointing=not lora)
    (batch, weights), = recorded(trainer)[0]
    model, tokenizer = problems.load_policy("tiny")
    worst, moved = 0.0, 0
    for rows, rollouts in again(batch, size):
        A = batch["advantages"][rows]
        forward = forward_pass(model, rollouts, torch.arange(len(rows)), 0.7, rewards=None,
                                     texts=rollouts.texts, tokenizer=tokenizer, advantages=A)
        w = REFERENCE[credit](forward)
        on = forward.completion_mask & (A != 0)[:, None]
        worst = max([worst, *(weights[rows, :w.shape[1]] - w)[on].abs().tolist()])
        moved += int((w[on] != 1).sum())
    assert moved > 20  # or the equality would say nothing
    assert worst < tolerance


def test_delta_weights_are_those_of_our_own_loop(tmp_path):
    """DelTA looks at the whole batch: a micro-batch of its own would have other centroids."""
    (batch, weights), = recorded(trainer_of("delta", tmp_path, per_device_train_batch_size=4,
                                            gradient_accumulation_steps=4))[0]
    model, mask = problems.load_policy("tiny")[0], batch["completion_mask"].bool()
    hidden, logprobs = [], torch.zeros(mask.shape)
    with torch.no_grad():
        for (i,), rollouts in again(batch, 1):
            forward = forward_pass(model, rollouts, torch.tensor([0]), 1.0, rewards=None,
                                         texts=[], tokenizer=None, advantages=None)
            logprobs[i, mask[i]] = forward.logprobs[0]
            hidden.append(torch.zeros(mask.shape[1], forward.hidden.shape[2]))
            hidden[-1][mask[i]] = forward.hidden[0]
    geometry = delta.head_row(hidden, logprobs, mask)
    w, fell_back = delta.delta_weights(*geometry, batch["advantages"], mask)
    assert not fell_back and (w[mask] != 1).any()
    assert (weights - w)[mask].abs().max() < 1e-6


def test_weights_stay_with_their_rows_in_every_inner_iteration(tmp_path):
    """TRL shuffles the batch before it is cut up and goes over it twice: row i is not row i then.

    Truncated rows are masked out here, which leaves rows without a single token.
    """
    batches, given = recorded(trainer_of("grail", tmp_path, max_steps=2, num_iterations=2,
                                         max_completion_length=40, mask_truncated_completions=True))
    (batch, weights), = batches
    expected = {}
    for i in range(len(weights)):
        key = (*batch["prompt_ids"][i].tolist(), *batch["completion_ids"][i].tolist())
        expected[key] = batch["advantages"][i] * weights[i]
    assert sum(len(inputs["advantages"]) for inputs in given) == 2 * len(weights)
    for inputs in given:
        for i in range(len(inputs["advantages"])):
            key = (*inputs["prompt_ids"][i].tolist(), *inputs["completion_ids"][i].tolist())
            assert torch.equal(inputs["advantages"][i], expected[key])


def test_none_is_TRL_bit_for_bit_and_so_are_weights_of_one(tmp_path, monkeypatch):
    """Two accumulated, twice iterated steps end in the same parameters, all three of them."""
    def ones(forward, credit):
        assert credit == "grail"  # "none" asks for no weights at all
        return torch.ones_like(forward.logprobs), torch.zeros(len(forward.rows), dtype=torch.bool)

    monkeypatch.setattr(trl_grail, "answer_weights", ones)
    ended = {}
    for kind in ("TRL", "none", "grail"):
        trainer = trainer_of(kind, tmp_path, max_steps=2, num_iterations=2)
        trainer.train()
        losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
        ended[kind] = losses, {n: p.detach() for n, p in trainer.model.named_parameters()}
    start = dict(problems.load_policy("tiny")[0].named_parameters())
    for kind in ("none", "grail"):
        assert ended[kind][0] == ended["TRL"][0] and len(ended[kind][0]) == 2
        for name, p in ended["TRL"][1].items():
            assert torch.equal(ended[kind][1][name], p), name
            assert not torch.equal(start[name], p)


def test_bf16_autocast_changes_weights_by_its_rounding_alone(tmp_path):
    """TRL trains in bf16 by default: saliencies and log-softmaxes in bf16 would be noise."""
    exact, rounded = (recorded(trainer_of("grail", tmp_path, bf16=bf16))[0][0] for bf16 in (0, 1))
    on = exact[0]["completion_mask"].bool() & (exact[0]["advantages"] != 0)[:, None]
    difference = (exact[1] - rounded[1])[on].abs()
    assert 0 < difference.mean() < 0.02 and difference.max() < 0.5


def one_of_two(rank, port, work, folder):
    """Process `rank` of two: what a launcher would set, then work(folder)."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2",
                   "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
    torch.set_num_threads(1)  # a fork has no second thread, and would wait for it
    AcceleratorState._reset_state(True)  # that of the tests before, which knew one process
    work(folder)


def in_two_processes(work, folder):
    """Run work(folder) in two processes that see each other, by gloo. They are forks: to import
    TRL once more in each would take longer than the work."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=one_of_two, args=(rank, port, work, folder)) for rank in (0, 1)]
    for process in both:
        process.start()
    try:
        for process in both:
            process.join(120)  # seconds; where one fails the other may wait for it
        assert [process.exitcode for process in both] == [0, 0]
    finally:
        for process in both:
            process.kill()


def in_shards(grouped):
    """The tiny model under FSDP 2. grouped: the tied embedding with the last norm, as accelerate
    does it from version 1.14 on. Else both are left to the whole model."""
    model = problems.load_policy("tiny")[0]
    mesh = init_device_mesh("cpu", (2,))
    body = model.model
    for block in body.layers:
        fully_shard(block, mesh=mesh)
    if grouped:
        fully_shard([body.norm, body.embed_tokens, model.lm_head], mesh=mesh,
                    reshard_after_forward=False)
    return fully_shard(model, mesh=mesh)


def gradients_and_weights(folder):
    """What each of two processes writes down: gradients, and the weights of a model in shards."""
    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    assert accelerator.num_processes == 2
    for credit in ("grail", "delta"):
        found = gradients(credit, folder, per_device_train_batch_size=4)
        if rank == 0:
            torch.save(found, folder / f"{credit}.pt")
        whole = weights_by(credit, problems.load_policy("tiny")[0], accelerator)
        sharded = [weights_by(credit, in_shards(grouped), accelerator) for grouped in (0, 1)]
        moved = credit == "grail" and rank == 1 or bool((whole != 1).any())
        torch.save((whole, torch.stack(sharded), moved), folder / f"{credit}-sharded-{rank}.pt")


def test_two_processes_have_the_gradients_of_one(tmp_path):
    """Means a process of its own takes are not the batch's: DelTA's centroids, the loss's divisor.

    Then the weights of a model in shards (FSDP 2). Outside of the model's own call its embedding is
    half an embedding, a process without a box must run the other's backward, or both wait, and two
    calls of a head that is grouped with the norm free the norm too early (a process dies of it).
    """
    in_two_processes(gradients_and_weights, tmp_path)
    for credit in ("grail", "delta"):
        two = torch.load(tmp_path / f"{credit}.pt")
        one = gradients(credit, tmp_path)
        size = max(float(g.abs().max()) for g in one.values())
        for name, g in one.items():
            assert (two[name] - g).abs().max() < 1e-5 * size, name
        for rank in range(2):
            whole, sharded, moved = torch.load(tmp_path / f"{credit}-sharded-{rank}.pt")
            assert moved and (whole - sharded).abs().max() < 1e-6


@pytest.mark.parametrize("steps", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_the_command_line_trains(steps, tmp_path, monkeypatch):
    """As a user has it, from sampling to the optimizer, with TRL's own sampler. In eight steps the
    reward rises; in two the weights do their work and the policy moves."""
    kept = []

    class Kept(trl_grail.CreditGRPOTrainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            kept.append(self)

    monkeypatch.setattr(trl_grail, "CreditGRPOTrainer", Kept)
    trl_grail.main(f"""--credit grail --max_steps {steps} --per_device_train_batch_size 64
        --gradient_accumulation_steps 1 --max_completion_length 48 --learning_rate 2e-4
        --lr_scheduler_type constant --logging_steps 1 --report_to none --use_cpu --bf16 false
        --save_strategy no --gradient_checkpointing false --disable_tqdm true
        --output_dir {tmp_path}""".split())
    trainer, = kept
    lines = [line for line in trainer.state.log_history if "reward" in line]
    rewards = [line["reward"] for line in lines]
    assert len(rewards) == steps and trainer.credit == "grail"
    assert 0 < rewards[0] < 1 and all(line["credit/fallback"] < 1 for line in lines)
    start = problems.load_policy("tiny")[0].state_dict()
    assert any(not torch.equal(start[n], p) for n, p in trainer.model.state_dict().items())
    if steps == 8:
        assert sum(rewards[-4:]) / 4 > sum(rewards[:2]) / 2 + 0.1, rewards


def two_steps(credit, sharded, folder):
    """The command line in one of two processes; process 0 writes what TRL logs. sharded: accelerate
    splits the model by FSDP 2. It does so on cards alone, so it is told that there are some."""
    class Logged(trl_grail.CreditGRPOTrainer):
        def log(self, *args):
            super().log(*args)
            assert isinstance(self.model, FSDPModule) == sharded
            logs = self.state.log_history[-1]
            if "reward" in logs and self.is_world_process_zero():
                with (folder / f"{credit}-{sharded}.jsonl").open("a") as file:
                    file.write(json.dumps({k: logs[k] for k in SAME}) + "\n")

    if sharded:
        os.environ |= {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2",
                       "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP"}
        begin = PartialState.__init__

        def as_cards(self, *args, **options):
            begin(self, *args, **options)
            if self.distributed_type == DistributedType.MULTI_CPU:
                self.distributed_type = DistributedType.MULTI_GPU
        PartialState.__init__ = as_cards
    trl_grail.CreditGRPOTrainer = Logged
    trl_grail.main(f"""--credit {credit} --max_steps 2 --per_device_train_batch_size 8
        --gradient_accumulation_steps 2 --max_completion_length 40 --learning_rate 1e-4 --seed 3
        --logging_steps 1 --report_to none --use_cpu --bf16 false --save_strategy no
        --disable_tqdm true --output_dir {folder}""".split())


SAME = ["reward", "loss", "grad_norm", "credit/mean", "credit/fallback"]


@pytest.mark.slow
@pytest.mark.parametrize("credit", ["grail", "delta"])
def test_the_command_line_trains_a_model_in_shards_like_copies_of_it(credit, tmp_path):
    """Whole steps: TRL's forward, the optimizer and weights that are gathered anew. (How accelerate
    groups the modules once made the extra backward read memory that was freed.)"""
    logs = []
    for sharded in (False, True):
        in_two_processes(functools.partial(two_steps, credit, sharded), tmp_path)
        lines = (tmp_path / f"{credit}-{sharded}.jsonl").read_text().splitlines()
        logs.append([list(json.loads(line).values()) for line in lines])
    copies, shards = torch.tensor(logs, dtype=torch.float64)  # (2 steps, 5) each
    assert copies.shape == (2, 5) and (copies - shards).abs().max() < 1e-4


SMALL_BENCH = ["--small", "--tokens", "24", "--steps", "2", "--out", "cards.json"]


def timed_by_the_bench(folder):
    """One of the processes that examples/bench_cards.py launches."""
    os.chdir(folder)
    bench_cards.main([*SMALL_BENCH, "--worker", "--runs", "2x16"])


def was_timed(found, processes):
    """Every row had a signal, and the processes ended with the same weights."""
    assert found["processes"] == processes and len(found["step_seconds"]) == 2
    assert found["same_weights"] and found["credit_fallback"] == 0


@pytest.mark.parametrize("argv, words", [
    ("--runs 1", "'1' is not processes x completions"), ("--runs axb", "'axb'"),
    ("--runs 0x8", "'0x8'"), ("--runs 1x0", "'1x0'"), ("--runs 1x8,", "''"),
    ("--runs 1x8x8", "'1x8x8'"), ("--runs=-1x8", "'-1x8'"), ("--runs 1x12", "8 or a multiple"),
    ("--runs 2x8", "8 or a multiple"), ("--steps 1", "--steps 1: must be at least 2"),
    ("--prompt 0", "--prompt 0"), ("--tokens 17", "--tokens 17: must be at least 18"),
    ("--tokens 0 --credit none", "--tokens 0: must be at least 1"),
    ("--out no/x.json", "--out no/x.json: cannot write"), ("--out .", "--out .: cannot write")])
def test_the_bench_refuses_mistakes_before_it_launches(argv, words, monkeypatch, tmp_path):
    monkeypatch.setattr(subprocess, "run", None)
    monkeypatch.chdir(tmp_path)
    argv = argv if "--runs" in argv else f"--runs 1x8 {argv}"
    with pytest.raises(errors.BadInput) as caught:
        bench_cards.main([*SMALL_BENCH, *argv.split()])
    assert words in str(caught.value) and not list(tmp_path.iterdir())


def test_the_bench_needs_its_cards(monkeypatch, tmp_path):
    monkeypatch.setattr(subprocess, "run", None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(errors.BadInput, match="--runs 2x64: needs 2 cards, and PyTorch sees 1"):
        bench_cards.main(["--out", str(tmp_path / "cards.json")])


def test_the_bench_says_that_a_run_failed(monkeypatch, tmp_path):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=3))
    with pytest.raises(errors.BadInput, match="--runs 1x8: its processes ended with code 3"):
        bench_cards.main([*SMALL_BENCH, "--runs", "1x8", "--out", str(tmp_path / "cards.json")])


def test_two_processes_are_timed(tmp_path):
    """The bench for several cards, small and on the CPU, without its launcher."""
    in_two_processes(timed_by_the_bench, tmp_path)
    was_timed(json.loads((tmp_path / "cards.json").read_text()), 2)


@pytest.mark.slow
def test_the_bench_launches_one_process_and_two(tmp_path):
    subprocess.run([sys.executable, ROOT / "examples" / "bench_cards.py", *SMALL_BENCH,
                    "--runs", "1x8,2x16"], check=True,
                   cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=300)
    result = json.loads((tmp_path / "cards.json").read_text())
    was_timed(result["1x8"], 1)
    was_timed(result["2x16"], 2)


@pytest.mark.parametrize("last, said", [(5, "2.00 s a step"), (2, "none was left to train")])
def test_the_time_of_a_step_after_a_resume(last, said, tmp_path, monkeypatch, capsys):
    """Six seconds of this call, for the three steps after the checkpoint of step 2. At the end the
    process waits for the others, lets PyTorch's threads have their turn, and then leaves."""
    ended = SimpleNamespace(metrics={"train_runtime": 6.0}, global_step=last)
    left = []
    accelerator = SimpleNamespace(print=print, wait_for_everyone=lambda: left.append("waits"),
                                  end_training=lambda: left.append("ends"))
    monkeypatch.setattr(trl_grail, "CreditGRPOTrainer", lambda *args, **kwargs: SimpleNamespace(
        train=lambda resume_from_checkpoint: ended, accelerator=accelerator))
    monkeypatch.setattr(trl_grail.time, "sleep", lambda seconds: left.append(seconds))
    (tmp_path / "trainer_state.json").write_text('{"global_step": 2}')
    trl_grail.main(["--use_cpu", "--bf16", "false", "--save_strategy", "no", "--output_dir",
                    str(tmp_path), "--resume_from_checkpoint", str(tmp_path)])
    assert said in capsys.readouterr().out and left == ["waits", 0.1, "ends"]


def test_the_mean_weight_is_of_tokens_with_an_advantage(monkeypatch):
    """As grpo.py's weight_mean: GRAIL gives a box the weight 5 in every row, and a row without an
    advantage trains nothing. Without any such row it is GRPO's 1."""
    tokenizer, data, _ = drawn()
    out = rollout.sample(problems.load_policy("tiny")[0], tokenizer, data["prompt"], samples=2,
                         max_new_tokens=40)
    batch = {"prompt_ids": out.prompt_ids, "prompt_mask": out.prompt_mask.long(),
             "completion_ids": out.completion_ids, "completion_mask": out.completion_mask.long()}
    for A in ([1.0, -1.0] + [0.0] * 6, [0.0] * 8):
        metrics = defaultdict(list)
        stand_in = SimpleNamespace(
            credit="grail", model=problems.load_policy("tiny")[0], processing_class=tokenizer,
            accelerator=Accelerator(cpu=True), temperature=1.0, _train_batch_size=4,
            _metrics={"train": metrics})
        batch["advantages"] = torch.tensor(A)
        w = trl_grail.CreditGRPOTrainer.weights(stand_in, batch)
        trained = [float(w[i, t]) for i in range(8) for t in range(out.completion_ids.shape[1])
                   if A[i] and out.completion_mask[i, t]]
        assert (w[2:][out.completion_mask[2:]] != 1).any()
        want = sum(trained) / len(trained) if trained else 1
        assert metrics["credit/mean"] == [pytest.approx(want)]


def test_mistakes_are_one_sentence(tmp_path, monkeypatch, capsys):
    """A file that is not there, settings that TRL refuses, TRL not installed: no traceback."""
    (tmp_path / "trainer_state.json").write_text('{"global_step": 2}')
    for argv, reason in ((["--dataset", "no.jsonl"], "--dataset no.jsonl: there is no such file."),
                         (["--num_generations", "7"], "7"),
                         (["--model", "no/where/here"], "--model no/where/here"),
                         (["--resume_from_checkpoint", "none"], "_checkpoint none: no checkpoint"),
                         (["--resume_from_checkpoint", str(tmp_path)], "has no weights")):
        with pytest.raises(errors.BadInput, match=reason):
            trl_grail.main([*argv, "--use_cpu", "--bf16", "false", "--output_dir", str(tmp_path)])
    with pytest.raises(ValueError, match="oar-g"):
        trainer_of("gral", tmp_path)
    fsdp = SimpleNamespace(is_fsdp2=True, device=torch.device("cpu"))
    monkeypatch.setattr(GRPOTrainer, "__init__", lambda self, *_, **__: vars(self).update(
        is_fsdp_enabled=True, accelerator=fsdp, args=SimpleNamespace(use_liger_kernel=False)))
    for credit in ("grail", "delta", "none"):
        trl_grail.CreditGRPOTrainer(credit=credit)
    with pytest.raises(ValueError, match="without FSDP, oar-g"):
        trl_grail.CreditGRPOTrainer(credit="oar-g")
    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(ROOT / "examples" / "trl_grail.py"))
    assert stop.value.code == 2 and "pip install trl" in capsys.readouterr().err

