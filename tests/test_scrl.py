"""Credit by solved prefix: the cases of the method by hand, and data that gives nothing away."""
import itertools
import json
import math
import random
import re
import sys
from types import SimpleNamespace

import pytest
import torch
from test_grail import Pieces
from test_grpo import CONFIG, Recorder
from test_rollout import Numbers, tiny

import grpo
import problems
import scrl
from engine.errors import BadInput
from evaluate import pass_at_k
from rollout import Rollouts

sys.path.insert(0, str(problems.HERE / "data"))
import make_tiny

S1 = torch.tensor([[1., 1, 0, 1], [1, 0, 1, 1], [1, 1, 1, 1], [0, 1, 1, 0]])
A1 = torch.tensor([[.577350, 1, -.577350, -.577350], [.577350, -1, -.577350, -.577350],
                   [.577350, 1, 1.732051, 1.732051], [-1.732051, -1, -.577350, -.577350]])


def close(actual, expected):
    """To 1e-5: the 1e-6 beside the standard deviation moves the sixth digit."""
    torch.testing.assert_close(actual, torch.as_tensor(expected), atol=1e-5, rtol=0)


# ------------------------------------------------------------------ advantages (N, K)


def test_prefix_and_columns_by_hand():
    """Row 2 solved its last item and gets -0.577 for it: a right answer after a wrong step is the
    shortcut that the cut is there to stop. Without the cut it gets +0.577."""
    close(scrl.column_advantages(S1), A1)
    close(scrl.column_advantages(S1, cut=False)[1], [.577350, -1.732051, .577350, .577350])
    last_three = scrl.column_advantages(S1[:, 1:])  # R = [[1,0,0],[0,0,0],[1,1,1],[1,1,0]]
    close(last_three[:, 1], [-1., -1, 1, 1])
    close(last_three[:, 2], [-.577350, -.577350, 1.732051, -.577350])


def test_columns_without_spread_are_zero():
    """0 / 0 is NaN, and one NaN in one column ends the run."""
    r = torch.tensor([[1., 0, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]])
    expected = torch.zeros(4, 4)
    expected[:, 1] = torch.tensor([-.577350, 1.732051, -.577350, -.577350])
    close(scrl.column_advantages(r), expected)
    assert (scrl.column_advantages(r)[:, [0, 2, 3]] == 0).all()


def test_share_of_informative_columns_by_enumeration():
    """All 2^n columns of one item, weighed by p: 1 - p^n - (1-p)^n of them say something. One
    success in 8 gets sqrt(7), its 7 neighbours -1/sqrt(7)."""
    for p, n, expected in ((.01, 8, .077255), (.02, 8, .149237), (.02, 4, .077632),
                           (.3, 8, .942286), (.3, 4, .751800)):
        share = 0.0
        for column in itertools.product([0., 1.], repeat=n):
            A = scrl.column_advantages(torch.tensor(column)[:, None])
            share += (A != 0).any() * p ** sum(column) * (1 - p) ** (n - sum(column))
        assert float(share) == pytest.approx(expected, abs=2e-6)
    close(scrl.column_advantages(torch.eye(8)[:, :1])[:, 0],
          [math.sqrt(7)] + [-1 / math.sqrt(7)] * 7)


def test_pass_at_k_of_the_method_s_evaluation():
    """64 samples a problem: 1 - C(n - c, k) / C(n, k), by exact binomials."""
    for n, c, k, expected in ((64, 3, 1, .046875), (64, 3, 8, .334677), (64, 60, 8, 1),
                              (10, 3, 2, .533333)):
        assert float(pass_at_k(torch.tensor([c]), n, k)) == pytest.approx(expected, abs=1e-6)
        assert 1 - math.comb(n - c, k) / math.comb(n, k) == pytest.approx(expected, abs=1e-6)


# ------------------------------------------------------------------ blocks and tokens


def test_malformed_answers_have_no_spans():
    """Half-right tags must not be half-credited: a block opened twice could be filled twice."""
    text = "So <p1>a</p1>\n<p2>bc</p2>."
    assert scrl.find_spans(text, 2) == [(7, 8), (18, 20)]
    assert scrl.find_spans("<think><p1> or <p2>?</think>" + text, 2) == [(35, 36), (46, 48)]
    for wrong, K in ((text, 1), (text, 3), ("", 2), ("<p1>a<p2>b</p1></p2>", 2),
                     ("<p2>b</p2><p1>a</p1>", 2), ("<p1>a</p1><p1>a</p1><p2>b</p2>", 2),
                     ("<p1>a</p1><p2>b", 2), ("<p1>a</p1><p2>b</p2><p3>", 2),
                     ("<p1>a</p1></p2>b<p2>", 2), ("<p1>a</p1><p02>b</p02>", 2),
                     ("<think>" + text, 2)):
        assert scrl.find_spans(wrong, K) is None, (wrong, K)


@pytest.mark.parametrize("pieces, expected", [
    ([b"<p1>", b"a", b"b", b"</p1>"], [1, 2]),
    ([b"<", b"p", b"1", b">", b"a", b"</", b"p1>"], [4]),        # tags of several tokens
    ([b"<p1", b">\n", b"a", b" b", b"b<", b"/p1>"], [2, 3]),     # tokens shared with the tags
    ([b"x <p1>", b"a", b"</p1> y"], [1]),
    ([b"<p1>a", b"</p1>"], []), ([b"<p1>", b"</p1>"], []), ([b"<p1>a</p1>"], []),
    ([b"\xc3", b"\xa9<p1>", b"\xc3", b"\xa9", b"\xe2", b"\x82\xac", b"</p1>"], [2, 3, 4, 5]),
    ([None, b"<p1>", b"a", b"</p1>", None], [2])])               # special tokens
def test_only_tokens_wholly_inside_a_block_count(pieces, expected):
    """A tag's token that got credit would teach the policy to open blocks, not to fill them; a
    count of tokens re-encoded from the text is off as soon as one of them is shared."""
    tokenizer, ids = Pieces(*pieces), list(range(len(pieces)))
    span, = scrl.find_spans(tokenizer.decode(ids), 1)
    assert ids[scrl.tokens_inside(tokenizer, ids, span)] == expected


def test_tokens_are_found_in_the_text_as_it_was_decoded():
    """Special tokens left out and spaces untouched, as in the text whose tags were looked for; an X
    at a prefix's end is a letter like any other."""
    class Untidy(Pieces):
        def decode(self, ids, skip_special_tokens=False, clean_up_tokenization_spaces=True):
            text = super().decode(ids, skip_special_tokens)
            return "tidied: " + text if clean_up_tokenization_spaces else text

    tokenizer = Untidy(None, b"X", b"<p1>", b"X", b"X", b"</p1>")
    span, = scrl.find_spans(tokenizer.decode(range(6), True, False), 1)
    assert scrl.tokens_inside(tokenizer, list(range(6)), span) == slice(3, 5)


class ByteFallback(Pieces):
    """Llama's way with a character that is not whole yet: one U+FFFD for each of its bytes."""

    def decode(self, ids, **_):
        raw = b"".join(self.pieces[i] for i in ids)
        whole = raw.decode("utf-8", "ignore")
        return whole + "\ufffd" * (len(raw) - len(whole.encode()))


def test_prefixes_grow_even_while_a_character_is_incomplete():
    """Three bytes decode to 1, 2 and then 1 character again: a binary search over lengths that
    fall loses the block's last tokens."""
    tokenizer = ByteFallback(b"<p1>", b"\xe2", b"\x82", b"\xac", b"</p1>")
    assert scrl.tokens_inside(tokenizer, [0, 1, 2, 3, 4], (4, 5)) == slice(1, 4)
    assert scrl.tokens_inside(tokenizer, [0, 1, 2, 3, 1, 2, 3, 4], (4, 6)) == slice(1, 7)


# ------------------------------------------------------------------ from texts to advantages


def rollouts_of(*token_lists):
    """(Rollouts, tokenizer) of completions given as lists of strings; None is the stop token."""
    pieces = sorted({token for tokens in token_lists for token in tokens if token}) + [None]
    tokenizer = Pieces(*(piece and piece.encode() for piece in pieces))
    lengths = torch.tensor([len(tokens) for tokens in token_lists])
    ids = torch.full((len(lengths), int(lengths.max())), len(pieces) - 1)
    for row, tokens in zip(ids, token_lists):
        row[:len(tokens)] = torch.tensor([pieces.index(token) for token in tokens])
    prompt = torch.full((len(ids), 1), 2)
    texts = [tokenizer.decode(row[:n].tolist()) for row, n in zip(ids, lengths)]
    return Rollouts(prompt, torch.ones_like(prompt, dtype=torch.bool), ids, lengths, lengths > 0,
                    torch.zeros(ids.shape), texts), tokenizer


def block(j, *inside):
    return [f"<p{j}>", *inside, f"</p{j}>"]


def solved(verdicts, fillers):
    """A well-formed completion with these verdicts; block j has its box and fillers[j] - 1 more."""
    tokens = ["Sure "]
    for j, (right, n) in enumerate(zip(verdicts, fillers), 1):
        tokens += block(j, *["x"] * (n - 1), rf"\boxed{{{j if right else 0}}}") + ["\n"] * (j == 1)
    return tokens + [None]


ROW = {"id": "a", "problem": "?", "answer": "4",
       "subproblems": [{"problem": "?", "answer": str(j)} for j in (1, 2, 3, 4)]}
ORIGINALS = [[r"\boxed{4}", None], ["no", None], ["no", " box", None], [r"\boxed{5}", None]]


def judged(arm, lessons, originals=ORIGINALS, row=ROW):
    out, tokenizer = rollouts_of(*lessons, *originals)
    config = SimpleNamespace(group=2 * len(lessons), arm=arm)
    return scrl.subproblem_reward(out, [row], config, tokenizer)


def lessons():
    """The verdicts of S1, the first row with the lengths of S4."""
    return [solved(S1[0], (2, 1, 3, 1))] + [solved(r, (1, 2, 1, 2)) for r in S1[1:]]


def test_credit_lands_strictly_inside_the_blocks():
    """`Sure <p1> a b </p1> \\n <p2> c </p2> <p3> d e f </p3> <p4> g </p4> EOS` has 7 credited
    tokens; the other 11, tags and stop token among them, get exactly 0."""
    rewards, A, figures = judged("scrl", lessons())
    expected = torch.zeros(18)
    expected[[2, 3]], expected[7], expected[[10, 11, 12, 15]] = .577350, 1, -.577350
    close(A[0, :18], expected)
    assert int((A[0] != 0).sum()) == 7
    assert rewards.tolist() == [[1, 1, 1, 0, 1, 0, 0, 0]]
    assert figures == {"compliance": 1, "prefix": (2 + 1 + 4 + 0) / 16, "original": .25}


def test_originals_are_plain_grpo_within_their_half():
    """Compared across halves, an original would be blamed for a lesson's success."""
    _, A, _ = judged("scrl", lessons())
    for row, tokens, value in zip(A[4:], ORIGINALS, (1.732051, -.577350, -.577350, -.577350)):
        close(row[:len(tokens)], torch.full((len(tokens),), value))
        assert (row[len(tokens):] == 0).all()


def test_malformed_rows_count_but_get_nothing():
    """Left out of mean and std, row 4 would change rows 1-3: column 1 would lose its spread."""
    answers = lessons()
    answers[3] = answers[2][:-3] + [None]  # </p4> is missing though every box is right
    rewards, A, figures = judged("scrl", answers)
    assert (A[3] == 0).all() and rewards[0, 3] == 0 and figures["compliance"] == .75
    close(A[0, :18][[2, 7, 10, 15]], A1[0])
    for i in (1, 2):
        close(A[i, [2, 6, 7, 10, 13]], A1[i][[0, 1, 1, 2, 3]])


def test_the_last_box_of_a_block_counts():
    """Boxes of all candidates in each block must not pay, nor the next block's box for this one."""
    hedge = [solved(S1[2], (1, 1, 1, 1)) for _ in range(2)]
    hedge[1][2:3] = [r"\boxed{1}", r"\boxed{9}"]
    hedge.append([*block(1), *sum((block(j, rf"\boxed{{{j}}}") for j in (2, 3, 4)), [])])
    hedge.append([*block(1, r"\boxed{9}", r"\boxed{1}"), *block(2, r"\boxed{2"),
                  *block(3, "}", r"\boxed{4}"), *block(4)])
    rewards, _, figures = judged("scrl", hedge)
    assert rewards[0, :4].tolist() == [1, 1, 1, 0]
    assert figures == {"compliance": 1, "prefix": (4 + 0 + 0 + 1) / 16, "original": .25}


def test_the_figures_are_of_all_problems():
    """The first problem's lessons are solved, the second's are not, one of them is malformed."""
    row = {"id": "a", "problem": "?", "answer": "2", "subproblems": ROW["subproblems"][:2]}
    right = [*block(1, r"\boxed{1}"), *block(2, r"\boxed{2}")]
    wrong = [*block(1, "none"), *block(2, "none")]
    texts = [right, right, ["no"], ["no"], wrong, ["no"], [r"\boxed{2}"], ["no"]]
    out, tokenizer = rollouts_of(*texts)
    config = SimpleNamespace(group=4, arm="scrl")
    _, _, figures = scrl.subproblem_reward(out, [row, row], config, tokenizer)
    assert figures == {"compliance": .75, "prefix": .5, "original": .25}


def test_an_answer_outside_of_a_box_is_not_right():
    """Neither in a block nor in an original: the reward is strict, or phrases would be learned."""
    phrase = ["The answer is 4", None]
    said = [[*block(1, "The answer is 1"), *block(2, "The answer is 2")]] * 2
    row = {**ROW, "answer": "4", "subproblems": ROW["subproblems"][:2]}
    rewards, A, figures = judged("scrl", said, [phrase, phrase], row)
    assert rewards.tolist() == [[0] * 4] and (A == 0).all()
    assert figures == {"compliance": 1, "prefix": 0, "original": 0}


def test_an_original_that_does_not_stop_earns_nothing():
    """As under grpo.py. A curriculum row has a box in each of its blocks: it keeps its verdicts."""
    again = [r"\boxed{4}", r"\boxed{4}"]
    lesson = solved([1, 1, 1, 1], (1, 1, 1, 1))[:-1]
    config = SimpleNamespace(group=8, arm="scrl")
    for done, earned in ((True, 1.0), (False, 0.0)):
        out, tokenizer = rollouts_of(*[lesson] * 4, *[again] * 4)
        out.finished[:] = done
        rewards, _, figures = scrl.subproblem_reward(out, [ROW], config, tokenizer)
        assert rewards.tolist() == [[1.0] * 4 + [earned] * 4] and figures["compliance"] == 1


def test_what_judge_returns_lies_where_the_rollouts_lie():
    """Its texts are read on the CPU; the update needs tensors of the card's."""
    here, tokenizer = rollouts_of(*lessons(), *ORIGINALS)
    there = SimpleNamespace(prompt_ids=here.prompt_ids, prompt_mask=here.prompt_mask,
                            completion_mask=here.completion_mask, texts=here.texts,
                            finished=here.finished, sampled=here.sampled,
                            lengths=here.lengths.to("meta"))
    config = SimpleNamespace(group=8, arm="scrl")
    rewards, A, _ = scrl.subproblem_reward(there, [ROW], config, tokenizer)
    assert rewards.device.type == A.device.type == "meta"
    assert rewards.shape == (1, 8) and A.shape == here.completion_mask.shape


def test_control_arms_differ_exactly_where_they_should():
    """A control that changes a second thing explains nothing."""
    answers = lessons()
    answers[3] = answers[3][:-3] + [None]  # malformed
    (r0, scrl_A, f0), (r1, no_cut, f1), (r2, both, f2) = (
        judged(arm, answers) for arm in ("scrl", "no-cut", "both-grpo"))
    assert f0 == f1 == f2 and torch.equal(r0, r1) and torch.equal(r0, r2)
    assert torch.equal(scrl_A[4:], no_cut[4:]) and torch.equal(scrl_A[4:], both[4:])
    # no-cut: r = 1101, 1011, 1111, 0000. Same tokens, same first column, other values after it.
    assert torch.equal(no_cut[:4] != 0, scrl_A[:4] != 0)
    assert torch.equal(no_cut[0, 2:4], scrl_A[0, 2:4])
    close(no_cut[1, [2, 6, 10, 13]], [.577350, -1., 1, .577350])
    # both-grpo: item 4 was solved by rows 1-3; every token of every row, the malformed one's too.
    for i, value in enumerate((.577350, .577350, .577350, -1.732051)):
        n = len(answers[i])
        close(both[i, :n], torch.full((n,), value))
        assert (both[i, n:] == 0).all()


def test_problems_of_unequal_length_share_a_batch():
    """K differs from problem to problem; rows must not slip by one problem or one half."""
    two = {"id": "b", "problem": "?", "answer": "2", "subproblems": ROW["subproblems"][:2]}
    short = [[*block(1, r"\boxed{1}"), *block(2, box)] for box in (r"\boxed{2}", "none")]
    short += [[r"\boxed{2}"], [r"\boxed{4}"]]
    long = [solved(S1[i], (1, 1, 1, 1)) for i in (0, 2)] + ORIGINALS[:2]
    out, tokenizer = rollouts_of(*short, *long)
    config = SimpleNamespace(group=4, arm="scrl")
    rewards, A, figures = scrl.subproblem_reward(out, [two, ROW], config, tokenizer)
    assert rewards.tolist() == [[1, 0, 1, 0], [1, 1, 1, 0]]
    # Solved from the front: 2/2 and 1/2, then 2/4 and 4/4; of the originals 1 of 2 in each.
    assert figures == {"compliance": 1, "prefix": (1 + .5 + .5 + 1) / 4, "original": .5}
    close(A[:2, 1:5], [[0., 0, 0, 1], [0, 0, 0, -1]])
    close(A[2:4, :2], [[1., 0], [-1, 0]])
    close(A[4, [2, 6, 9, 12]], [0., 0, -1, -1])
    close(A[5, [2, 6, 9, 12]], [0., 0, 1, 1])


# ------------------------------------------------------------------ the loss


def hand_batch():
    """S5: K = 2, lengths 6, 4 (curriculum) and 3, 5 (originals), as rollouts of a random model."""
    model, lengths = tiny(), torch.tensor([6, 4, 3, 5])
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 32, (4, 6), generator=generator)
    prompt = torch.full((4, 1), 7)
    out = Rollouts(prompt, torch.ones_like(prompt, dtype=torch.bool), ids, lengths, lengths > 0,
                   torch.zeros(4, 6), [""] * 4)
    A = torch.zeros(4, 6)
    by_block = scrl.column_advantages(torch.tensor([[1., 1], [1, 0]]))  # [[0, 1], [0, -1]]
    A[0, [1, 2]], A[0, 4] = by_block[0, 0], by_block[0, 1]
    A[1, 1], A[1, 3] = by_block[1]
    A[2:] = scrl.column_advantages(torch.tensor([[1.], [0]]))
    return model, out, A * out.completion_mask


def test_loss_by_hand_over_all_tokens():
    """1 - 1 + 3 - 5 over 18 tokens, with the sign turned: 2 / 18. Divided by the credited tokens
    alone it would be 2 / 10, with the mean of two halves something else again."""
    model, out, A = hand_batch()
    config = SimpleNamespace(**CONFIG)
    for budget in (8192, 1):
        config.tokens_per_microbatch = budget
        stats, _ = grpo.update(model, Recorder(model.parameters(), lr=0.0), out, torch.zeros(1, 4),
                               grpo.uniform, config, Numbers(), token_advantages=A)
        assert stats["loss"] == pytest.approx(2 / 18, abs=1e-6)
        assert stats["informative"] == 1  # by its tokens, though the rewards passed in are equal


def test_gradient_by_hand():
    """At ratio 1 the gradient is that of -sum(A log pi) / 18, token by token, whatever the rows'
    own group advantages are."""
    model, out, A = hand_batch()
    optimizer = Recorder(model.parameters(), lr=0.0)
    grpo.update(model, optimizer, out, torch.tensor([[0., 1, 1, 0]]), grpo.uniform,
                SimpleNamespace(**CONFIG), Numbers(), token_advantages=A)
    model.zero_grad()
    for i in range(4):  # one row at a time, without padding
        ids = torch.cat([out.prompt_ids[i], out.completion_ids[i, :out.lengths[i]]])[None]
        logprobs = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        (-(A[i, :out.lengths[i]] * logprobs).sum() / 18).backward()
    for found, p in zip(optimizer.found, model.parameters()):
        torch.testing.assert_close(found, p.grad, atol=1e-6, rtol=1e-4)


# ------------------------------------------------------------------ the prompt and the data


def test_the_prompt_is_the_one_the_tiny_model_knows():
    """Another comma and the embedded model has never seen the instruction: it is one token."""
    assert scrl.INSTRUCTION == make_tiny.CURRICULUM
    _, tokenizer = problems.load_policy("tiny")
    assert len(tokenizer.encode(scrl.INSTRUCTION, add_special_tokens=False)) == 1
    rng, config = random.Random(0), SimpleNamespace(data="x", thinking=False)
    for _ in range(20):
        start, chain = make_tiny.draw_chain(rng)
        items = make_tiny.subproblems(start, chain)
        row = {"id": "0", **items[-1], "subproblems": items}
        lesson, plain = scrl.make_prompts(tokenizer, row, config)
        expected = tokenizer.apply_chat_template(
            [{"role": "user", "content": make_tiny.curriculum_question(start, chain)}],
            add_generation_prompt=True, tokenize=False)
        assert lesson == expected
        assert plain == problems.build_prompt(tokenizer, row["problem"])


def test_a_long_answer_is_cut_in_the_sentence():
    row = {**ROW, "answer": "7" * 100}
    with pytest.raises(BadInput, match=f"problem's own, '{'7' * 60}'"):
        scrl.make_prompts(None, row, SimpleNamespace(data="x", thinking=False))


@pytest.mark.parametrize("thinking", [False, True])
def test_both_prompts_think_or_neither_does(thinking, monkeypatch):
    def prompt(tokenizer, text, *more):
        return text, more

    monkeypatch.setattr(problems, "build_prompt", prompt)
    lesson, plain = scrl.make_prompts(None, ROW, SimpleNamespace(data="x", thinking=thinking))
    assert plain == ("?", (thinking,))
    assert lesson == ("?\n1. ?\n2. ?\n3. ?\n4. ?", (thinking, scrl.INSTRUCTION))


@pytest.mark.parametrize("items, reason", [
    (None, "has no"), (2, "has no"), ([], "has no"), ([{"problem": "?", "answer": "4"}], "no"),
    ([{"problem": "?"}, {"problem": "?", "answer": "4"}], "has no"), ([1, 2], "has no"),
    ([{"problem": "?", "answer": True}, {"problem": "?", "answer": "4"}], "has no"),
    ([{"problem": "?", "answer": 3}, {"problem": "?", "answer": 5}], "the problem's own, '4'"),
    ([{"problem": "?", "answer": "4"}, {"problem": "?", "answer": "5"}], "the problem's own, '4'"),
    ([{"problem": "?", "answer": " "}, {"problem": "?", "answer": "4"}], "gradable")])
def test_bad_subproblems_are_one_sentence(items, reason):
    """A wrong gold in the middle would silently block every later column of its problem."""
    row = {"id": "q7", "problem": "?", "answer": "4", "subproblems": items}
    with pytest.raises(BadInput, match=reason) as caught:
        scrl.make_prompts(None, row, SimpleNamespace(data="f.jsonl", thinking=False))
    assert "f.jsonl" in str(caught.value) and "q7" in str(caught.value)
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------ --make-subproblems

CLIPS = "Natalia sold clips to 48 friends in April, and half as many in May. How many altogether?"
MARKED = ("Natalia sold 48/2 = <<48/2=24>>24 clips in May.\n"
          "Altogether she sold 48+24 = <<48+24=72>>72 clips.\n#### 72")
EGGS = "A hen lays 6 eggs, 20 hens live here, a carton holds 12, costs $1.50. What do cartons cost?"
STEPS = ("The hens lay 20 x 6 = 120 eggs. They fill 120 ÷ 12 = 10 cartons.\n"
         "The cartons cost 10 * $1.50 = $15")


def asked(items):
    return [(item["problem"].rpartition("blank: ")[2], item["answer"]) for item in items]


def test_marks_and_plain_steps_become_subproblems():
    items, _ = scrl.split_solution(CLIPS, "72", MARKED)
    assert asked(items) == [("Natalia sold ___ clips in May.", "24"), (CLIPS, "72")]
    assert items[0]["problem"].startswith(CLIPS)  # stands alone
    unmarked = re.sub("<<.*?>>", "", MARKED)
    assert scrl.split_solution(CLIPS, "72", unmarked)[0] == items
    items, _ = scrl.split_solution(EGGS, "15", STEPS)
    assert asked(items) == [("The hens lay ___ eggs.", "120"), ("They fill ___ cartons.", "10"),
                            (EGGS, "15")]
    many = "".join(f"Room no. {n} has {n} * 1000 = {n},000 tiles.\n" for n in range(2, 7))
    many += "All: 2*1000 + 18000 = 2000 + 18,000 = 20,000"  # a chain, whose middle is no result
    items, _ = scrl.split_solution("Rooms 2, 3, 4, 5, 6?", "20000", many)
    assert [item["answer"] for item in items] == ["4000", "5000", "6000", "20000"]  # at most four


def test_numbers_are_read_with_their_commas_and_may_all_be_repeated():
    """1,200 is one number; a question may name every number that the problem names."""
    problem = "Of 1,200 books a third, 5 a day, was lent in May. How many were left?"
    solution = ("Of the 1,200 books, 5 a day, 1,200 / 3 = 400 were lent.\n"
                "That leaves 1,200 - 400 = 800 books.")
    items, _ = scrl.split_solution(problem, "800", solution)
    assert asked(items) == [("Of the 1,200 books, 5 a day, ___ were lent.", "400"),
                            (problem, "800")]


@pytest.mark.parametrize("solution, reason", [
    (MARKED.replace("48/2=24", "48/2=25"), "wrong"), (STEPS.replace("= 120", "= 121"), "wrong"),
    (MARKED.replace("48+24=72", "48+25=73"), "last"), ("48/2 + 48 = 72", "two steps"),
    ("", "two steps"), ("None", "two steps"), ("48/2=24\n48+24=72", "fairly"),
    ("She sold 24 clips because 48/2=24.\n48+24=72", "fairly"),         # holds its own answer
    ("Out of the 23 others she met 25-1=24 people.\n48+24=72", "fairly"),   # a number of its own
    ("She sold 48 clips, 24+24 = 48 of them.\n48+24=72", "fairly"),     # its answer is in the text
    ("May had 48 clips / half = 48/2 = 24.\n48+24=72", "fairly"),       # the way is left over
    ("May had 48/2 = 24, or 48-24 = 24.\n48+24=72", "fairly"),          # two at once
    ("48/2 = __import__('os')\n48+24=72", "two steps")])
def test_solutions_that_cannot_be_split_are_left_out(solution, reason):
    items, why = scrl.split_solution(CLIPS, "72", solution)
    assert items == [] and reason in why
    assert why in ("a step is wrong", "fewer than two steps, or the last is not the answer",
                   "no step can be asked for fairly")


def test_no_intermediate_result_stands_in_any_prompt():
    """A question that quotes an earlier result ("At 12 years old ...") gives the answer of another
    block away, and the copied number would be rewarded as reasoning."""
    problem = "Mandy began at 6 with 8 pages. At twice that age, 5 times longer. Then thrice?"
    solution = ("Twice the age of 6 is 6 x 2 = 12 years.\nAt 12 years old she read 5 x 8 = 40."
                "\n8 years later she was 12 + 8 = 20 years old.\nShe read 3 x 40 = 120 pages.")
    items, _ = scrl.split_solution(problem, "120", solution)
    assert [item["answer"] for item in items] == ["12", "20", "120"]
    prompt = problem + " ".join(item["problem"] for item in items)
    for result in ("12", "40", "20", "120"):
        assert not re.search(rf"\b{result}\b", prompt)


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["scrl.py", *map(str, arguments)])
    scrl.main()


def test_make_subproblems_writes_what_training_accepts(tmp_path, monkeypatch, capsys):
    """What it writes, load_problems and ask must take; and no file is overwritten."""
    source, out = tmp_path / "source.jsonl", tmp_path / "out.jsonl"
    rows = [{"problem": CLIPS, "answer": "72", "solution": MARKED},
            {"problem": EGGS, "answer": "15", "solution": STEPS, "more": 1},
            {"problem": CLIPS, "answer": "73", "solution": MARKED}, {"problem": "?", "answer": "1"}]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(monkeypatch, "--make-subproblems", source, out)
    assert capsys.readouterr().out == (
        f"{out}: 2 written, 2 fewer than two steps, or the last is not the answer\n")
    made = problems.load_problems(str(out))
    _, tokenizer = problems.load_policy("tiny")
    assert [len(row["subproblems"]) for row in made] == [2, 3]
    assert [row["id"] for row in made] == ["source-0", "source-1"]
    for row in made:
        config = SimpleNamespace(data="x", thinking=False)
        assert "\n1. " in scrl.make_prompts(tokenizer, row, config)[0]
    before = out.read_text()
    with pytest.raises(BadInput, match="out.jsonl"):
        run(monkeypatch, "--make-subproblems", source, out)
    assert out.read_text() == before
    source.write_text(json.dumps(rows[3]))
    with pytest.raises(BadInput, match="solution"):
        run(monkeypatch, "--make-subproblems", source, tmp_path / "new.jsonl")
    assert not (tmp_path / "new.jsonl").exists()


def test_subproblems_are_written_as_they_are_read(tmp_path, monkeypatch):
    """In UTF-8 and not escaped, whatever the machine's own encoding is."""
    source, out = tmp_path / "source.jsonl", tmp_path / "out.jsonl"
    problem = "Zoé a 48 pommes et Ørsted 2 fois moins. Combien en tout ?"
    row = {"problem": problem, "answer": "72",
           "solution": "Ørsted a 48/2 = 24 pommes.\nEn tout 48+24 = 72."}
    source.write_text(json.dumps(row), encoding="utf-8")
    real, encodings = open, []

    def opened(*args, **options):
        encodings.append(options.get("encoding"))
        return real(*args, **options)

    monkeypatch.setattr(scrl, "open", opened, raising=False)
    run(monkeypatch, "--make-subproblems", source, out)
    assert problem.encode("utf-8") in out.read_bytes() and encodings == ["utf-8"]


def test_gsm8k_keeps_its_solution(monkeypatch):
    """GSM8K has its solution in the column `answer`, which our own answer replaces."""
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_list([{"question": CLIPS, "answer": MARKED}])
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: table)
    row, = problems.fetch("gsm8k", "train")
    assert row["answer"] == "72"
    assert len(scrl.split_solution(row["problem"], row["answer"], row["solution"])[0]) == 2


# ------------------------------------------------------------------ end to end


@pytest.mark.slow
def test_two_steps_on_the_tiny_model(tmp_path, monkeypatch):
    """Both kinds of prompt are sampled, the log names the compliance, and a resumed run repeats the
    unbroken one bit for bit."""
    small = ["--prompts", 2, "--group", 4, "--eval-problems", 0]
    run(monkeypatch, *small, "--steps", 2, "--name", tmp_path / "whole")
    first = json.loads((tmp_path / "whole/metrics.jsonl").read_text().splitlines()[0])
    assert 0 <= first["compliance"] <= 1
    run(monkeypatch, *small, "--steps", 1, "--name", tmp_path / "parts")
    run(monkeypatch, "--resume", tmp_path / "parts", "--steps", 2)
    lines = [json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[1])
             for name in ("whole", "parts")]
    for key in ("loss", "reward", "compliance", "prefix", "original", "grad_norm"):
        assert lines[0][key] == lines[1][key]
    samples = [json.loads(line) for line in (tmp_path / "whole/samples.jsonl").open()][:4]
    assert ["<p1>" in sample["completion"] for sample in samples] == [True, True, False, False]
    weights = [(tmp_path / name / "checkpoint/model.safetensors").read_bytes()
               for name in ("whole", "parts")]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_the_loop_trains_on_the_advantages_of_judge(tmp_path, monkeypatch):
    """With rewards that differ and advantages that are 0, plain GRPO would move the weights."""
    real = scrl.subproblem_reward

    def indifferent(*arguments):
        rewards, A, figures = real(*arguments)
        rewards[:, 0], rewards[:, 1] = 0, 1
        return rewards, 0 * A, figures

    monkeypatch.setattr(scrl, "subproblem_reward", indifferent)
    run(monkeypatch, "--prompts", 2, "--group", 4, "--eval-problems", 0, "--steps", 1,
        "--name", tmp_path / "run")
    before, after = (problems.load_policy(name)[0].state_dict()
                     for name in ("tiny", str(tmp_path / "run/checkpoint")))
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("arguments, reason", [
    (["--group", 5], "--group 5"), (["--group", 2], "--group 2")])
def test_groups_that_have_no_halves_are_named(arguments, reason, monkeypatch):
    monkeypatch.setattr(scrl, "train", None)  # never reached
    with pytest.raises(BadInput, match=reason):
        run(monkeypatch, *arguments)
