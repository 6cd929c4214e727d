"""`train` with a sampler that follows a script: all that goes in, all that is written.

Two steps, saved, and a third after --resume; then the same again through a method's own hooks. What
is expected is worked out here from the script, the flags and tests/naive.py.
"""
import contextlib
import hashlib
import html
import inspect
import io
import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import naive
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

import evaluate
import grpo
import problems
import rollout
from engine import runs

ROOT = Path(__file__).resolve().parent.parent
SEED, LR, WARMUP, PROMPTS, GROUP, TRAIN = 6, 0.01, 4, 7, 4, 18
ROWS = [{"id": str(i), "problem": f"Start with {3 * i + 1}, add {i}.", "answer": str(4 * i + 1)}
        for i in range(20)]
# The tenth that is held out: the problems whose SHA-256 is the lowest, here the last two rows.
ROWS.sort(key=lambda row: hashlib.sha256(row["problem"].encode()).digest(), reverse=True)
LOOP = dict(loss="sequence", mask_truncated=True, kl=0.3, temperature=0.8, scale_by_std=True,
            num_iterations=2, clip_low=0.1, clip_high=0.2, grad_clip=0.05, max_new_tokens=60)

# What completion j of the prompt in place i says in step k: SCRIPT[(k + i) % 5][j]. Right, Wrong,
# Lenient (right, but in no box), Cut off before a stop token, Boxed right and then cut off.
SCRIPT = ["RWLC", "WRBR", "WLWC", "RRRR", "LWRW"]
# And what the held-out problems get: by call (sampled, greedy; before, after, after), problem,
# sample.
HELD_OUT = [["RW", "RR"], ["W", "R"], ["WW", "RW"], ["R", "R"], ["RR", "WC"], ["W", "W"]]


def flags(folder, policy, data, **changes):
    """The command line of these runs: the one place where the flags' names stand."""
    values = dict(model=policy, data=data, name=folder, steps=2, prompts=PROMPTS, group=GROUP,
                  seed=SEED, lr=LR, warmup=WARMUP, tokens_per_microbatch=300, eval_problems=2,
                  eval_samples=2, save_every=2, snapshot_every=2, pages_every=2, thinking=True,
                  device="cpu", **LOOP)
    argv = []
    for name, value in {**values, **changes}.items():
        if value is not False:
            argv += [f"--{name.replace('_', '-')}", *[str(value)] * (value is not True)]
    return argv


def parsed(argv):
    return grpo.parse(grpo.flags("grpo", ""), argv)


def train(argv, credit, **hooks):
    """A run in this process: (what `train` returns, what it prints, what it warns of)."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        summary = grpo.train(parsed(argv), credit, **hooks)
    return summary, out.getvalue(), err.getvalue()


class Stage:
    """The sampler, the optimizer and the clock of a run, which note all that they are given."""

    def __init__(self, patch, rows, script=SCRIPT, held_out=HELD_OUT, noise=.02):
        self.rows, self.script, self.held_out, self.noise = rows, script, held_out, noise
        self.sampled, self.measured, self.passes, self.credits = [], [], [], []
        self.now, self.peaks = 5000.0, iter([9.0, 2.0, 5.0, 9.0, 7.0, 3.0, 8.0, 1.0, 4.0])
        stage = self

        class Adam(torch.optim.AdamW):
            def step(self):
                group, = self.param_groups
                values = [p.detach().clone() for p in group["params"]]
                stage.passes.append((values, [p.grad.clone() for p in group["params"]], {
                    name: value for name, value in group.items() if name != "params"}))
                stage.now += 1.5
                super().step()

        patch.setattr(torch.optim, "AdamW", Adam)
        patch.setattr(grpo, "sample", self.sample)
        patch.setattr(evaluate, "sample", self.measure)
        patch.setattr(runs.time, "time", lambda: self.now)
        patch.setattr(runs, "peak_gb", lambda model: next(self.peaks))

    def row(self, prompt):
        return next(row for row in self.rows if row["problem"] in prompt)

    def speak(self, call, kinds, lengthen):
        """Rollouts in which completion j of prompt i is of this kind, and fillers make lengths
        unequal."""
        tokenizer, texts, ids, finished = call.tokenizer, [], [], []
        for i, prompt in enumerate(call.prompts):
            gold = self.row(prompt)["answer"]
            for j in range(call.samples):
                text = "so " * ((5 * i + 3 * j + lengthen) % 4) + {
                    "R": rf"it is \boxed{{{gold}}}", "W": rf"\boxed{{{int(gold) + 1}}}",
                    "L": f"the answer is {gold}", "C": f"{gold} and",
                    "B": rf"\boxed{{{gold}}} and"}[kinds(i)[j]]
                stop = [2] * (kinds(i)[j] not in "BC")
                ids.append(tokenizer(text, add_special_tokens=False).input_ids + stop)
                finished.append(bool(stop))
                texts.append(text)
        prompts = [tokenizer(prompt, add_special_tokens=False).input_ids
                   for prompt in call.prompts for _ in range(call.samples)]
        prompt_ids, prompt_mask = rollout.pad(prompts, 0, "left")
        completion_ids, mask = rollout.pad(ids, 0, "right")
        out = rollout.Rollouts(prompt_ids, prompt_mask, completion_ids, mask.sum(1),
                               torch.tensor(finished), torch.zeros(mask.shape), texts)
        out.logprobs = naive.sampler_logprobs(call.model, out, call.temperature or 1.0, self.noise)
        return out

    def call(self, args, options):
        bound = inspect.signature(rollout.sample).bind(*args, **options)
        bound.apply_defaults()
        call = SimpleNamespace(**bound.arguments, torch_seed=torch.initial_seed())
        call.parameters = [p.detach().clone() for p in call.model.parameters()]
        return call

    def sample(self, *args, **options):
        call, k = self.call(args, options), len(self.sampled)
        call.kinds = [self.script[(k + i) % len(self.script)] for i in range(len(call.prompts))]
        call.rollouts = self.speak(call, call.kinds.__getitem__, k)
        call.rows = [self.row(prompt) for prompt in call.prompts]
        right = [[kind in "RB" for kind in kinds[:call.samples]] for kinds in call.kinds]
        call.rewards = torch.tensor(right).float().view(-1, GROUP)
        self.sampled.append(call)
        self.credits.append(naive.Credit(call.rollouts, seed=10 + k))
        self.spread(self.credits[-1].table)
        self.now += 2
        return call.rollouts

    def measure(self, *args, **options):
        call, n = self.call(args, options), len(self.measured)
        self.measured.append(call)
        # 18 and 19 are held out, whatever order they are asked in.
        return self.speak(call, lambda i: self.held_out[n][self.rows.index(
            self.row(call.prompts[i])) - len(self.rows) + 2], n)

    def credit(self, forward):
        return self.credits[-1](forward)

    def spread(self, table):
        """Completion 16 of every step gets the weights furthest from 1: it is the example."""
        table[4 * GROUP] += 8


def saved_policy(folder):
    """A random policy on disk, whose chat template says whether it was told to think."""
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "data/tiny")
    tokenizer.chat_template += "{% if enable_thinking %}think: {% endif %}"
    naive.policy(vocab=131, stop=2).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def stream(total, seed, count):
    """The first `count` row numbers of an endless row of shuffled epochs."""
    found = []
    for epoch in range(count // total + 1):
        generator = torch.Generator().manual_seed(seed * 9973 + epoch)
        found += torch.randperm(total, generator=generator).tolist()
    return found[:count]


def json_lines(path):
    return [json.loads(line) for line in path.open(encoding="utf-8")]


def parameters_of(folder):
    """The weights of a saved model, in the order of the model's parameters."""
    found = load_file(folder / "model.safetensors")
    names = [name for name, _ in naive.policy(vocab=131, stop=2).named_parameters()]
    return [found[name] for name in names]


def equal(a, b):
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b))


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """Two steps and, resumed, a third."""
    home = tmp_path_factory.mktemp("story")
    policy, data, folder = saved_policy(home / "policy"), home / "rows.jsonl", home / "run"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    with pytest.MonkeyPatch.context() as patch:
        stage = Stage(patch, ROWS)
        first = train(flags(folder, policy, data), stage.credit)
        saved = SimpleNamespace(
            parameters=parameters_of(folder / "checkpoint"),
            folders=sorted(path.name for path in folder.iterdir()),
            summary=json.loads((folder / "summary.json").read_text()),
            trainer=torch.load(folder / "checkpoint/trainer.pt", weights_only=True))
        second = train(["--resume", str(folder), "--steps", "3"], stage.credit)
    config = naive.settings(**LOOP)
    start = naive.policy(vocab=131, stop=2)
    starts = [values for values, _, _ in stage.passes]
    right = [naive.naive_update(start, starts[2 * k:2 * k + 2], call.rollouts, call.rewards,
                                stage.credits[k], config, start)
             for k, call in enumerate(stage.sampled)]
    return SimpleNamespace(stage=stage, first=first, second=second, saved=saved, folder=folder,
                           right=right, start=[p.detach() for p in start.parameters()],
                           metrics=json_lines(folder / "metrics.jsonl"))


# ------------------------------------------------------------------ what the sampler is asked


def test_every_step_samples_the_next_problems(story):
    """Nothing is left out between two steps, nothing done again after --resume, and the third step
    runs into the second epoch, which has another order."""
    order = stream(TRAIN, SEED, 3 * PROMPTS)
    assert len(story.stage.sampled) == 3 and len(set(order[:TRAIN])) == TRAIN
    for k, call in enumerate(story.stage.sampled):
        picked = order[k * PROMPTS:(k + 1) * PROMPTS]
        assert call.rows == [ROWS[i] for i in picked]
        assert call.prompts == [
            f"<|im_start|>user\n{ROWS[i]['problem']}{problems.SUFFIX}<|im_end|>"
            "<|im_start|>assistant\nthink: " for i in picked]


def test_every_step_has_random_numbers_of_its_own(story):
    """Keyed by the run's seed, the step and the problem; the same again after --resume. A problem
    that comes twice in one step gets two keys."""
    order = stream(TRAIN, SEED, 3 * PROMPTS)
    assert len(set(order[2 * PROMPTS:])) < PROMPTS  # the third step has one twice
    for k, call in enumerate(story.stage.sampled):
        assert call.seed == call.torch_seed == SEED * 1_000_003 + k
        picked = order[k * PROMPTS:(k + 1) * PROMPTS]
        assert call.keys == [i + TRAIN * picked[:n].count(i) for n, i in enumerate(picked)]
        assert len(set(call.keys)) == PROMPTS


def test_every_step_samples_from_the_policy_as_it_is(story):
    """At --temperature and without cut-offs, or the loss is of another distribution than the one
    that was sampled."""
    steps = [story.start, story.stage.passes[2][0], story.stage.passes[4][0]]
    for call, parameters in zip(story.stage.sampled, steps):
        assert (call.temperature, call.top_p, call.top_k) == (0.8, 1.0, 0)
        assert (call.samples, call.max_new_tokens, call.batch_size) == (GROUP, 60, None)
        assert equal(call.parameters, parameters)


# ------------------------------------------------------------------ what the optimizer is given


def test_every_gradient_is_the_naive_one(story):
    """Of six passes: rewards of a box alone, each with its own row's gold, advantages in its own
    group, the reference that of the very start and at the policy's temperature, clipped to
    --grad-clip."""
    assert len(story.stage.passes) == 6
    for k, right in enumerate(story.right):
        for (_, found, _), expected in zip(story.stage.passes[2 * k:2 * k + 2], right.gradients):
            assert naive.apart(found, expected) < 1e-5
            norm = torch.cat([g.flatten() for g in found]).norm()
            assert float(norm) == pytest.approx(LOOP["grad_clip"], rel=1e-4)
        assert right.margin > 5e-6 and right.figures["kl"] > 0 and right.figures["clipped"] > 0


def test_every_step_is_adam_s(story):
    """Adam by hand, over all six passes: betas 0.9 and 0.999, eps 1e-8, no decay, the rate in its
    warm-up, and moments that --resume brings back."""
    mean = [torch.zeros_like(p).double() for p in story.start]
    square = [torch.zeros_like(p).double() for p in story.start]
    after = [values for values, _, _ in story.stage.passes[1:]]
    after.append(parameters_of(story.folder / "checkpoint"))
    assert equal(story.stage.passes[0][0], story.start)
    for n, (values, gradients, group) in enumerate(story.stage.passes):
        lr = LR * (n // 2 + 1) / WARMUP
        assert group["lr"] == pytest.approx(lr) and group["betas"] == (0.9, 0.999)
        assert group["eps"] == 1e-8 and group["weight_decay"] == 0
        assert not group["amsgrad"] and not group["maximize"]
        for m, v, g, p, new in zip(mean, square, gradients, values, after[n], strict=True):
            m += 0.1 * (g.double() - m)
            v += 0.001 * (g.double() ** 2 - v)
            step = m / (1 - 0.9 ** (n + 1)) / ((v / (1 - 0.999 ** (n + 1))).sqrt() + 1e-8)
            torch.testing.assert_close((p - lr * step).float(), new, rtol=1e-6, atol=1e-6)


# ------------------------------------------------------------------ what is logged


def test_every_figure_of_every_step_is_the_naive_one(story):
    assert [line["step"] for line in story.metrics] == [1, 2, 3]
    for k, (line, call, right) in enumerate(zip(story.metrics, story.stage.sampled, story.right)):
        tokens = sum(call.rollouts.lengths.tolist())
        kinds = "".join(call.kinds)
        expected = {
            **right.figures, "step": k + 1,
            "reward": sum(kind in "RB" for kind in kinds) / len(kinds),
            "truncated": sum(kind in "BC" for kind in kinds) / len(kinds),
            "boxed": sum(kind in "RBW" for kind in kinds) / len(kinds), "repeats": 0.0,
            "length": tokens / len(kinds), "seconds": 5.0, "tokens_per_second": tokens / 5,
            "sampling_share": 0.4, "judging_share": 0.0,
            "peak_gb": [5.0, 7.0, 4.0][k]}
        assert set(line) == set(expected)
        for name, value in expected.items():
            assert line[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
        assert 0 < line["informative"] < line["groups"] == PROMPTS


def test_every_step_prints_its_figures(story):
    printed = (story.first[1] + story.second[1]).splitlines()
    for line in story.metrics:
        text, = [text for text in printed if text.startswith(f"step {line['step']:4d} ")]
        cells = ("{reward:.3f}", "{informative}/7", "{length:.0f}", "{grad_norm:.3f}",
                 "{weight_mean:.2f} [{weight_min:.2f}, {weight_max:.2f}]", "{seconds:.1f}")
        assert text.split()[2:] == " ".join(cells).format(**line).split()
        assert len(text) <= 80
    assert story.first[1].count("norm of the gradient") == 1  # the legend, once a run
    # The entropy, 4.5 or so, is above 0.9 ln V of this tokenizer: said once in each process.
    assert all(line["entropy"] > 0.9 * math.log(131) for line in story.metrics)
    for _, _, warned in (story.first, story.second):
        assert warned.count("near ln V = 4.9, so the text is random") == 1
        assert "cut off: raise" not in warned and "have no \\boxed" not in warned


def test_every_step_shows_one_group_of_completions(story):
    """With its own problem, gold and rewards."""
    found = json_lines(story.folder / "samples.jsonl")
    assert len(found) == 3 * GROUP
    for n, sample in enumerate(found):
        call, j = story.stage.sampled[n // GROUP], n % GROUP
        assert sample == {
            "step": n // GROUP + 1, "problem": call.rows[0]["problem"],
            "gold": call.rows[0]["answer"], "completion": call.rollouts.texts[j],
            "reward": float(call.kinds[0][j] in "RB")}


# ------------------------------------------------------------------ what is saved


def test_the_run_is_saved_when_it_should_be(story):
    """After step 2 once, though it is the last one too; after step 3 because it is the last."""
    assert story.saved.folders == ["checkpoint", "config.json", "held_out.jsonl", "lock",
                                   "metrics.jsonl", "pages", "samples.jsonl", "snapshots",
                                   "summary.json"]
    assert [row["problem"] for row in json_lines(story.folder / "held_out.jsonl")] == [
        ROWS[19]["problem"], ROWS[18]["problem"]]
    assert story.saved.trainer["step"] == 2
    assert equal(story.saved.parameters, story.stage.passes[4][0])
    old, new = (torch.load(story.folder / name / "trainer.pt", weights_only=True)
                for name in ("checkpoint.old", "checkpoint"))
    assert (old["step"], new["step"]) == (2, 3)
    assert (new["settings"]["lr"], new["settings"]["seed"]) == (LR, SEED)
    assert not equal(parameters_of(story.folder / "checkpoint"), story.saved.parameters)
    assert [path.name for path in (story.folder / "snapshots").iterdir()] == ["step_00002"]
    assert equal(parameters_of(story.folder / "snapshots/step_00002"), story.saved.parameters)
    config = json.loads((story.folder / "config.json").read_text())
    assert (config["steps"], config["kl"], config["seed"]) == (3, 0.3, SEED)


def test_the_page_is_of_its_own_step(story):
    index, page = sorted((story.folder / "pages").iterdir())
    text = html.unescape(page.read_text())
    assert page.name == "step_00002.html" and "GRPO, step 2 of 2" in text
    assert f"reward {story.metrics[1]['reward']:.3f} in this step" in text
    listed = index.read_text()
    assert "step_00002.html" in listed and "step_00003" not in listed
    for when in ("before", "after"):  # the list is made again once the accuracy is known
        accuracy = story.second[0][when]["sampled"]["accuracy"]
        assert f"{when} the training {100 * accuracy:.1f} % sampled" in listed
    call, right = story.stage.sampled[1], story.right[1]
    shown = {True: [], False: []}
    for i in right.rows:  # of every problem the first right and the first wrong one, two of each
        if not right.weights[i].any():
            continue  # of advantage 0: it ran for the KL term alone
        problem = call.rows[i // GROUP]["problem"]
        verdict = call.kinds[i // GROUP][i % GROUP] in "RB"
        if len(shown[verdict]) < 2 and problem not in shown[verdict]:
            shown[verdict].append(problem)
    found = re.findall(r"Start with \d+, add \d+\.", text)
    assert list(dict.fromkeys(found)) == list(dict.fromkeys(shown[True] + shown[False]))


def is_the_widest(example, call, right, scaled=True):
    """Of all completions of a step the one in which the sum of |w - 1| over its tokens is largest;
    returns its number."""
    lengths = call.rollouts.lengths.tolist()
    spread = {i: float((right.weights[i, :lengths[i]] - 1).abs().sum()) for i in right.rows}
    i = max(spread, key=spread.get)
    assert example["ids"] == call.rollouts.completion_ids[i, :lengths[i]].tolist()
    assert example["weights"] == pytest.approx(right.weights[i, :lengths[i]].tolist(), abs=1e-5)
    assert example["problem"] == call.rows[i // call.samples]["problem"]
    assert example["reward"] == float(call.rewards.flatten()[i])
    assert example["gold"] == call.rows[i // call.samples]["answer"]
    group = [float(reward) for reward in call.rewards.view(-1, GROUP)[i // GROUP]]
    mean = sum(group) / GROUP
    std = (sum((r - mean) ** 2 for r in group) / GROUP) ** .5
    A = (example["reward"] - mean) / (std + 1e-6 if scaled else 1)
    assert example["A"] == pytest.approx(A)
    logprobs = call.rollouts.logprobs[i, :lengths[i]].tolist()
    assert example["p"] == pytest.approx([math.exp(p) for p in logprobs])
    assert (example["own"] is None) == scaled and len(example["entropy"]) == lengths[i]
    return i


def test_the_example_is_the_completion_with_the_widest_weights(story):
    """Of the last step, not of the first ones; in one of the two its verdict is its own alone."""
    is_the_widest(story.second[0]["example"], story.stage.sampled[2], story.right[2])
    assert story.second[0]["example"]["step"] == 3 and story.saved.summary["example"]["step"] == 2
    # Its entropies are those of which the log has the mean, which is the naive one.
    entropy = story.stage.sampled[2].rollouts.entropy
    tokens = sum(story.stage.sampled[2].rollouts.lengths[i] for i in story.right[2].rows)
    assert float(entropy.sum() / tokens) == pytest.approx(story.metrics[2]["entropy"], rel=1e-5)
    found = is_the_widest(story.saved.summary["example"], story.stage.sampled[1], story.right[1])
    rewards = story.stage.sampled[1].rewards.flatten()
    assert found == 4 * GROUP and rewards[found] != rewards[0]


def test_the_score_is_of_held_out_problems_before_and_after(story):
    """Sampled at T = 1, whatever --temperature says, and greedy; before the first step and after
    the last, and not again when a run is resumed."""
    calls = story.stage.measured
    last = parameters_of(story.folder / "checkpoint")
    policies = [story.start] * 2 + [story.saved.parameters] * 2 + [last] * 2
    assert [call.temperature for call in calls] == [1.0, 0.0] * 3
    assert [call.samples for call in calls] == [2, 1] * 3
    for call, parameters in zip(calls, policies, strict=True):
        assert [problem in prompt for problem, prompt in zip(
            (ROWS[19]["problem"], ROWS[18]["problem"]), call.prompts, strict=True)]
        assert all(prompt.endswith("think: ") for prompt in call.prompts)
        assert (call.seed, call.max_new_tokens, call.top_p, call.top_k) == (SEED, 60, 1.0, 0)
        assert equal(call.parameters, parameters) and call.keys == calls[0].keys
    summary = json.loads((story.folder / "summary.json").read_text())
    assert summary == json.loads(json.dumps(story.second[0]))
    assert summary["folder"] == str(story.folder)
    assert summary["step"] == 3 and story.saved.summary["step"] == 2
    scores = [(s["sampled"]["accuracy"], s["greedy"]["accuracy"]) for s in (
        summary["before"], story.saved.summary["after"], summary["after"])]
    assert scores == [(0.75, 0.5), (0.25, 1.0), (0.5, 0.0)]
    assert story.saved.summary["before"] == summary["before"]
    assert "before: sampled 75.0 %" in story.first[1] and "after : sampled 25.0 %" in story.first[1]
    assert "before:" not in story.second[1] and "after : sampled 50.0 %" in story.second[1]


# ------------------------------------------------------------------ a method's own hooks


def test_the_hooks_of_a_method(tmp_path, monkeypatch):
    """Two prompts a problem, verdicts and token advantages of the method's own, a credit that sees
    the whole batch, data with a test split, another seed, no warm-up. In the second step no
    advantage is given: nothing moves, and the example stays the first step's."""
    train_rows, test_rows = ROWS[:9], ROWS[15:]
    monkeypatch.setattr(problems, "load_problems", lambda name, split="train", limit=None: {
        "train": train_rows, "test": test_rows}[split])
    stage = Stage(monkeypatch, ROWS, held_out=[["R"] * 5] * 4)
    judged, looked = [], []

    def near_nothing(table):
        table.clamp_(0.5, 0.9)
        table[5] = 0.01

    def ask(tokenizer, row, config):
        return [f"first: {row['problem']}", f"second: {row['problem']}"]

    def judge(rollouts, rows, config, tokenizer, model):
        judged.append((rollouts, rows, tokenizer))
        stage.now += 3
        if len(judged) == 2:
            return torch.ones(3, GROUP), torch.zeros(rollouts.completion_ids.shape), {"mine": 0.5}
        return stage.sampled[-1].rewards, naive.token_advantages(rollouts), {"mine": 0.25}

    def look(forwards, advantages, mask):
        looked.append(sorted(i for forward in forwards for i in forward.rows.tolist()))
        return stage.credit

    stage.spread = near_nothing
    policy, folder = saved_policy(tmp_path / "policy"), tmp_path / "run"
    argv = flags(folder, policy, "arithmetic", prompts=3, kl=0.0, seed=7, warmup=0,
                 num_iterations=1,
                 scale_by_std=False, mask_truncated=False, loss="constant", grad_clip=1e9,
                 save_every=0, pages_every=0, snapshot_every=0, eval_problems=3, eval_samples=1,
                 tokens_per_microbatch=100)
    summary, printed, _ = train(argv, None, make_prompts=ask, reward_fn=judge,
                                whole_batch=look)

    order, first = stream(9, 7, 6), stage.sampled[0]
    for k, (call, (rollouts, rows, tokenizer)) in enumerate(zip(stage.sampled, judged)):
        picked = order[3 * k:3 * k + 3]
        assert rows == [train_rows[i] for i in picked] and rollouts is call.rollouts
        assert call.prompts == [f"{which}: {train_rows[i]['problem']}" for i in picked
                                for which in ("first", "second")]
        assert call.keys == [2 * i + j for i in picked for j in (0, 1)]
        assert call.samples == GROUP // 2 and call.seed == 7 * 1_000_003 + k
        assert tokenizer is call.tokenizer
    config = naive.settings(**{**LOOP, "kl": 0.0, "num_iterations": 1, "scale_by_std": False,
                               "loss": "constant", "mask_truncated": False, "grad_clip": 1e9})
    (values, gradients, group), = stage.passes
    right = naive.naive_update(naive.policy(vocab=131, stop=2), [values],
                               first.rollouts, first.rewards, stage.credits[0], config, None,
                               naive.token_advantages(first.rollouts))
    assert naive.apart(gradients, right.gradients[0]) < 1e-5 and group["lr"] == LR
    assert looked == [right.rows]
    one, two = json_lines(folder / "metrics.jsonl")
    for name, value in right.figures.items():
        assert one[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    assert one["mine"] == 0.25 and two["mine"] == 0.5
    # Nothing was trained: a gradient of 0.000 and weights of 1.00 would be numbers of nothing.
    cells, = [text.split()[2:] for text in printed.splitlines() if text.startswith("step    2 ")]
    assert cells == ["1.000", "0/3", f"{two['length']:.0f}", "-", "-", f"{two['seconds']:.1f}"]
    # Of 6.5 seconds sampling took 2, the verdicts 3 and the optimizer 1.5.
    assert (one["sampling_share"], one["judging_share"]) == pytest.approx((2 / 6.5, 3 / 6.5))
    assert (one["seconds"], two["judging_share"]) == (6.5, 0.6)
    assert two["informative"] == two["loss"] == two["grad_norm"] == two["ess"] == 0
    assert two["reward"] == 1
    asked = [problem for call in stage.measured for problem in call.prompts]
    assert [sum(row["problem"] in prompt for prompt in asked) for row in test_rows] == [4] * 3 + [
        0] * 2
    assert equal(parameters_of(folder / "checkpoint"), stage.measured[-1].parameters)
    assert not (folder / "snapshots").exists() and not (folder / "pages").exists()
    assert not (folder / "checkpoint.old").exists()
    assert is_the_widest(summary["example"], first, right, scaled=False) == 5


def test_the_controls_reach_the_loop(tmp_path, monkeypatch):
    """--credit uniform: the method's credit is not asked at all; --reward random: coins, with the
    verdicts logged beside them. The second step is past the warm-up, at the whole rate and no more.
    """
    stage = Stage(monkeypatch, ROWS)
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    argv = flags(tmp_path / "run", saved_policy(tmp_path / "policy"), data, steps=2, warmup=1,
                 eval_problems=0, credit="uniform", reward="random")
    train(argv, None)
    assert [group["lr"] for _, _, group in stage.passes] == [LR] * 4
    line, _ = json_lines(tmp_path / "run/metrics.jsonl")
    assert line["weight_min"] == line["weight_max"] == 1 and stage.measured == []
    assert line["right"] == pytest.approx(float(stage.sampled[0].rewards.mean()))
    coins = [sample["reward"] for sample in json_lines(tmp_path / "run/samples.jsonl")]
    assert line["reward"] != line["right"] and set(coins) <= {0, 1}
    assert json.loads((tmp_path / "run/summary.json").read_text())["before"] is None


def test_policy_and_reference_are_loaded_onto_the_device(monkeypatch):
    """On --resume the policy from the checkpoint, the reference from what --model names."""
    asked = []

    def load_policy(*about):
        asked.append(about)
        return naive.policy(), "tokenizer"

    monkeypatch.setattr(problems, "load_policy", load_policy)
    monkeypatch.setattr(grpo, "find", lambda folder, held: (folder, held))
    config = SimpleNamespace(resume="", model="m", device="card", kl=0.1, lr=0.5)
    model, tokenizer, reference, optimizer, checkpoint = grpo.load(config)
    assert asked == [("m", "card")] * 2 and tokenizer == "tokenizer" and checkpoint is None
    assert all(p.requires_grad for p in model.parameters())
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert not any(p.requires_grad for p in reference.parameters()) and reference is not model
    config.resume, config.kl = "runs/x", 0.0
    assert grpo.load(config)[2] is None and asked[2:] == [(("runs/x", True), "card")]


def test_train_checks_its_settings_itself(tmp_path):
    """A config that another program made did not pass the command line."""
    config = parsed(flags(tmp_path / "run", "nowhere", "nowhere", group=1))
    with pytest.raises(grpo.BadInput, match="--group 1"):
        grpo.train(config)
