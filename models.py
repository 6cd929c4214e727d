"""Load a model, and check at every load that the loop computes it correctly.

    model, tokenizer = models.load_policy("Qwen/Qwen3-0.6B")

The loop runs a model in parts: embeddings, layers and LM head for the loss; a KV cache, token by
token, for the sampler. Some architectures do more between those parts. If the loop left that out,
the numbers would be wrong without an error. So `self_test` compares the parts with the whole model
on two short prompts. docs/models.md lists the models that passed.

What we left out, on purpose: remote code, quantised weights, adapters, encoders.
"""
import inspect
import os
from pathlib import Path

import torch
from tqdm import tqdm

from engine.caches import has_recurrent_layers
from engine.errors import BadInput, reason
from engine.seeds import row_keys
from engine.weights import check_files, check_formats, check_loaded
from logprobs import forward_pass
from rollout import Rollouts, generate, pad, sampling, stop_ids

HERE = Path(__file__).resolve().parent
MODELS = {"tiny": HERE / "data" / "tiny", "tiny-long": HERE / "data" / "tiny_long" / "tiny"}
KNOWN = "Llama, Qwen 2, 3 and 3.5, Gemma 2 and 3, Granite, Cohere and their like are supported"


def load_policy(name="tiny", device="cpu", dtype=torch.float32):
    """Load (model, tokenizer) from "tiny" (data/tiny), a folder or a hub id, in eval mode. Weights
    are fp32 by default: bf16 would round an AdamW step of 1e-6 away. Raises BadInput that names
    the flag."""
    check_device(device)
    where = MODELS.get(name, Path(name))
    if name in MODELS:
        refuse_what_is_not_made(f"--model {name}", where)
    check_folder(name, where)

    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # hides a bar per weight file; downloads keep theirs
    # Never run foreign code. If unset, the first flag asks on a terminal. A .bin file is a pickle.
    safe = dict(trust_remote_code=False, use_safetensors=True)
    try:
        tokenizer = load_tokenizer(name, str(where))
        model, loaded = AutoModelForCausalLM.from_pretrained(
            str(where), dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True, **safe)
    except BadInput:
        raise
    except Exception as error:  # a foreign folder can fail in any way
        raise BadInput(f"--model {name}: no causal language model loads "
                       f"({reason(error)})") from None
    check_loaded(name, model, loaded)
    check_formats(name, folder_of(where), model)
    model = text_model(model.eval())
    check_parts(name, model)
    check_tokens(name, model, tokenizer)
    model.config.use_cache = True  # a checkpoint saved while training may say False: 10x slower
    model.config.return_dict = True
    self_test(name, model, tokenizer)
    return model.to(device), tokenizer


# ------------------------------------------------------------------------------ before it loads


def refuse_what_is_not_made(flag, folder):
    """Raise BadInput if an embedded folder is missing: this copy of the project is not whole."""
    if not folder.is_dir():
        raise BadInput(f"{flag}: there is no {folder}; the third command at the top of "
                       "data/make_tiny.py makes it.")


def check_device(device):
    """Raise BadInput unless PyTorch has this device. Make a second card the current one."""
    try:
        kind, index = torch.device(device).type, torch.device(device).index
    except RuntimeError:
        raise BadInput(f"--device {device}: no device of PyTorch; use cpu or cuda.") from None
    if kind != "cpu" and (kind != "cuda" or (index or 0) >= torch.cuda.device_count()):
        raise BadInput(f"--device {device}: PyTorch sees no CUDA card here; use --device cpu.")
    if kind == "cuda" and index:
        torch.cuda.set_device(index)  # streams, graphs and memory counts use the current card


def never_on_the_hub(name):
    """Is this the path of a missing folder, and not an id of the form owner/model?"""
    parts = Path(name).parts
    if name[:1] in ("", *"./~") or len(parts) > 2:
        return True
    return len(parts) == 2 and (parts[0] == "runs" or os.path.isdir(parts[0])
                                or parts[1].startswith("checkpoint"))


def folder_of(where):
    """The path of a loaded model's files: its folder, or the hub's cache."""
    from transformers.utils import cached_file

    return where if where.is_dir() else Path(cached_file(str(where), "config.json")).parent


def check_folder(name, where):
    """Raise BadInput if the folder is missing, or if its files are not a complete model."""
    if where.is_dir():
        check_files(name, where)
    elif never_on_the_hub(str(name)):
        raise BadInput(f"--model {name}: there is no such folder.")


# ------------------------------------------------------------------------------ the tokenizer

# Words, spaces, digits, a newline, signs, an accent: pre-tokenizers differ in these.
PROBE = "Start with 7, add 12345.\n\n  Then x = \\boxed{3/4}; it's 50% of caf\u00e9s."


def load_tokenizer(name, where):
    """The tokenizer as tokenizer.json has it. For some classes transformers 5 replaces the file's
    pre-tokenizer by its own. Then we load it with the class that keeps the file's."""
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from transformers.utils import cached_file

    safe = dict(trust_remote_code=False)
    tokenizer = AutoTokenizer.from_pretrained(where, **safe)
    if not tokenizer(PROBE, add_special_tokens=False).input_ids:
        raise BadInput(f"--model {name}: its tokenizer knows no word, as when there is none; copy "
                       "tokenizer.json and tokenizer_config.json from the model that it was made "
                       "from.")
    file = cached_file(where, "tokenizer.json", _raise_exceptions_for_missing_entries=False)
    if not file:  # another kind of tokenizer: there is no file to compare with
        return tokenizer
    wanted = habits(Tokenizer.from_file(file))
    kept = isinstance(tokenizer, PreTrainedTokenizerFast)
    if not kept or habits(tokenizer.backend_tokenizer) != wanted:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(where, **safe)
        found = habits(tokenizer.backend_tokenizer)
        wrong = [what for what in wanted if found[what] != wanted[what]]
        if wrong:
            raise BadInput(f"--model {name}: transformers reads its tokenizer.json as another "
                           f"tokenizer (they differ in {', '.join(wrong)}).")
    return tokenizer


def habits(tokenizer):
    """How a tokenizer of the tokenizers library encodes and decodes: a dict to compare."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    ids = tokenizer.encode(PROBE, add_special_tokens=False).ids
    parts = {part: repr(getattr(tokenizer, part))
             for part in ("normalizer", "pre_tokenizer", "decoder")}
    return {**parts, "vocabulary": tokenizer.get_vocab(with_added_tokens=False),
            "tokens of a test sentence": ids, "text of those tokens": tokenizer.decode(ids)}


def check_tokens(name, model, tokenizer):
    """Give the tokenizer a padding token if it has none. Raise BadInput if a token has no
    embedding, or if no token ends a completion."""
    stops = stop_ids(model, tokenizer)
    wrong = [stop for stop in stops if type(stop) is not int]
    if wrong:
        raise BadInput(f"--model {name}: its eos_token_id is {wrong[0]!r}, not a number.")
    if not stops:
        raise BadInput(f"--model {name}: neither its tokenizer nor its configs name a stop token "
                       "(eos_token), so no completion could end.")
    if tokenizer.pad_token is None:  # any token will do: our masks come from lengths, not ids
        words = [tokenizer.convert_ids_to_tokens(stop) for stop in stops if stop >= 0]
        words += [min(tokenizer.get_vocab().items(), key=lambda item: item[1])[0]]
        tokenizer.pad_token = next(word for word in words if word is not None)
    # A folder saved from here keeps all stop tokens of the tokenizer and the configs.
    model.generation_config.eos_token_id = stops if len(stops) > 1 else stops[0]
    rows = len(model.get_input_embeddings().weight)
    for what, i in [("padding", tokenizer.pad_token_id), *(("stop", stop) for stop in stops)]:
        if not 0 <= i < rows:
            text = tokenizer.convert_ids_to_tokens(i) if i in tokenizer.get_vocab().values() else ""
            raise BadInput(f"--model {name}: its {what} token {text!r} is number {i}, and the "
                           f"model has only {rows} embeddings; resize them, or name another token "
                           "in tokenizer_config.json.")


# ------------------------------------------------------------------------------ the layers


def text_model(model):
    """The text part of a model that also reads images, as its own model. Others stay as they are.

    Gemma 3 of 4 B and more has a vision part, which text problems do not use.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    config = model.config.get_text_config(decoder=True)
    body = getattr(model.base_model, "language_model", None)
    if config is model.config or body is None:
        return model
    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if kind is None:
        return model
    with torch.device("meta"):  # no weights: all of them come from the loaded model
        text = kind(config)
    setattr(text, text.base_model_prefix, body)
    text.set_output_embeddings(model.get_output_embeddings())
    text.generation_config = model.generation_config
    config.tie_word_embeddings = model.config.tie_word_embeddings
    return text.eval()


def check_parts(name, model):
    """Raise BadInput unless the layers run without the LM head, with a mask and a cache.

    Only the order of arguments counts: transformers 5.24 renamed past_key_values to cache.
    """
    kind, body = model.config.model_type, model.base_model
    inputs = list(inspect.signature(body.forward).parameters)[:4]
    if body is model or inputs[:3] != ["input_ids", "attention_mask", "position_ids"] or (
            inputs[3:] not in (["past_key_values"], ["cache"])):
        raise BadInput(f"--model {name}: the layers of {kind} cannot be run apart from its LM "
                       f"head, with a mask, positions and a cache, as Llama's can; {KNOWN}.")
    if hasattr(model.config, "vision_config"):
        raise BadInput(f"--model {name}: {kind} sees pictures (it has a vision_config), and its "
                       "text model could not be taken out; save that alone.")


# ------------------------------------------------------------------------------ the self-test


def self_test(name, model, tokenizer, allowed=1e-3):
    """Raise BadInput unless sampler and scorer agree with model(...).logits within `allowed` nats.

    Two prompts of different lengths, with two completions of three tokens each. They test a
    prefill, two steps from the cache, and embeddings -> layers -> LM head in padded rows.
    """
    if model.dtype != torch.float32:
        return  # in bf16 rounding alone gives larger differences
    kind = model.config.model_type
    rows = len(model.get_input_embeddings().weight)
    tokens = tokenizer(PROBE, add_special_tokens=False).input_ids
    tokens = [token for token in tokens if token < rows] or [0]
    prompts = [tokens[:6], tokens[:2]]

    def step(what, compute, *arguments):
        try:
            return compute(*arguments)
        except Exception as error:  # an architecture can fail in any way
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise BadInput(f"--model {name}: {kind} cannot be trained here, because {what} fails "
                           f"({reason[:200]}); {KNOWN}.") from None

    with torch.no_grad():
        out = step("sampling token by token from a cache", three_tokens, model, prompts)
        whole = step("the model itself", whole_model, model, out)                    # (B, T, V)
        parts = step("running its layers on embeddings", model_in_parts, model, out)  # (B, T, V)
    if not whole.isfinite().all():
        raise BadInput(f"--model {name}: its logits are not finite; are its weights?")
    if whole.shape[-1] > rows:
        raise BadInput(f"--model {name}: it can say {whole.shape[-1]} tokens and has embeddings "
                       f"for {rows}; resize them.")
    sampler = (whole.gather(2, out.completion_ids[:, :, None])[:, :, 0] - out.logprobs).abs()
    differences = {
        "its embeddings, layers and LM head, one after the other,": (whole - parts).abs().max(),
        "its first step after the prompt": sampler[:, 0].max(),
        "its steps from the cache": sampler[:, 1:].max(),
    }
    for what, difference in differences.items():
        if not difference <= allowed:
            raise BadInput(f"--model {name}: {what} give log-probabilities up to {difference:.1g} "
                           f"nats from those of the whole model, so {kind} does something in "
                           f"between that is not written here; {KNOWN}.")


def three_tokens(model, prompts):
    """Rollouts of three tokens, two for each of two prompts (lists of ids), by the plain sampler.

    Recurrent layers cannot skip padding, so their prompts run one by one, as in rollout.sample.
    """
    together = [prompts]
    if has_recurrent_layers(model.config):
        together = [[prompt] for prompt in prompts]
    stops = torch.tensor([-1])  # no stop token: all rows get three tokens
    done = []
    with sampling(model), tqdm(disable=True) as bar:
        for some in together:
            ids, mask = pad(some, 0, "right")                               # (n, P) each
            keys = row_keys(0, [len(prompt) for prompt in some], 2, "cpu")  # (2 n,)
            limits = torch.full_like(keys, 3)                               # (2 n,)
            done.append(generate(model, ids, mask, 2, keys, stops, limits, 1.0, 1.0, 0, 0, bar))
    completions, lengths, finished, logprobs = map(torch.cat, zip(*done))
    ids, mask = pad([prompt for prompt in prompts for _ in range(2)], 0, "left")  # (B, P) each
    return Rollouts(ids, mask, completions, lengths, finished, logprobs, [])


def whole_model(model, out):
    """Log-probabilities (B, T, V) of the completions by the whole model, one row at a time."""
    found = []
    for prompt, mask, completion in zip(out.prompt_ids, out.prompt_mask, out.completion_ids):
        row = torch.cat([prompt[mask], completion])[None]            # (1, L)
        logits = model(row, use_cache=False).logits[0].float()       # (L, V)
        found.append(logits[-len(completion) - 1:-1].log_softmax(-1))  # (T, V)
    return torch.stack(found)


def model_in_parts(model, out):
    """The same by the parts that the loss uses, all rows at once, (B, T, V)."""
    forward = forward_pass(model, out, range(len(out.lengths)), logprobs=out.logprobs)
    return forward.head(forward.hidden).float().log_softmax(-1)
