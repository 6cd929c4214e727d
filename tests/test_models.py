"""A model folder is right or refused: sampler and scorer against the whole model, kind by kind."""
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, Gemma3Config, PreTrainedTokenizerFast

import logprobs
import models
import problems
import relex
import rollout
import saliency
import verify
from engine import checkpoints, folders, memory, weights
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


@pytest.mark.parametrize("kind, more", [
    ("llama", dict(sliding_window=8)), ("cohere", dict(sliding_window=8, logit_scale=0.25)),
    ("qwen2", dict(sliding_window=8, use_sliding_window=True, max_window_layers=0)),
    ("mistral", dict(sliding_window=8)), ("gemma2", {**KINDS["gemma2"], "sliding_window": 8}),
    ("mixtral", dict(sliding_window=8, num_local_experts=2, num_experts_per_tok=1,
                     layer_types=["sliding_attention", "full_attention"]))])
def test_a_window_in_the_config_is_one_of_the_model_or_none(kind, more):
    """Llama looks through no window whatever its config.json says, and a cache that dropped old
    keys would take them from it; Mistral does look through one."""
    model, tokenizer = build(kind, **more), PreTrainedTokenizerFast.from_pretrained(TINY)
    prompts = ["Start with 7.", "Start with 7, add 5, times 3, minus 4, add 9."]
    out = rollout.sample(model, tokenizer, prompts, samples=2, max_new_tokens=16)
    assert worst_difference(model, out) < 1e-4


def worst_difference(model, out):
    """Largest |log-prob of a drawn token - that of the whole model|, row by row, no cache."""
    worst = 0.0
    for i, n in enumerate(out.lengths.tolist()):
        said = out.completion_ids[i, :n]
        row = torch.cat([out.prompt_ids[i][out.prompt_mask[i]], said])[None]
        with torch.no_grad():
            log_p = model(row, use_cache=False).logits[0, -n - 1:-1].log_softmax(-1)  # (n, V)
        truth = log_p.gather(1, said[:, None])[:, 0]
        worst = max(worst, float((truth - out.logprobs[i, :n]).abs().max()))
    return worst


@pytest.mark.parametrize("kind, more", [
    ("persimmon", {}), ("gemma4_unified_text", dict(sliding_window=512)), ("gemma2", {}),
    ("falcon_h1", {}), ("qwen3_5_text", LINEAR)])
def test_the_memory_of_any_kind_is_estimated(kind, more):
    """It is printed before every run; Persimmon has no num_key_value_heads, and Gemma 4's layers
    differ in head_dim."""
    config = CONFIG_MAPPING[kind](**{**SIZE, **more})
    assert memory.cache_bytes(config) >= 4 * 2 * 2 * 8


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


def changed(folder, change):
    """The embedded model in this folder, its weights by change({name: tensor}) -> the same."""
    shutil.copytree(TINY, folder)
    weights = load_file(folder / "model.safetensors")
    save_file(change(weights), folder / "model.safetensors", metadata={"format": "pt"})


def narrow(kind):
    return lambda weights: {name: (x * 40).to(kind) if x.ndim > 1 else x
                            for name, x in weights.items()}


@pytest.mark.parametrize("change, match", [
    (narrow(torch.int8), "is I8.*quantization_config"),
    (narrow(torch.float8_e4m3fn), "is F8_E4M3.*quantization_config"),
    (narrow(torch.float8_e5m2), "is F8_E5M2"), (narrow(torch.int32), "is I32"),
    (lambda w: w | {"model.layers.0.self_attn.o_proj.bias": torch.ones(128)}, "o_proj.bias.*place"),
    (lambda w: w | {"model.layers.0.mlp.up_proj.lora_A.weight": torch.ones(1)}, "lora_A.*place"),
    (lambda w: w | {"model.layers.1.mlp.up_proj.weight_scale": torch.ones(1)}, "scale.*place"),
    (lambda w: w | {"model.norm.weight": torch.ones(64)}, r"norm.weight is \[64\].*\[128\]"),
])
def test_weights_that_would_load_as_another_model_are_refused(change, match, tmp_path):
    changed(tmp_path / "m", change)
    refused(tmp_path / "m", match)


def test_weights_of_parts_that_change_no_number_are_left_out(tmp_path):
    """A value head, a layer too many (one that predicts further ahead), old rotary tables."""
    changed(tmp_path / "m", lambda weights: weights | {
        "v_head.summary.weight": torch.ones(1, 128), "model.layers.3.mlp.up_proj.weight":
        torch.ones(2, 2), "model.layers.3.eh_proj.weight": torch.ones(2, 2),
        "model.rotary_emb.inv_freq": torch.ones(16),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(16)})
    found, plain = (problems.load_policy(name)[0] for name in (str(tmp_path / "m"), "tiny"))
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), plain.parameters()))


def test_a_folder_without_tokenizer_files_or_of_a_run_is_refused(tmp_path):
    """transformers makes a tokenizer of one token for it."""
    shutil.copytree(TINY, tmp_path / "run/checkpoint")
    refused(tmp_path / "run", "a run's folder; its model is in .*checkpoint")
    shutil.copytree(TINY, tmp_path / "model")
    shutil.copytree(TINY, tmp_path / "model/checkpoint")  # of another trainer, beside the weights
    problems.load_policy(str(tmp_path / "model"))
    for path in (tmp_path / "run/checkpoint").glob("tokenizer*"):
        path.unlink()
    refused(tmp_path / "run/checkpoint", "its tokenizer knows no word")


def test_a_layer_that_the_config_does_not_count_is_refused(tmp_path):
    """transformers drops it with a table of names, and the rest is another model."""
    shutil.copytree(TINY, tmp_path / "m")
    config = json.loads((tmp_path / "m/config.json").read_text())
    config["num_hidden_layers"] = 2
    config.pop("layer_types", None)
    (tmp_path / "m/config.json").write_text(json.dumps(config))
    refused(tmp_path / "m", "model.layers.2")


@pytest.mark.parametrize("parts, layer", [
    (["linear_attn.a", "mlp.gate", "mlp.experts"], True), (["self_attn.q", "mlp.up"], True),
    (["self_attn.q", "mlp.up", "eh_proj"], False), (["self_attn.q", "enorm"], False)])
def test_one_more_layer_may_be_of_another_kind_than_the_first(parts, layer):
    layers = torch.nn.ModuleList([torch.nn.ModuleDict({"self_attn": torch.nn.Identity()})])
    keys = {f"m.layers.1.{part}.weight" for part in parts}
    for title in keys:
        assert weights.is_layer(layers, "m.layers", title, keys) == layer


@pytest.mark.parametrize("place", ["../model.safetensors", "/etc/model.safetensors",
                                   "a/../../model.safetensors", "..\\model.safetensors", "C:\\m"])
def test_an_index_stays_in_its_folder(place, tmp_path):
    shutil.copytree(TINY, tmp_path / "m")
    (tmp_path / "m/model.safetensors").rename(tmp_path / "model.safetensors")
    index = tmp_path / "m/model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"model.norm.weight": place}}))
    refused(tmp_path / "m", "outside of its folder")
    index.write_text('{"weight_map": 5}')
    refused(tmp_path / "m", "index.json is damaged")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "m.pth"])
def test_pickles_are_refused_with_the_way_to_convert_them(name, tmp_path):
    shutil.copytree(TINY, tmp_path / "m")
    (tmp_path / "m/model.safetensors").rename(tmp_path / "m" / name)
    refused(tmp_path / "m", f"{name}, a pickle.*convert it once.*save_pretrained")


# ------------------------------------------------------------------------------ tokens


@pytest.mark.parametrize("ids, match", [
    ("2", "is '2', not a number"), ([2, "x", None], "is 'x'"), ([[2]], r"is \[2\]"),
    ({"a": 1}, "not a number"), (2.0, "is 2.0"), (True, "is True"), (-1, "number -1")])
def test_a_stop_token_that_is_no_token_is_refused(ids, match, tmp_path):
    shutil.copytree(TINY, tmp_path / "m")
    edit(tmp_path / "m/generation_config.json", eos_token_id=ids)
    refused(tmp_path / "m", match)


def test_a_decoder_of_another_class_is_the_file_s_too(tmp_path):
    """Ids may agree where texts do not: what is graded is what the decoder writes."""
    folder = folder_of(tmp_path, "llama", std=0.02)
    edit(folder / "tokenizer_config.json", tokenizer_class="LlamaTokenizer")
    _, tokenizer = problems.load_policy(str(folder))
    file = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = file.encode(models.PROBE, add_special_tokens=False).ids
    assert tokenizer(models.PROBE, add_special_tokens=False).input_ids == ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == file.decode(ids)


def test_characters_that_the_tokenizer_does_not_know_are_said(capsys):
    model, tokenizer = problems.load_policy("tiny")
    problems.note.cache_clear()
    problems.longest_prompt(model, tokenizer, ["Start with 7.", "Start with 7, \u6f22 add 5."])
    assert "does not know '\u6f22'" in capsys.readouterr().err
    problems.longest_prompt(model, tokenizer, ["Start with 7.", "12345, (3/4) = x."])
    assert capsys.readouterr().err == ""


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


def test_sparse_attention_is_left_before_it_chooses():
    """DeepSeek 3.2's indexer keeps index_topk keys; beyond them the sampler was .8 nats off."""
    config = CONFIG_MAPPING["deepseek_v32"](**{**SIZE, "index_topk": 64})
    with pytest.raises(BadInput, match="exceed 64, where its sparse attention"):
        rollout.refuse_beyond_context(config, 40, 25)
    rollout.refuse_beyond_context(config, 40, 24)


def test_yarn_makes_the_context_so_much_longer():
    """Qwen3's card says to add a factor to config.json, and nothing of max_position_embeddings."""
    rope = dict(rope_type="yarn", rope_theta=1e6, factor=4.0, original_max_position_embeddings=64)
    model = build("qwen3", max_position_embeddings=64, rope_parameters=rope)
    assert rollout.longest_row(model.config)[0] == 256
    tokenizer = PreTrainedTokenizerFast.from_pretrained(TINY)
    out = rollout.sample(model, tokenizer, ["Start with 7, add 5."], samples=2, max_new_tokens=80)
    assert out.lengths.max() > 64 and worst_difference(model, out) < 1e-4


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


def special_think_tags():
    """The embedded tokenizer with <think> and </think> as special tokens: no text holds them."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(TINY)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    return tokenizer


@pytest.mark.parametrize("asked, said, box", [
    ("<think>", r"\boxed{12}. But", None), ("<think>", r"\boxed{1}</think> So \boxed{12}.", "12"),
    ("", r"<think>\boxed{12}. But", None), ("", r"<think>\boxed{1}</think> \boxed{12}", "12"),
    ("", r"\boxed{12}<think> or \boxed{1}", "12"), ("", r"So \boxed{12}.", "12"),
    ("<think></think>", r"So \boxed{12}.", "12"), ("<think>", r"\boxed{1}</think> None.", None),
])
def test_think_tags_that_are_special_tokens_are_seen(asked, said, box):
    tokenizer = special_think_tags()
    asked = [tokenizer("Ask." + asked, add_special_tokens=False).input_ids]
    ids = [tokenizer(said, add_special_tokens=False).input_ids]
    texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
    assert "think" not in texts[0]
    graded, = rollout.without_thoughts(tokenizer, asked, ids, texts)
    span = verify.last_boxed(graded)
    assert (graded[span[0]:span[1]] if span else None) == (box and rf"\boxed{{{box}}}")
    if span:  # saliency looks for the box's tokens where the text has it
        assert texts[0][span[0]:span[1]] == graded[span[0]:span[1]]


def test_a_thought_may_be_opened_far_from_the_end_of_the_prompt():
    opening = "<think>\nOkay, let me think about this step by step, slowly, and in full.\n"
    assert rollout.opens_a_thought("Is it 5?" + problems.SUFFIX + opening)
    assert not rollout.opens_a_thought("Is it 5?" + problems.SUFFIX + opening + "</think>")
    assert not rollout.opens_a_thought("What is <think>?" + problems.SUFFIX + "assistant")


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


def test_old_names_are_saved_beside_the_new_ones(tmp_path):
    """Qwen3-MoE's num_experts is num_local_experts in transformers 5: 4 would be read for 128. No
    scaling of RoPE is said aloud: gpt-oss had a default. Code that is not there is not named."""
    model = build("qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
    model.config.auto_map = {"AutoModelForCausalLM": "modeling_mine.Mine"}
    folders.save_model(tmp_path, model)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["num_experts"] == saved["num_local_experts"] == 4
    assert saved["rope_scaling"] is None and "auto_map" not in saved
    again, loaded = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not loaded["missing_keys"] and not loaded["unexpected_keys"]
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)


def test_a_snapshot_keeps_the_names_of_the_model(tmp_path):
    """On the hub each expert has a tensor of its own, in the model a layer's experts share one."""
    model = build("mixtral", num_local_experts=2, num_experts_per_tok=1)
    checkpoints.snapshot(tmp_path, model, 1)
    found = relex.find_snapshots(tmp_path / "snapshots")[1]
    assert {name: found[name].shape for name in found} == {
        name: tensor.shape for name, tensor in model.state_dict().items()}
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "snapshots/step_00001")
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)


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
