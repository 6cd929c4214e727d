"""Problem sets, gold answers and prompts: what goes wrong before the first token is sampled."""

import json
import os
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, processors
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

import benchmarks
import problems
from engine.errors import BadInput, run_cli
from problems import build_prompt, load_policy, load_problems

# Two rows in each hub's own layout (texts are ours), and the (problem, answer) they must become.
HUB_ROWS = {
    "gsm8k": [
        (
            {
                "question": "Ann has 3 bags of 400 beans. How many beans?",
                "answer": "#### is no answer yet.\n3*400=<<3*400=1200>>1200\n#### 1,200",
            },
            "1200",
        ),
        (
            {
                "question": "Bo owes 5 and pays 7. What is his balance if he began at 0?",
                "answer": "He has 5-7=<<5-7=-2>>-2.\n#### -2",
            },
            "-2",
        ),
    ],
    "math": [
        (
            {
                "problem": "Halve one.",
                "level": "Level 1",
                "type": "Algebra",
                "solution": r"First $\boxed{1}$ is halved, so the answer is $\boxed{\frac{1}{2}}$.",
            },
            r"\frac{1}{2}",
        ),
        (
            {
                "problem": "Add.",
                "level": "Level 2",
                "type": "Prealgebra",
                "solution": r"The sum is $\fbox{17}$.",
            },
            "17",
        ),
    ],
    "math500": [
        (
            {
                "problem": "Name the point.",
                "solution": r"\boxed{(3, \pi)}",
                "answer": r"(3, \pi)",
                "subject": "Precalculus",
                "level": 2,
                "unique_id": "test/x/1.json",
            },
            r"(3, \pi)",
        ),
        (
            {
                "problem": "Sum?",
                "solution": r"\boxed{9}",
                "answer": "9",
                "subject": "Algebra",
                "level": 1,
                "unique_id": "test/x/2.json",
            },
            "9",
        ),
    ],
    "aime24": [
        (
            {
                "id": 60,
                "problem": "Minutes?",
                "solution": "...",
                "answer": "204",
                "url": "",
                "year": "2024",
            },
            "204",
        ),
        (
            {
                "id": 61,
                "problem": "Count?",
                "solution": "...",
                "answer": "033",
                "url": "",
                "year": "2024",
            },
            "033",
        ),
    ],
    "aime25": [
        ({"problem": "Sum of bases?", "answer": "70", "id": "0"}, "70"),
        ({"problem": "Area?", "answer": "588", "id": "1"}, "588"),
    ],
    "amc23": [
        ({"id": 0, "answer": 27.0, "url": "", "question": "How far from A?"}, "27"),
        ({"id": 1, "answer": 0.5, "url": "", "question": "Which part?"}, "0.5"),
    ],
    "minerva": [
        (
            {
                "problem": "Diameter?",
                "type": "Astronomy",
                "idx": 0,
                "solution": r"With $s = f\theta$, \boxed{1.6} cm.",
            },
            "1.6",
        ),
        (
            {
                "problem": "Energy?",
                "type": "Physics",
                "idx": 1,
                "solution": r"So \[E=\boxed{4.5e33} \text{erg}\]",
            },
            "4.5e33",
        ),
    ],
    "olympiadbench": [
        (
            {
                "id": 1,
                "question": "Which pairs?",
                "final_answer": ["$(3,0),(-3,1)$"],
                "error": None,
                "is_multiple_answer": True,
                "unit": None,
                "answer_type": "Tuple",
            },
            "(3,0),(-3,1)",
        ),
        (
            {
                "id": 2,
                "question": "Which numbers?",
                "final_answer": ["$2$", "$-2$"],
                "error": None,
                "is_multiple_answer": True,
                "unit": None,
                "answer_type": "Numerical",
            },
            "2, -2",
        ),
    ],
    "college_math": [
        (
            {
                "data_source": "a",
                "question_number": "e.1",
                "question": "Simplify.",
                "answer": "$10-4 n$",
                "license": "",
                "data_topic": "algebra",
            },
            "10-4 n",
        ),
        (
            {
                "data_source": "a",
                "question_number": "e.2",
                "question": "Solve.",
                "answer": "$x=1$ and $y=2$",
                "license": "",
                "data_topic": "algebra",
            },
            "$x=1$ and $y=2$",
        ),
    ],
    "deepmath": [
        ({"prompt": [{"content": "Evaluate.", "role": "user"}], "solution": "$0$"}, "0"),
        ({"prompt": [{"content": "True?", "role": "user"}], "solution": "Yes"}, "Yes"),
    ],
}


@pytest.mark.parametrize("name", problems.HUB)
def test_every_hub_layout_becomes_problem_and_answer(name, monkeypatch, capsys):
    """One wrong column name and a benchmark evaluates against nothing; one `[0]` too many and a
    list of answers is graded by its first. The table is tested on rows in the layout of each
    repository."""
    datasets = pytest.importorskip("datasets")
    calls, fixture = [], HUB_ROWS[name]

    def load_dataset(hub, config, split):
        calls.append((hub, config, split))
        return datasets.Dataset.from_list([row for row, _ in fixture])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    source = problems.HUB[name]
    for split, (hub_split, expected) in source.splits.items():
        rows = problems.fetch(name, split)
        assert calls.pop() == (source.hub, source.config, hub_split)
        assert [row["answer"] for row in rows] == [answer for _, answer in fixture]
        for row, (raw, _) in zip(rows, fixture):
            asked = raw.get("question") or raw.get("problem") or raw["prompt"][0]["content"]
            assert row["problem"] == asked
        assert [row["id"] for row in rows] == [f"{name}-{split}-0", f"{name}-{split}-1"]
        # A copy of another size is another benchmark: the table's row counts are checked aloud.
        assert f"has 2 rows, not {expected:,}" in capsys.readouterr().err


def test_sets_for_evaluation_have_no_train_split():
    """Training on a test set by a forgotten flag must be impossible."""
    for name in (
        "math500",
        "aime24",
        "aime25",
        "amc23",
        "minerva",
        "olympiadbench",
        "college_math",
    ):
        with pytest.raises(BadInput, match="no train split"):
            load_problems(name, "train")


def test_changed_columns_are_named(monkeypatch):
    """Hub repositories are renamed and re-columned; the message must say which column is gone."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(
        datasets,
        "load_dataset",
        lambda *_, split: datasets.Dataset.from_list([{"prompt": "x", "answer": "1"}]),
    )
    with pytest.raises(BadInput, match="no column 'question'.*prompt, answer"):
        load_problems("gsm8k", "test")


def test_unbraced_box_is_found():
    r"""A few MATH solutions end in `\boxed 7.`; without a fallback their gold would be empty."""
    assert benchmarks.last_box(r"so it is $\boxed 7.$") == "7"
    assert benchmarks.last_box("no box at all") == ""


def write(folder, *lines):
    path = folder / "set.jsonl"
    path.write_text(
        "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    )
    return str(path)


def test_unusable_gold_answers_are_dropped_and_counted(tmp_path, capsys):
    """A gold that cannot pass its own grader can never be rewarded: such a prompt teaches nothing
    and lowers every score. It must go, and be seen to go."""
    good = {"problem": "1+1?", "answer": "2", "level": 3}
    path = write(
        tmp_path, good, {"problem": "2+2?", "answer": " "}, {"problem": "3?", "answer": "{3"}
    )
    rows = load_problems(path)
    assert [(row["problem"], row["answer"], row["level"]) for row in rows] == [("1+1?", "2", 3)]
    said = capsys.readouterr().err
    assert "1 problems, 2 dropped" in said and "set-1" in said
    with pytest.raises(BadInput, match="no problem is left"):
        load_problems(write(tmp_path, {"problem": "?", "answer": ""}))


def test_local_files(tmp_path):
    """Numbers as answers, blank lines, a byte-order mark, own ids and a limit are all ordinary."""
    path = write(
        tmp_path,
        "\ufeff" + json.dumps({"problem": "a", "answer": 7}),
        "",
        {"id": 5, "problem": "b", "answer": 0.5},
        {"problem": "c", "answer": "x"},
    )
    assert [(r["id"], r["answer"]) for r in load_problems(path)] == [
        ("set-0", "7"),
        ("5", "0.5"),
        ("set-2", "x"),
    ]
    assert len(load_problems(path, limit=2)) == 2


ROW = {"problem": "1+1?", "answer": "2"}


@pytest.mark.parametrize(
    "lines, reason",
    [
        ([], "the file is empty"),
        (["", "  "], "the file is empty"),
        ([ROW, "{'problem': 1}"], "line 2: not JSON"),
        ([ROW, "[1, 2]"], "line 2: a list, not an object"),
        (
            [ROW, {"question": "?", "answer": "2"}],
            "line 2: no column 'problem' .it has question, answer",
        ),
        ([{"problem": "?"}], "line 1: no column 'answer'"),
        ([{"problem": 7, "answer": "7"}], "line 1: the problem is 7"),
        ([{"problem": " ", "answer": "7"}], "line 1: the problem is ' '"),
        ([{"problem": "?", "answer": None}], "0 problems, 1 dropped: 1 because no answer is given"),
        ([{"problem": "?", "answer": True}], "line 1: the answer is True"),
        ([{"problem": "?", "answer": ["1"]}], "line 1: the answer is"),
        ([{**ROW, "id": 1}, ROW, {**ROW, "id": "1"}], "line 3: id '1' was used in line 1"),
    ],
)
def test_bad_files_are_one_sentence(tmp_path, lines, reason):
    """Each mistake names the file, the line and the reason."""
    with pytest.raises(BadInput, match=reason) as caught:
        load_problems(write(tmp_path, *lines))
    assert "set.jsonl" in str(caught.value) and "\n" not in str(caught.value)


def test_other_bad_data(tmp_path):
    with pytest.raises(BadInput, match="--data nosuch: .* gsm8k"):
        load_problems("nosuch")
    with pytest.raises(BadInput, match="no such file"):
        load_problems(str(tmp_path / "missing.jsonl"))
    (tmp_path / "latin.jsonl").write_bytes(b'{"problem": "caf\xe9", "answer": "1"}')
    with pytest.raises(BadInput, match="not UTF-8"):
        load_problems(str(tmp_path / "latin.jsonl"))


def test_suffix_has_no_control_characters():
    r"""GRAIL's released prompt says "\boxed" in a string that is not raw: the model reads a
    backspace and "oxed{}". Every model here must be asked for a box."""
    assert all(character.isprintable() for character in problems.SUFFIX)
    assert r"\boxed{}" in problems.SUFFIX


def characters(bos=False, template=None):
    """A tokenizer with one token a character; `bos`: it puts <s> in front, as Llama's does."""
    vocabulary = (
        {"<pad>": 0, "</s>": 1, "<s>": 2} | {chr(c): c - 29 for c in range(32, 127)} | {"\n": 98}
    )
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<pad>"))
    core.decoder = decoders.Fuse()
    if bos:
        core.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 2)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", chat_template=template
    )


def test_base_models_get_a_plain_question_and_one_bos():
    """Prompts are tokenised with add_special_tokens=False; a base Llama then starts without its BOS
    unless the text carries it, and with two if both do."""
    for bos in (False, True):
        tokenizer = characters(bos)
        text = build_prompt(tokenizer, "1+1?")
        assert text.removeprefix("<s>") == "Question: 1+1?" + problems.SUFFIX + "\nAnswer:"
        assert tokenizer(text, add_special_tokens=False).input_ids.count(2) == bos
        assert tokenizer("1+1?").input_ids.count(2) == bos


def test_chat_template_gives_text_with_one_bos_and_the_thinking_switch():
    """transformers 5 returns a dict of ids unless told otherwise, and thinking is a template's
    variable that is easily lost; the default must be off."""
    template = (
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
        "{% if not enable_thinking %}[no thoughts]{% endif %}"
    )
    tokenizer = characters(True, template)
    asked = "<s>[user]1+1?" + problems.SUFFIX + "[assistant]"
    assert build_prompt(tokenizer, "1+1?") == asked + "[no thoughts]"
    assert build_prompt(tokenizer, "1+1?", thinking=True) == asked
    assert tokenizer(asked, add_special_tokens=False).input_ids.count(2) == 1


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    config = Qwen3Config(
        vocab_size=99,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        eos_token_id=1,
        use_cache=False,
    )
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    characters().save_pretrained(folder)
    return folder


def test_policy_is_fp32_in_eval_mode_with_cache_and_padding(saved_model):
    """bf16 weights lose an AdamW step of 1e-6, a checkpoint saved in training has its cache off,
    and a tokenizer without a pad token cannot batch: each is silent and slow to find."""
    model, tokenizer = load_policy(str(saved_model))
    assert model.dtype == torch.float32 and not model.training and model.config.use_cache
    assert tokenizer.pad_token is not None
    assert load_policy(str(saved_model), dtype=torch.bfloat16)[0].dtype == torch.bfloat16


def test_bad_models_name_the_flag(tmp_path, saved_model, monkeypatch):
    with pytest.raises(BadInput, match="--model .*no config.json"):
        load_policy(str(tmp_path))
    with pytest.raises(BadInput, match="--model nobody/nothing"):
        load_policy("nobody/nothing")
    with pytest.raises(BadInput, match="--model ./nowhere: there is no such folder"):
        load_policy("./nowhere")
    for file in saved_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"not a tensor")
    with pytest.raises(BadInput, match="--model"):
        load_policy(str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadInput, match="--device cuda.*no CUDA"):
        load_policy(str(saved_model), device="cuda")
    with pytest.raises(BadInput, match="--device warp"):
        load_policy(str(saved_model), device="warp")


@pytest.mark.parametrize(
    "mistake, code, said",
    [
        (BadInput("--k 9: too many."), 2, "error: --k 9: too many.\n"),
        (KeyboardInterrupt(), 130, "\nstopped by Ctrl-C\n"),
    ],
)
def test_mistakes_end_in_one_line_and_an_exit_code(mistake, code, said, capsys):
    """A traceback for a typo teaches people not to read messages."""

    def main():
        raise mistake

    with pytest.raises(SystemExit) as caught:
        run_cli(main)
    assert caught.value.code == code and capsys.readouterr().err == said


BENCH = Path(os.environ.get("BENCH_DIR", "/nonexistent"))
ROWS = {
    "gsm8k_train": 7473,
    "gsm8k_test": 1319,
    "math500": 500,
    "math_train": 7498,
    "math_test_rest4500": 4500,
    "aime24": 30,
    "aime25": 30,
    "amc23": 40,
    "minerva_math": 272,
    "olympiadbench": 675,
    "college_math": 2818,
}


@pytest.mark.skipif(not BENCH.is_dir(), reason="BENCH_DIR names no folder of benchmark files")
@pytest.mark.parametrize("name", ROWS)
def test_gold_answers_of_real_benchmarks_are_usable(name):
    """How many golds of each benchmark pass their own grader (a line to stderr says it, too)."""
    rows = load_problems(str(BENCH / f"{name}.jsonl"))
    assert len(rows) >= 0.995 * ROWS[name]
