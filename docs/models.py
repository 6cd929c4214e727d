"""Writes docs/models.md: which architectures of transformers work here, which are refused and why.

    python docs/models.py

Of each architecture that AutoModelForCausalLM knows, a tiny random model is made, saved, loaded as
--model loads it, and sampled from. What the sampler and the scorer say of every drawn token is then
compared with plain transformers: the whole model, one row at a time, no cache, no padding. A model
works if that agrees, and if grpo.py trains it for a step and evaluate.py reads the checkpoint.
"""
import argparse
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "critical", "TQDM_DISABLE": "1"}
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import evaluate
import grpo
import problems
import rollout
from engine.errors import BadInput
from logprobs import forward_pass

SIZE = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, max_position_embeddings=512, vocab_size=131, pad_token_id=0,
    bos_token_id=None, eos_token_id=2, sliding_window=512, moe_intermediate_size=16, num_experts=4,
    num_local_experts=4, n_routed_experts=4, num_experts_per_tok=2,
    shared_expert_intermediate_size=16, linear_num_value_heads=4, linear_num_key_heads=2,
    linear_key_head_dim=8,
    linear_value_head_dim=8, query_pre_attn_scalar=8)
LINEAR = dict(layer_types=["linear_attention", "full_attention"])
LATENT = dict(q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
              n_group=1, topk_group=1, num_key_value_heads=4)
INDEX = dict(index_n_heads=2, index_head_dim=16, index_topk=512)
MAMBA = dict(mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8, mamba_chunk_size=8, mamba_expand=2,
             mamba_n_groups=1)
SEES = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            image_size=28, patch_size=14, depth=1, num_heads=2, out_hidden_size=32)


def seeing(text, **more):
    """A config of a model that sees pictures, as its class takes it."""
    return dict(text_config={**SIZE, **text}, vision_config=SEES, **more)


HEADS = dict(linear_head_dim=8, linear_num_heads=4)
MORE = {
    "axk1": LATENT,
    "axk2": LATENT,
    "bailing_hybrid": {**LATENT, **LINEAR, **HEADS},
    "bamba": dict(**MAMBA, attn_layer_indices=[1]),
    "cohere": dict(logit_scale=0.25),
    "cwm": dict(bos_token_id=1),
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "deepseek_v32": {**LATENT, **INDEX},
    "dots1": dict(n_group=1, topk_group=1, n_shared_experts=1, first_k_dense_replace=1),
    "falcon_h1": dict(mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=8,
                      mamba_chunk_size=8),
    "falcon": dict(head_dim=None),
    "gemma3": seeing(dict(query_pre_attn_scalar=8), mm_tokens_per_image=4, image_token_index=122,
                     eoi_token_index=120, boi_token_index=121),
    "gemma4_text": dict(vocab_size_per_layer_input=131, hidden_size_per_layer_input=8,
                        global_head_dim=16, num_kv_shared_layers=0,
                        layer_types=["sliding_attention", "full_attention"]),
    "glm4_moe_lite": LATENT,
    "glm_moe_dsa": {**LATENT, **INDEX},
    "granite": dict(logits_scaling=4.0),
    "granitemoe": dict(logits_scaling=4.0),
    "granitemoehybrid": dict(**MAMBA, layer_types=["mamba", "attention"],
                             shared_intermediate_size=16),
    "jamba": dict(attn_layer_period=2, attn_layer_offset=1, mamba_dt_rank=4, mamba_d_state=8,
                  use_mamba_kernels=False),
    "kimi_linear": {**LATENT, **LINEAR, **HEADS},
    "lfm2": dict(layer_types=["conv", "full_attention"]),
    "lfm2_moe": dict(layer_types=["conv", "full_attention"], num_dense_layers=1),
    "lfm3": dict(layer_types=["conv", "full_attention"]),
    "llama4": seeing(dict(intermediate_size_mlp=48, moe_layers=[1], attention_chunk_size=512)),
    "mamba2": dict(num_heads=4, head_dim=16, state_size=8, n_groups=1, chunk_size=8),
    "minicpm3": LATENT,
    "minimax": dict(layer_types=["full_attention", "linear_attention"]),
    "modernbert-decoder": dict(bos_token_id=1, cls_token_id=1, sep_token_id=1),
    "phi3": dict(sliding_window=None),
    "qwen3_5": seeing(LINEAR),
    "qwen3_5_moe": seeing(LINEAR),
    "qwen3_5_text": LINEAR,
    "qwen3_5_moe_text": LINEAR,
    "qwen3_next": LINEAR,
    "sarvam_mla": LATENT,
    "youtu": LATENT,
    "zamba2": dict(layer_types=["mamba", "hybrid"], mamba_d_state=8, n_mamba_heads=4,
                   mamba_ngroups=1, attention_head_dim=16, num_mem_blocks=1, chunk_size=8),
    "zaya": dict(num_experts_per_tok=1),
}
LARGEST = 5_000_000  # parameters; an architecture whose sizes have other names stays larger
SECONDS = 60


BOS = "bos_token_id"


class TooSlow(BaseException):
    """Not an Exception, so that nobody on the way takes it for the architecture's own."""


def too_slow(*_):
    raise TooSlow


def make(kind, folder):
    """A tiny random model of this type with the embedded tokenizer. False if it cannot be made."""
    torch.manual_seed(0)
    sizes = {**SIZE, **MORE.get(kind, {})}
    config = CONFIG_MAPPING[kind](**{k: v for k, v in sizes.items() if v is not None or k == BOS})
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if size > LARGEST:
        raise ValueError(f"{size / 1e6:.0f} M parameters")
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.copy_(torch.randn(p.shape) * 0.2)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(ROOT / "data" / "tiny" / name, folder)


def difference(model, tokenizer):
    """The largest |log-probability - plain transformers'|, of the sampler's and the scorer's."""
    prompts = [problems.build_prompt(tokenizer, text) for text in ("7, add 5.", "1, times 4, add")]
    out = rollout.sample(model, tokenizer, prompts, samples=2, max_new_tokens=8)
    worst = 0.0
    with torch.no_grad():
        scored = forward_pass(model, out, range(4)).logprobs  # (4, T)
        for i, n in enumerate(out.lengths.tolist()):
            said = out.completion_ids[i, :n]
            row = torch.cat([out.prompt_ids[i][out.prompt_mask[i]], said])[None]
            log_p = model(row, use_cache=False).logits[0, -n - 1:-1].log_softmax(-1)  # (n, V)
            truth = log_p.gather(1, said[:, None])[:, 0]
            for found in (out.logprobs, scored):
                worst = max(worst, float((truth - found[i, :n]).abs().max()))
    return worst


def train_and_evaluate(folder):
    """One step of grpo.py and an evaluation of its checkpoint. Raises what goes wrong."""
    rows = "--data arithmetic --device cpu --max-new-tokens 8".split()
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        grpo.main(["--model", folder, *rows, "--name", f"{folder}/run", *"--steps 1 --prompts 2 "
                   "--group 4 --eval-problems 0 --reward random --pages-every 0".split()])
        evaluate.main(["--model", f"{folder}/run/checkpoint", *rows, "--limit", "2", "--samples",
                       "2", "--out", f"{folder}/samples.jsonl"])
    step = json.loads(Path(folder, "run/metrics.jsonl").read_text().splitlines()[0])
    return step["gap_max"]


def verdict(kind):
    """(works, refused, WRONG or not made; the difference or the reason)."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            make(kind, folder)
        except (Exception, TooSlow) as error:  # its config wants other sizes
            return "not made", f"{type(error).__name__}: {error}".partition("\n")[0][:80]
        try:
            apart = difference(*problems.load_policy(folder))
            apart = max(apart, train_and_evaluate(folder))
        except TooSlow:
            return "not made", f"more than {SECONDS} s"
        except BadInput as refusal:
            text = str(refusal).replace(f"--model {folder}: ", "")
            return "refused", text.rpartition("; ")[0] or text
        except Exception as error:  # to be seen in the table
            return "WRONG", f"{type(error).__name__}: {error}".partition("\n")[0][:80]
    return ("works" if apart < 1e-4 else "WRONG"), f"{apart:.0e}"


def main():
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, too_slow)
    found = {}
    for kind in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        if kind in CONFIG_MAPPING:
            signal.alarm(SECONDS)
            found[kind] = verdict(kind)
            signal.alarm(0)
            print(kind, *found[kind], flush=True)
    (ROOT / "docs" / "models.md").write_text(page(found), encoding="utf-8")


def page(found):
    """The page (str) of {type: (word, what)}."""
    count = {word: sum(f[0] == word for f in found.values())
             for word in ("works", "refused", "WRONG", "not made")}
    lines = [
        "# Architectures", "",
        f"`python docs/models.py`, transformers {transformers.__version__}, torch "
        f"{torch.__version__}: tiny random models of transformers' own configs; **{count['works']} "
        f"work, {count['refused']} are refused at load in one sentence, {count['WRONG']} are "
        f"wrong**, and {count['not made']} could not be made this small, so nothing is said of "
        "them.", "", "Works means: grpo.py trains it for a step, evaluate.py reads the checkpoint, "
        "and the sampler and the scorer agree with plain transformers (the whole model, one row at "
        "a time, no cache) on every drawn token. The number is their largest difference, in nats. "
        "Every load makes a short form of this comparison (models.py): a model that is not in the "
        "table is refused where it differs.", "",
        "Find your model's type under `model_type` in its config.json.", "",
        "| type | works | largest difference |", "|---|---|---|"]
    lines += [f"| {kind} | yes | {what} |" for kind, (word, what) in found.items()
              if word == "works"]
    lines += ["", "| type | refused, because |", "|---|---|"]
    lines += [f"| {kind} | {what.replace('|', '/')} |" for kind, (word, what) in found.items()
              if word in ("refused", "WRONG")]
    lines += ["", "Not made: " + ", ".join(k for k, f in found.items() if f[0] == "not made") + "."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
