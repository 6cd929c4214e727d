"""Monte Carlo credit on a policy whose values are known by hand, and in a run."""
import functools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen3Config, Qwen3ForCausalLM

import grpo
import problems
import rollout
import vine
from engine.errors import BadInput

# A policy that looks at the last token alone. Each token's text, and what follows it how often.
TEXTS = ["", "", "a\n", "b\n", r"\boxed{7}", r"\boxed{8}", "Ask."]
PAD, STOP, A, B, SEVEN, EIGHT, ASK = range(7)
TREE = {ASK: {A: .5, B: .5}, A: {SEVEN: .8, EIGHT: .2}, B: {SEVEN: .1, EIGHT: .6, A: .3},
        SEVEN: {STOP: 1}, EIGHT: {STOP: 1}, PAD: {STOP: 1}, STOP: {STOP: 1}}
# The chance that 7 will be in the box, by hand.
V_A, V_B = .8, .1 + .3 * .8
V_ASK = (V_A + V_B) / 2
ROW = {"id": "0", "problem": "Ask.", "answer": "7"}
NOBODY = SimpleNamespace(config=SimpleNamespace())  # a model that is never asked, of any context


class Words:
    """The tree's tokenizer. Text is never encoded: a method that tries to fails."""
    pad_token_id, eos_token_id = PAD, STOP

    def decode(self, ids, **_):
        return "".join(TEXTS[int(i)] for i in ids)

    def batch_decode(self, rows, **options):
        return [self.decode(row, **options) for row in rows]


@pytest.fixture(scope="module")
def policy():
    """A Qwen3 whose blocks add nothing, so that its logits are a table: column i, after token i."""
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(
        vocab_size=7, hidden_size=16, intermediate_size=8, num_hidden_layers=1, head_dim=8,
        num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=False,
        eos_token_id=STOP, pad_token_id=PAD, bos_token_id=None)).eval()
    layer, = model.model.layers
    layer.self_attn.o_proj.weight.data.zero_()
    layer.mlp.down_proj.weight.data.zero_()
    model.get_input_embeddings().weight.data = torch.eye(7, 16)
    table = torch.full((7, 16), -60.)
    for last, after in TREE.items():
        for token, p in after.items():
            table[token, last] = torch.tensor(p).log()
    model.lm_head.weight.data = table / 4  # the norm makes a unit vector of 16 numbers 4 long
    return model


def rollouts_of(prompts, completions, tokenizer):
    """These ids as if they had been sampled."""
    prompt_ids, prompt_mask = rollout.pad(prompts, PAD, "left")
    ids, mask = rollout.pad(completions, PAD, "right")
    texts = [tokenizer.decode(row, skip_special_tokens=True) for row in completions]
    return rollout.Rollouts(prompt_ids, prompt_mask, ids, mask.sum(1), mask.any(1),
                            torch.zeros(ids.shape), texts)


def settings(**changes):
    return SimpleNamespace(**{"group": 2, "cut": "newline", "continuations": 4, "seed": 0,
                              "max_new_tokens": 8, "temperature": 1.0, **changes})


def values(policy, prefixes, K, max_new_tokens=8, temperature=1.0):
    right, _ = vine.verdicts(policy, Words(), [[ASK]] * len(prefixes), prefixes,
                             [ROW] * len(prefixes), K, max_new_tokens, temperature, seed=1,
                             batch_size=10_000)
    assert right.shape == (len(prefixes), K) and set(right.flatten().tolist()) <= {0., 1.}
    return right.mean(1).tolist()


# ------------------------------------------------------------------ values


def test_the_values_of_a_tree_are_its_chances():
    """(That the tree's own values are right: every path enumerated.)"""
    def chance(token, left):
        if token in (SEVEN, EIGHT) or left == 0:
            return float(token == SEVEN)
        return sum(p * chance(after, left - 1) for after, p in TREE[token].items())
    assert [chance(token, 8) for token in (ASK, A, B)] == pytest.approx([V_ASK, V_A, V_B])


def test_values_are_the_success_rates_of_continuations(policy):
    """4,000 continuations each: within 5 standard deviations (.008 at most)."""
    prefixes = [[], [A], [B], [B, A], [SEVEN]]
    found = values(policy, prefixes, 4000)
    assert found == pytest.approx([V_ASK, V_A, V_B, V_A, 1.0], abs=.04)


def test_values_are_taken_at_the_rollouts_temperature(policy):
    """At T = 0.5 the chances are squared and scaled: .8 and .2 become .64 / .68 and .04 / .68."""
    found, = values(policy, [[A]], 4000, temperature=0.5)
    assert found == pytest.approx(.64 / .68, abs=.02)


def test_a_continuation_has_the_tokens_that_its_completion_had_left(policy):
    """With two tokens in all, the way over b and then a has no room for its box."""
    found = values(policy, [[], [A], [B]], 4000, max_new_tokens=2)
    assert found == pytest.approx([(.8 + .1) / 2, .8, .1], abs=.04)


# ------------------------------------------------------------------ lines


@pytest.mark.parametrize("ids, ends", [
    ([A, B, SEVEN, STOP], [1, 2, 4]),       # two lines, then the last with its stop token
    ([SEVEN, STOP], [2]),                   # one line
    ([A], [1]), ([A, STOP], [2]),           # nothing follows but the stop token: no line of its own
    ([A, A, A], [1, 2, 3])])
def test_lines_end_after_a_newline(ids, ends):
    assert vine.line_ends(Words(), ids) == ends


def test_blank_lines_belong_to_the_line_before():
    _, tokenizer = problems.load_policy("tiny")
    text = "7+5=12\n\n\n12-3=9\n\\boxed{9}."
    ids = tokenizer(text, add_special_tokens=False).input_ids
    ends = vine.line_ends(tokenizer, ids)
    cut = [tokenizer.decode(ids[a:b]) for a, b in zip([0, *ends], ends)]
    assert cut == ["7+5=12\n\n\n", "12-3=9\n", "\\boxed{9}."]


def test_an_indented_line_is_a_line():
    _, tokenizer = problems.load_policy("tiny")
    ids = tokenizer("7+5=12\n  12-3=9\n\\boxed{9}.", add_special_tokens=False).input_ids
    assert [tokenizer.decode(ids[:end]) for end in vine.line_ends(tokenizer, ids)][0] == "7+5=12\n"


@pytest.mark.parametrize("n, ends", [(2, [2, 4, 5]), (5, [5]), (9, [5]), (1, [1, 2, 3, 4, 5])])
def test_a_number_cuts_every_so_many_tokens(n, ends):
    assert vine.line_ends(None, [A] * 5, n) == ends


def test_the_tokens_of_a_line_get_its_difference():
    found = vine.line_advantages([1, 4], [.5, .75], 0)
    assert found.tolist() == [.25, -.75, -.75, -.75]


# ------------------------------------------------------------------ the reward function


def script(monkeypatch, right):
    """Continuations that are right by script: right(prompt, sample) -> bool. Returns the calls."""
    calls = []

    def sample(model, tokenizer, prompts, *, samples, **options):
        calls.append(SimpleNamespace(prompts=prompts, samples=samples, **options))
        said = [[SEVEN if right(prompt, k) else EIGHT, STOP]
                for prompt in prompts for k in range(samples)]
        return rollouts_of([[ASK]] * len(said), said, tokenizer)
    monkeypatch.setattr(vine, "sample", sample)
    return calls


def test_advantages_by_hand(monkeypatch):
    """V(prompt) 1/4, V(a) 2/4, V(b) 0: every token's advantage and the verdict at the end."""
    rate = {(ASK,): 1, (ASK, A): 2, (ASK, B): 0, (ASK, A, B): 3}
    script(monkeypatch, lambda prompt, k: k < rate[tuple(prompt)])
    completions = [[A, SEVEN, STOP], [A, B, EIGHT], [B, EIGHT, STOP], [SEVEN, STOP]]
    rewards, advantages, metrics = vine.line_reward(
        rollouts_of([[ASK]] * 4, completions, Words()), [ROW], settings(group=4), Words(), NOBODY)
    assert rewards.tolist() == [[1, 0, 0, 1]]
    assert advantages.tolist() == [[.25, .5, .5], [.25, .25, -.75], [-.25, 0, 0], [.75, .75, 0]]
    # The unbiased variance of a mean of 4 coins, of each of the 4 prefixes: V (1 - V) / 3.
    variance = (1 / 4 * 3 / 4 + 1 / 2 * 1 / 2 + 0 + 3 / 4 * 1 / 4) / 3 / 4
    assert metrics == {"lines": 8 / 4, "prefixes": 4, "value_tokens": 4 * 4 * 2,
                       "value_variance": pytest.approx(variance)}


def test_a_value_counts_what_the_reward_counts(monkeypatch):
    """A right number outside of any box earns nothing, so it is worth nothing on the way."""
    _, tokenizer = problems.load_policy("tiny")
    said = tokenizer("The answer is 7.", add_special_tokens=False).input_ids
    monkeypatch.setattr(vine, "sample", lambda model, tokenizer, prompts, **options: rollouts_of(
        prompts, [said] * len(prompts), tokenizer))
    right, tokens = vine.verdicts(NOBODY, tokenizer, [[5]], [[6]], [ROW], 1, 99)
    assert right.tolist() == [[0]] and tokens == len(said)


def test_a_box_in_a_thought_that_the_prompt_opened_is_worth_nothing(monkeypatch):
    """As in the reward: a value that counts it would pay for thinking without an end."""
    _, tokenizer = problems.load_policy("tiny")
    encode = functools.partial(tokenizer, add_special_tokens=False)
    texts = [r"It may be \boxed{7}.", r"So \boxed{8}.</think> No, \boxed{7}."]
    prompt, said = encode("Ask.<think>").input_ids, encode(texts).input_ids
    monkeypatch.setattr(vine, "sample", lambda model, tokenizer, prompts, **options: rollouts_of(
        prompts * 2, said, tokenizer))
    right, _ = vine.verdicts(NOBODY, tokenizer, [prompt], [[]], [ROW], 2, 99)
    assert right.tolist() == [[0, 1]]
    right, _ = vine.verdicts(NOBODY, tokenizer, [encode("Ask.").input_ids], [[]], [ROW], 2, 99)
    assert right.tolist() == [[1, 1]]


def test_no_row_is_sampled_beyond_the_limit_of_its_own_completion(monkeypatch):
    """A prompt of 10 and completions of 8 just fit a context of 18, however long the prefix is."""
    used, calls = [0, 3, 5, 7, 0, 1], []
    _, tokenizer = problems.load_policy("tiny")
    model = Qwen3ForCausalLM(Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=8, num_hidden_layers=1,
        head_dim=8, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=18))
    monkeypatch.setattr(vine, "sample", lambda *args, **options: calls.append(
        rollout.sample(*args, **options)) or calls[-1])
    _, tokens = vine.verdicts(model, tokenizer, [[5] * 10] * 6, [[6] * n for n in used], [ROW] * 6,
                              4, 8)
    lengths = calls[0].lengths.view(6, 4)
    assert lengths.max(1).values.tolist() == [8 - n for n in used]
    assert tokens == lengths.sum()


def test_a_continuation_that_does_not_stop_is_worth_nothing(monkeypatch):
    """Boxes again and again up to the cut; with one token more, the stop is in it."""
    _, tokenizer = problems.load_policy("tiny")
    said = tokenizer(r"\boxed{7} \boxed{7}", add_special_tokens=False).input_ids

    def sample(model, tokenizer, prompts, max_new_tokens, **options):
        ids = [*said, tokenizer.eos_token_id][:max_new_tokens[0]]
        out = rollouts_of(prompts, [ids], tokenizer)
        out.finished[:] = len(ids) > len(said)
        return out

    monkeypatch.setattr(vine, "sample", sample)
    for room, worth in ((len(said) + 2, 1), (len(said) + 1, 0)):
        right, _ = vine.verdicts(NOBODY, tokenizer, [[5]], [[6]], [ROW], 1, room)
        assert right.tolist() == [[worth]]


def test_shared_prefixes_are_sampled_once_and_only_within_a_problem(monkeypatch):
    """Two problems with the same words; of four completions, three begin alike."""
    calls = script(monkeypatch, lambda prompt, k: False)
    completions = [[A, B, SEVEN], [A, B, EIGHT], [A, SEVEN], [B, SEVEN]] * 2
    rows = [ROW, {**ROW, "id": "1", "answer": "8"}]
    _, advantages, metrics = vine.line_reward(
        rollouts_of([[ASK]] * 8, completions, Words()), rows, settings(group=4), Words(), NOBODY)
    own = [[ASK], [ASK, A], [ASK, A, B], [ASK, B]]
    call, = calls
    assert call.prompts == own * 2 and call.samples == 4 and metrics["prefixes"] == 8
    # The second problem's answer is 8, which every continuation says: V = 1 before every last line.
    assert advantages[4:, 0].tolist() == [0, 0, 0, 0]
    assert advantages[4, 2] == -1 and advantages[5, 2] == 0


def test_a_step_draws_numbers_of_its_own_and_the_same_ones_again(monkeypatch):
    calls = script(monkeypatch, lambda prompt, k: False)
    for completions, seed in (([[A, SEVEN], [B]], 0), ([[A, SEVEN], [B]], 0),
                              ([[A, EIGHT], [B]], 0), ([[A, SEVEN], [B]], 1)):
        vine.line_reward(rollouts_of([[ASK]] * 2, completions, Words()), [ROW],
                         settings(seed=seed, temperature=.7), Words(), NOBODY)
    seeds = [call.seed for call in calls]
    assert seeds[0] == seeds[1] and len(set(seeds)) == 3
    assert (calls[0].temperature, calls[0].max_new_tokens) == (.7, [8, 7])


def test_continuations_start_from_the_ids_that_were_sampled(monkeypatch):
    """A word that was said letter by letter is one token when its text is encoded again."""
    _, tokenizer = problems.load_policy("tiny")
    prompt, said, rest = (tokenizer(text, add_special_tokens=False).input_ids
                          for text in ("Start with 7, add 5.", "7+5=12\n", r"\boxed{12}"))
    spelled = tokenizer.convert_tokens_to_ids(list("roughly ")) + said
    assert tokenizer(tokenizer.decode(spelled)).input_ids != spelled
    starts = []

    def sample(model, tokenizer, prompts, **options):
        starts.extend(prompts)
        return rollouts_of(prompts, [rest] * len(prompts), tokenizer)
    monkeypatch.setattr(vine, "sample", sample)
    out = rollouts_of([prompt] * 2, [spelled + rest, rest], tokenizer)
    vine.line_reward(out, [{**ROW, "answer": "12"}], settings(continuations=1), tokenizer, NOBODY)
    assert starts == [prompt, prompt + spelled]


def test_sampling_from_ids_is_sampling_from_their_text():
    model, tokenizer = problems.load_policy("tiny")
    texts = [problems.build_prompt(tokenizer, p) for p in ("Start with 7, add 5.", "Start with 9.")]
    ids = tokenizer(texts, add_special_tokens=False).input_ids
    a, b = (rollout.sample(model, tokenizer, prompts, samples=2, max_new_tokens=12)
            for prompts in (texts, ids))
    assert a.texts == b.texts and torch.equal(a.prompt_ids, b.prompt_ids)
    assert torch.equal(a.logprobs, b.logprobs)
    with pytest.raises(ValueError, match="prompt 1 has no tokens"):
        rollout.sample(model, tokenizer, [[5], []], max_new_tokens=2)


# ------------------------------------------------------------------ what it is all for


def test_the_gradient_is_that_of_the_success_rate(policy):
    """The mean of A x d log pi over 2,400 completions against the derivative by hand, with one
    continuation a prefix: for the logit of `a` after the prompt p (1 - p) (V_A - V_B), for that of
    7 after `a` its visits (.5 + .5 x .3) times .8 x .2. Groups of 4 share prefixes, so the error is
    taken from the means of groups; 5 standard errors."""
    n = 600
    out = rollout.sample(policy, Words(), [[ASK]] * n, samples=4, max_new_tokens=8, seed=3)
    _, advantages, _ = vine.line_reward(out, [ROW] * n, settings(group=4, continuations=1), Words(),
                                        policy)
    ids = out.completion_ids
    before = torch.cat([torch.full((4 * n, 1), ASK), ids[:, :-1]], 1)
    for last, token, p, truth in ((ASK, A, .5, .25 * (V_A - V_B)),
                                  (A, SEVEN, .8, (.5 + .5 * .3) * .16)):
        score = ((ids == token).float() - p) * (before == last)
        each = (advantages * score).sum(1).view(n, 4).mean(1)
        error = float(each.std()) / n ** .5
        assert abs(float(each.mean()) - truth) < 5 * error < .05, (last, float(each.mean()), truth)


# ------------------------------------------------------------------ in a run

SHORT = ["--prompts", "2", "--group", "4", "--continuations", "2", "--eval-problems", "0",
         "--max-new-tokens", "48", "--warmup", "1"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two steps at once, and one step after another."""
    folder = tmp_path_factory.mktemp("runs")
    # Sixty of the embedded problems: all 7,000 take longer to load than a step takes.
    every = (problems.HERE / "data/arithmetic_train.jsonl").read_text().splitlines(keepends=True)
    (folder / "few.jsonl").write_text("".join(every[:60]))
    short = [*SHORT, "--data", "few.jsonl"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        vine.main([*short, "--steps", "2", "--name", "whole"])
        vine.main([*short, "--steps", "1", "--name", "half"])
        torch.manual_seed(9)
        vine.main(["--resume", "half", "--steps", "2"])
    return folder


def lines(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").open()]


@pytest.mark.slow
def test_a_resumed_run_is_the_unbroken_one_bit_for_bit(runs):
    a, b = (load_file(runs / name / "checkpoint/model.safetensors") for name in ("whole", "half"))
    start = load_file(problems.HERE / "data/tiny/model.safetensors")
    assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
    assert not torch.equal(a["model.norm.weight"], start["model.norm.weight"])
    for x, y in zip(lines(runs / "whole"), lines(runs / "half"), strict=True):
        for key in ("reward", "loss", "grad_norm", "prefixes", "value_tokens", "value_variance"):
            assert x[key] == y[key], key


def test_the_log_says_what_the_values_cost(runs):
    first, second = lines(runs / "whole")
    for line in (first, second):
        assert 0 < line["judging_share"] < 1 and line["value_tokens"] > line["prefixes"] * 2
        assert 0 <= line["value_variance"] <= .25
    assert first["value_tokens"] != second["value_tokens"]


@pytest.mark.parametrize("cut", ["newline", "5"])
def test_the_lines_of_a_completion_add_up(cut):
    """Verdict - V(prompt), and V(prompt) is one number for all completions of a problem."""
    model, tokenizer = problems.load_policy("tiny")
    rows = problems.load_problems("arithmetic", "test", limit=2)
    prompts = [problems.build_prompt(tokenizer, row["problem"]) for row in rows]
    out = rollout.sample(model, tokenizer, prompts, samples=4, max_new_tokens=48)
    config = settings(group=4, max_new_tokens=48, cut=cut)
    rewards, advantages, _ = vine.line_reward(out, rows, config, tokenizer, model)
    plain, _, _ = grpo.outcome_reward(out, rows, config, tokenizer, model)
    assert torch.equal(rewards, plain) and 0 < rewards.sum() < 8
    starts = []
    for row, (ids, verdict) in enumerate(zip(out.sampled, rewards.flatten().tolist())):
        ends = vine.line_ends(tokenizer, ids, cut if cut == "newline" else 5)
        total = 0.0
        for a, b in zip([0, *ends], ends):
            assert len(set(advantages[row, a:b].tolist())) == 1
            total += float(advantages[row, a])
        assert not advantages[row, len(ids):].any()
        starts.append(verdict - total)
    assert len(set(starts[:4])) == len(set(starts[4:])) == 1
    assert all(4 * start in range(5) for start in starts)


@pytest.mark.parametrize("argv, words", [
    (["--cut", "0"], "--cut 0: newline, or a number"), (["--cut", "word"], "--cut word"),
    (["--cut", "9" * 5000], "--cut 99"), (["--continuations", "0"], "--continuations 0"),
    (["--scale-by-std"], "--scale-by-std: vine.py compares"),
    (["--credit", "shuffled"], "vine.py gives all tokens one weight"),
    (["--reward", "random"], "the chance of a right answer")])
def test_settings_without_a_meaning_are_refused(argv, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=words):
        vine.main([*SHORT, *argv])
    assert not Path("runs").exists()
