"""A model folder is right or refused: sampler and scorer against the whole model, kind by kind."""
import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, Gemma3Config, PreTrainedTokenizerFast

import logprobs
import models
import problems
import rollout
import saliency
from engine import folders
from engine.caches import has_recurrent_layers
from engine.errors import BadInput
from engine.perturb import perturbation
from logprobs import forward_pass

TINY = Path(problems.__file__).parent / "data" / "tiny"
SIZE = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, max_position_embeddings=512, vocab_size=131,
            pad_token_id=0, bos_token_id=None, eos_token_id=2)
LINEAR = dict(linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8,
              linear_value_head_dim=8, layer_types=["linear_attention", "full_attention"])
KINDS = {
    "qwen3": {},
    "gemma2": dict(sliding_window=512, query_pre_attn_scalar=8, final_logit_softcapping=3.0),
    "granite": dict(logits_scaling=4.0, embedding_multiplier=3.0, residual_multiplier=0.5),
    "cohere": dict(logit_scale=0.25),
    "qwen3_5_text": LINEAR,
    "lfm2": dict(layer_types=["conv", "full_attention"]),
}


def build(kind, std=0.25, **more):
    """A random model whose logits are wide enough that a cap or a scale is seen."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**{**SIZE, **more})).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.copy_(torch.randn(p.shape) * std)
    return model


def tokenizer_to(folder):
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(TINY / name, folder / name)


def folder_of(tmp_path, kind, **more):
    folder = tmp_path / kind
    build(kind, **more).save_pretrained(folder)
    tokenizer_to(folder)
    return folder


def edit(path, **changes):
    content = json.loads(path.read_text())
    content.update(changes)
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


# ------------------------------------------------------------------------------ right


@pytest.mark.parametrize("kind", KINDS)
def test_sampler_and_scorer_say_what_the_whole_model_says(kind, tmp_path):
    """Row by row, without a cache, padding or batch: what the sampler drew and the scorer gives."""
    model, tokenizer = problems.load_policy(str(folder_of(tmp_path, kind, **KINDS[kind])))
    prompts = [problems.build_prompt(tokenizer, p) for p in ("Start with 7, add 5.", "1, times 4.")]
    out = rollout.sample(model, tokenizer, prompts, samples=3, max_new_tokens=12)
    with torch.no_grad():
        scored = forward_pass(model, out, range(6)).logprobs  # (6, T)
        for i, n in enumerate(out.lengths.tolist()):
            prompt, said = out.prompt_ids[i][out.prompt_mask[i]], out.completion_ids[i, :n]
            row = torch.cat([prompt, said])[None]
            log_p = model(row, use_cache=False).logits[0, -n - 1:-1].log_softmax(-1)  # (n, V)
            truth = log_p.gather(1, said[:, None])[:, 0]
            assert (truth - out.logprobs[i, :n]).abs().max() < 1e-4
            assert (truth - scored[i, :n]).abs().max() < 1e-4


@pytest.mark.parametrize("kind", ["gemma2", "qwen3_5_text"])
def test_the_perturbation_from_a_cache_is_the_one_without(kind):
    """Capped logits and a recurrent state both reach OAR-P's quick way."""
    model = build(kind, **KINDS[kind])
    tokenizer = PreTrainedTokenizerFast.from_pretrained(TINY)
    out = models.three_tokens(model, [[5, 6, 7, 8, 9], [10, 11]])
    spans = torch.tensor([[2, 2, 3, 3]] * 4)
    with torch.no_grad():
        forward = forward_pass(model, out, range(4), tokenizer=tokenizer)

        def shift(clean, changed, ids):
            return saliency.answer_shift(clean, changed, ids, outcome="mean")

        quick = perturbation(forward, spans, shift, "pad", 0)
        slow = saliency.perturbation(forward, spans, "pad")
    assert slow.abs().max() > 1e-3
    torch.testing.assert_close(quick, slow, atol=1e-4, rtol=1e-3)


def test_the_head_is_the_model_s_own_where_nothing_is_done_to_its_logits():
    model = build("qwen3")
    assert logprobs.lm_head(model) is model.get_output_embeddings()
    assert not has_recurrent_layers(model.config)


def test_the_text_model_of_one_that_sees_pictures(tmp_path):
    """Gemma 3 of 4 B and more: the same logits as the whole, saved as a text model."""
    torch.manual_seed(0)
    config = Gemma3Config(
        text_config={**SIZE, "sliding_window": 512, "query_pre_attn_scalar": 8},
        mm_tokens_per_image=4, eoi_token_index=120, boi_token_index=121, image_token_index=122,
        vision_config=dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                           num_attention_heads=2, image_size=28, patch_size=14))
    whole = AutoModelForCausalLM.from_config(config).eval()
    whole.save_pretrained(tmp_path)
    tokenizer_to(tmp_path)
    model, tokenizer = problems.load_policy(str(tmp_path))
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        assert torch.equal(model(ids).logits, whole(ids).logits)
    assert model.config.model_type == "gemma3_text"
    model.save_pretrained(tmp_path / "again")
    tokenizer.save_pretrained(tmp_path / "again")
    again, _ = problems.load_policy(str(tmp_path / "again"))
    with torch.no_grad():
        assert torch.equal(again(ids).logits, whole(ids).logits)


# ------------------------------------------------------------------------------ refused


def refused(folder, match):
    with pytest.raises(BadInput, match=match):
        problems.load_policy(str(folder))


def test_a_scale_that_no_config_names_is_refused(tmp_path, monkeypatch):
    """The self-test, not a list of names: what stands between head and logits is seen."""
    folder = folder_of(tmp_path, "gemma2", **KINDS["gemma2"])
    monkeypatch.setattr(logprobs, "ScaledHead", lambda head, scale, cap: head)
    refused(folder, "one after the other.*gemma2.*Llama")


def test_a_wrong_position_in_the_sampler_s_cache_is_refused(tmp_path, monkeypatch):
    folder = folder_of(tmp_path, "qwen3")
    monkeypatch.setattr(rollout, "repeat_rows", lambda cache, rows, repeats, device: [
        layer.reorder_cache(torch.arange(rows).repeat(repeats)) for layer in cache.layers])
    refused(folder, "steps from the cache")


def test_a_model_that_cannot_be_run_in_parts_is_refused(tmp_path):
    from transformers import GPT2Config

    torch.manual_seed(0)
    config = GPT2Config(n_embd=16, n_head=2, n_layer=1, vocab_size=131, eos_token_id=2)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    tokenizer_to(tmp_path)
    refused(tmp_path, "the layers of gpt2")


def test_adapters_are_to_be_merged_first(tmp_path):
    shutil.copytree(TINY, tmp_path / "m")
    (tmp_path / "m/adapter_config.json").write_text("{}")
    refused(tmp_path / "m", "merge it first")
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone/adapter_model.safetensors").write_bytes(b"")
    refused(tmp_path / "alone", "merge it first")


# ------------------------------------------------------------------------------ tokens


def test_the_tokenizer_is_the_file_s(tmp_path):
    """transformers 5 gives every tokenizer in a qwen2 folder Qwen2's pre-tokenizer: spaces go."""
    _, tokenizer = problems.load_policy(str(folder_of(tmp_path, "qwen2", std=0.02)))
    text = "Start with 7, add 5."
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert ids == PreTrainedTokenizerFast.from_pretrained(TINY)(text).input_ids
    assert tokenizer.decode(ids) == text


def test_every_token_that_can_be_fed_has_an_embedding(tmp_path):
    shutil.copytree(TINY, tmp_path / "m")
    path = tmp_path / "m/tokenizer.json"
    content = json.loads(path.read_text())
    content["added_tokens"].append(dict(id=131, content="[PAD]", single_word=False, lstrip=False,
                                        rstrip=False, normalized=False, special=True))
    path.write_text(json.dumps(content))
    model, tokenizer = problems.load_policy(str(tmp_path / "m"))  # in the vocabulary, never used
    with pytest.raises(BadInput, match="writes token 131"):
        problems.longest_prompt(model, tokenizer, ["a much longer prompt than", "[PAD]"])
    edit(tmp_path / "m/tokenizer_config.json", pad_token="[PAD]")
    refused(tmp_path / "m", r"padding token '\[PAD\]' is number 131.*131 embeddings")
    edit(tmp_path / "m/tokenizer_config.json", pad_token="<|endoftext|>")
    edit(tmp_path / "m/generation_config.json", eos_token_id=[2, 400])
    refused(tmp_path / "m", "stop token .*400")


def test_a_stop_token_that_only_the_config_knows_is_enough(tmp_path):
    folder = folder_of(tmp_path, "qwen3", eos_token_id=150, pad_token_id=None, vocab_size=192)
    edit(folder / "tokenizer_config.json", eos_token=None, pad_token=None)
    model, tokenizer = problems.load_policy(str(folder))
    assert rollout.stop_ids(model, tokenizer) == [150] and tokenizer.pad_token_id is not None


# ------------------------------------------------------------------------------ the context


def test_prompt_and_new_tokens_fit_into_the_context():
    model = build("llama", max_position_embeddings=64)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(TINY)
    prompt = problems.build_prompt(tokenizer, "Start with 7, add 5.")
    n = len(tokenizer(prompt, add_special_tokens=False).input_ids)
    assert problems.longest_prompt(model, tokenizer, [prompt], 64 - n) == n
    rollout.sample(model, tokenizer, [prompt], max_new_tokens=64 - n)
    for call in (lambda: problems.longest_prompt(model, tokenizer, [prompt], 65 - n),
                 lambda: rollout.sample(model, tokenizer, [prompt], max_new_tokens=65 - n)):
        with pytest.raises(BadInput, match=f"--max-new-tokens.*of 64; at most {64 - n} fit"):
            call()


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_no_row_crosses_the_length_at_which_rope_changes(kind):
    """Keys in the cache keep the angles they were turned by: up to 11 nats a token were seen."""
    rope = dict(rope_type=kind, rope_theta=1e4, original_max_position_embeddings=48, factor=4.0)
    if kind == "longrope":
        rope |= dict(short_factor=[1.0] * 4, long_factor=[4.0] * 4)
    model = build("phi3" if kind == "longrope" else "llama", rope_parameters=rope,
                  sliding_window=None, original_max_position_embeddings=48)
    assert rollout.longest_row(model.config)[0] == 48
    with pytest.raises(BadInput, match=f"{kind} RoPE"):
        rollout.refuse_beyond_context(model.config, 20, 29)
    rollout.refuse_beyond_context(model.config, 20, 28)


# ------------------------------------------------------------------------------ the prompt

PARTS = ("{% for m in messages %}{{ m.role }}: {% for part in m.content %}"
         "{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}")
WHOLE = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"


def with_template(template):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(TINY)
    tokenizer.chat_template = template
    return tokenizer


def test_a_template_of_content_parts_gets_parts():
    prompt = problems.build_prompt(with_template(PARTS), "Start with 7.")
    assert prompt == "user: Start with 7." + problems.SUFFIX


@pytest.mark.parametrize("template, words", [
    ("{% for m in messages %}{{ m.role }}{% endfor %}", "leaves the problem out"),
    ("{{ messages[0].content[:20] }}", "leaves the problem out"),
    ("{{ 'about ' + messages[0].content | length }}", "TypeError"),
    ("{{ 1 / 0 }}", "ZeroDivisionError"),
    ({"tool_use": "x", "rag": "y"}, "chat template"),
])
def test_a_template_that_fails_or_drops_the_problem_is_named(template, words):
    with pytest.raises(BadInput, match=f"chat template.*{words}|{words}"):
        problems.build_prompt(with_template(template), "Start with 7, add 5.")


def test_thinking_has_two_names_and_a_note_where_it_has_none(capsys):
    for name in ("thinking", "enable_thinking"):
        tokenizer = with_template(WHOLE + "{% if " + name + " %}Okay, {% endif %}")
        assert problems.build_prompt(tokenizer, "1+1?", thinking=True).endswith("Okay, ")
        assert not problems.build_prompt(tokenizer, "1+1?").endswith("Okay, ")
    assert capsys.readouterr().err == ""
    problems.note.cache_clear()
    for _ in range(2):
        problems.build_prompt(with_template(WHOLE), "1+1?", thinking=True)
    assert capsys.readouterr().err.count("--thinking changes nothing") == 1


@pytest.mark.parametrize("opening, graded", [
    ("<think>\n", ["", r"\boxed{1}.</think> So \boxed{12}."]),
    ("<think>\n\n</think>\n\n", [r"It may be \boxed{12}. But",
                                  r"\boxed{1}.</think> So \boxed{12}."]),
])
def test_a_box_in_a_thought_that_the_template_opened_is_no_answer(opening, graded):
    tokenizer = with_template(WHOLE + opening)
    prompt = problems.build_prompt(tokenizer, "Start with 7, add 5.")
    texts = [r"It may be \boxed{12}. But", r"\boxed{1}.</think> So \boxed{12}."]
    rows = [tokenizer(text, add_special_tokens=False).input_ids for text in texts]
    asked = [tokenizer(prompt, add_special_tokens=False).input_ids] * 2
    asked, real = rollout.pad(asked, 0, "left")
    ids, mask = rollout.pad(rows, 0, "right")
    out = rollout.Rollouts(asked, real, ids, mask.sum(1), mask[:, 0], mask * 0.0, texts)
    assert rollout.answers(out, tokenizer) == graded


# ------------------------------------------------------------------------------ what is saved


def test_rope_is_saved_in_both_spellings(tmp_path):
    rope = dict(rope_type="yarn", rope_theta=1e6, factor=4.0, original_max_position_embeddings=128)
    folders.save_model(tmp_path, build("qwen3", rope_parameters=rope))
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["rope_theta"] == 1e6 == saved["rope_parameters"]["rope_theta"]
    assert saved["rope_scaling"]["rope_type"] == "yarn" and saved["rope_scaling"]["factor"] == 4.0
    plain = dict(full_attention=dict(rope_type="default", rope_theta=1e6),
                 sliding_attention=dict(rope_type="default", rope_theta=1e4))
    assert folders.old_rope(plain) == dict(rope_theta=1e6, rope_local_base_freq=1e4,
                                           rope_scaling=None)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.config.rope_parameters["rope_theta"] == 1e6


def test_a_folder_saved_here_stops_where_the_run_did(tmp_path):
    shutil.copytree(TINY, tmp_path / "m")
    edit(tmp_path / "m/config.json", eos_token_id=0)
    edit(tmp_path / "m/generation_config.json", eos_token_id=0)
    model, tokenizer = problems.load_policy(str(tmp_path / "m"))
    folders.save_model(tmp_path, model)
    folders.save_tokenizer(tmp_path, tokenizer)
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] == [0, 2]
    saved = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert saved["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert not set(folders.OF_THE_LOAD) & set(saved)
    _, again = problems.load_policy(str(tmp_path))
    text = "Start with 7, add 5.<|im_end|>"
    assert again(text).input_ids == tokenizer(text).input_ids
    assert again.chat_template == tokenizer.chat_template


def test_a_config_that_cannot_be_saved_costs_no_step(tmp_path):
    shutil.copytree(TINY, tmp_path / "m")
    edit(tmp_path / "m/config.json", output_attentions=True)
    model, tokenizer = problems.load_policy(str(tmp_path / "m"))
    with pytest.raises(BadInput, match="cannot be saved.*output_attentions"):
        folders.try_to_save(model, tokenizer, "m")
