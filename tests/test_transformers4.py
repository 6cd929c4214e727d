"""What is saved here is the same model in transformers 4, which servers and older code still use.

Slow: it makes an environment of its own, of transformers 4.57.3 over the installed torch, and needs
a package index for that. Without one it is skipped.
"""
import functools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_models import SIZE, build, tokenizer_to

import problems
from engine import folders

pytestmark = pytest.mark.slow
VERSION = "4.57.3"
# Reads a folder as anybody would who has transformers alone: logits, ids and stop tokens.
READER = """
import json, sys, torch, transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
torch.set_num_threads(1)
for folder in sys.argv[1:]:
    model, loaded = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        logits = model.eval()(torch.arange(3, 103)[None], use_cache=False).logits
    torch.save(logits, folder + "/logits.pt")
    chat = tokenizer.apply_chat_template(
        [dict(role="user", content="Start with 7.")], tokenize=False, add_generation_prompt=True)
    print(json.dumps(dict(
        version=transformers.__version__, missing=loaded["missing_keys"],
        ids=tokenizer("Start with 7, add 5.<|im_end|>", add_special_tokens=False).input_ids,
        unexpected=loaded["unexpected_keys"], chat=chat,
        stops=GenerationConfig.from_pretrained(folder).eos_token_id)))
"""


@pytest.fixture(scope="module")
def python4(tmp_path_factory):
    """The Python of an environment with transformers 4.57.3 over the packages that are installed
    here; what it needs in other versions (tokenizers, huggingface_hub) comes with it."""
    folder = tmp_path_factory.mktemp("transformers4")
    run = functools.partial(subprocess.run, check=True, capture_output=True, timeout=300, text=True)
    try:
        run([sys.executable, "-m", "venv", folder])
        # Not --system-site-packages: inside an environment that would not be its packages.
        site, = folder.glob("lib/python*/site-packages")
        (site / "ours.pth").write_text("\n".join(
            path for path in sys.path if path.endswith("-packages")))
        run([folder / "bin/python", "-m", "pip", "install", "-q", f"transformers=={VERSION}"])
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"no environment with transformers {VERSION}: {error}")
    yield folder / "bin/python"
    shutil.rmtree(folder)


def rope(kind="default", theta=1e6, **more):
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=theta, **more))


KINDS = {
    "qwen3": rope(),
    "qwen2": rope(theta=5e5),
    "llama": rope("llama3", 5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=64),
    "mistral": rope("yarn", factor=4.0, original_max_position_embeddings=64),
    "gemma3_text": dict(
        rope_parameters=dict(full_attention=dict(rope_type="linear", rope_theta=1e6, factor=8.0),
                             sliding_attention=dict(rope_type="default", rope_theta=2e4)),
        layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=8),
    "glm4": rope(partial_rotary_factor=0.5),
    "gpt_oss": dict(num_local_experts=4, num_experts_per_tok=2, **rope()),
    "granite": dict(logits_scaling=4.0, **rope()),
    "qwen3_moe": dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, **rope()),
}


def test_a_checkpoint_is_the_same_model_in_transformers_4(python4, tmp_path):
    """Without our second spelling of RoPE their logits are off by 1.7 to 6, for 10,000 is read."""
    asked = {}
    for kind, more in KINDS.items():
        start, saved = tmp_path / f"{kind}-start", tmp_path / kind
        build(kind, std=0.2, **more).save_pretrained(start)
        tokenizer_to(start)
        model, tokenizer = problems.load_policy(str(start))
        saved.mkdir()
        folders.save_model(saved, model)
        folders.save_tokenizer(saved, tokenizer)
        with torch.no_grad():
            logits = model(torch.arange(3, 103)[None], use_cache=False).logits
        asked[kind] = logits, tokenizer, model.generation_config.eos_token_id
    names = [str(tmp_path / kind) for kind in asked]
    done = subprocess.run([python4, "-c", READER, *names], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(told) == len(asked)
    for (kind, (logits, tokenizer, stops)), found in zip(asked.items(), told):
        there = torch.load(tmp_path / kind / "logits.pt")
        assert (there - logits).abs().max() < 1e-5, (kind, float((there - logits).abs().max()))
        ids = tokenizer("Start with 7, add 5.<|im_end|>", add_special_tokens=False).input_ids
        chat = tokenizer.apply_chat_template(
            [dict(role="user", content="Start with 7.")], tokenize=False,
            add_generation_prompt=True)
        assert found == dict(version=VERSION, missing=[], unexpected=[], ids=ids, stops=stops,
                             chat=chat)
        assert there.shape == (1, 100, SIZE["vocab_size"])
    assert Path(tmp_path / "qwen3/config.json").read_text().count("1000000.0") == 2
