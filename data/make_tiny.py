"""The embedded default: a model of 0.8 M parameters that can do sums and does not think enough.

    python data/make_tiny.py            # 2 CPU cores; rewrites data/tiny/ and the two problem files
    python data/make_tiny.py --steps 50 --out /some/folder       # a quick look at the machinery

The problems are chains of 2-4 operations ("Start with 7, add 5, times 3, minus 8."), every running
value between 0 and 99. The model is warmed up by supervised learning on answers that we write,
right and wrong, so that reinforcement learning has something to find:

    style     share   what it looks like                                      right
    glance     55 %   At a glance, \\boxed{31}.                                one time in four
    steps      45 %   one line a step, then \\boxed{}                          by step, see below

and inside the step-by-step style, one line at a time:

    plain     7+5=12                       wrong 5 % of the time
    idle      "So 7+5=12", "Now ..."       a filler word; changes nothing: truly idle tokens
    sloppy    "roughly 12*3=37"            wrong 40 % of the time: one token announces the harm

A wrong step is carried forward, as people do. So the tokens that matter (At a glance, roughly, the
digits of a result) and those that do not (So, Now, the closing words) are known by construction.
One batch in eight shows the curriculum format of SCRL: all the prefixes of a chain asked at once
and answered in <p1>..</p1> blocks.

What we left out, on purpose: any tuning of this file with a credit method in the loop. Task, size
and noise were chosen with plain GRPO alone and then frozen, so the demonstration is not rigged.
"""
import argparse
import json
import math
import random
import sys
import time
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from problems import SUFFIX  # the one sentence that asks for a box

CURRICULUM = (r" Solve the numbered problems in order, each inside its own tags <p1> </p1>,"
              r" <p2> </p2> and so on, and end each block with its answer within \boxed{}.")
FILLERS = ("So ", "Now ", "Then ", "Well, ", "Okay, ")
CLOSINGS = ("The answer is ", "So we get ", "Therefore ")
VERBS = {"+": ", add ", "-": ", minus ", "*": ", times "}

# ------------------------------------------------------------------------------ problems


def apply(value, operation, operand):
    return {"+": value + operand, "-": value - operand, "*": value * operand}[operation]


def draw_chain(rng):
    """A start in 1..20 and 2-4 (operation, operand) pairs whose running values stay in 0..99."""
    start = value = rng.randint(1, 20)
    chain = []
    for _ in range(rng.randint(2, 4)):
        choices = [(o, b) for o in "+-*" for b in range(2, 10) if 0 <= apply(value, o, b) <= 99]
        operation = rng.choice(sorted({o for o, _ in choices}))  # operations equally often
        operand = rng.choice([b for o, b in choices if o == operation])
        chain.append((operation, operand))
        value = apply(value, operation, operand)
    return start, chain


def statement(start, chain):
    return f"Start with {start}" + "".join(VERBS[o] + str(b) for o, b in chain) + "."


def values(start, chain):
    """The running values, the last of which is the answer."""
    out = []
    for operation, operand in chain:
        start = apply(start, operation, operand)
        out.append(start)
    return out


def subproblems(start, chain):
    """The chain's own prefixes: [{"problem", "answer"}, ...], the last one the original problem."""
    return [{"problem": statement(start, chain[:j + 1]), "answer": str(v)}
            for j, v in enumerate(values(start, chain))]


# ------------------------------------------------------------------------------ answers


def near_miss(value, rng):
    """Another value in 0..99, near, or off by a ten: the slips that people make."""
    slips = [value + d for d in (-10, -2, -1, 1, 2, 10) if 0 <= value + d <= 99]
    return rng.choice(slips)


def step_line(value, operation, operand, rng):
    """One written step from a (possibly wrong) value: the text and the value that it arrives at."""
    kind, word, wrong = rng.random(), "", 0.05
    if kind < 0.25:
        word, wrong = "roughly ", 0.40
    elif kind < 0.60:
        word = rng.choice(FILLERS)
    result = apply(value, operation, operand)
    if rng.random() < wrong or not 0 <= result <= 99:  # a carried slip can leave 0..99
        result = near_miss(min(max(result, 0), 99), rng)
    return f"{word}{value}{operation}{operand}={result}", result


def answer(start, chain, rng):
    """A completion in one of the two styles."""
    truth = values(start, chain)[-1]
    if rng.random() < 0.55:
        guess = truth if rng.random() < 0.25 else rng.randint(0, 99)
        return rf"At a glance, \boxed{{{guess}}}."
    lines, value = [], start
    for operation, operand in chain:
        line, value = step_line(value, operation, operand, rng)
        lines.append(line)
    return "\n".join(lines) + "\n" + rng.choice(CLOSINGS) + rf"\boxed{{{value}}}."


def curriculum_question(start, chain):
    numbered = [f"\n{j}. {sub['problem']}" for j, sub in enumerate(subproblems(start, chain), 1)]
    return statement(start, chain) + "".join(numbered) + CURRICULUM


def curriculum_answer(start, chain, rng):
    """One block a prefix; a slip in block j is carried into block j+1."""
    blocks, value = [], start
    for j, (operation, operand) in enumerate(chain):
        line, value = step_line(value, operation, operand, rng)
        blocks.append(rf"<p{j + 1}>{line} \boxed{{{value}}}</p{j + 1}>")
    return "\n".join(blocks)


# ------------------------------------------------------------------------------ tokenizer and model


def make_tokenizer():
    """Words with their trailing space, digits one by one, each standing instruction one token.

    Any other text falls back to single printable ASCII characters. Decoding is plain concatenation,
    so text -> ids -> text is the identity.
    """
    words = [SUFFIX, CURRICULUM, r"\boxed{", "At a glance, ", "roughly ", "Start with ", "\n"]
    words += [*FILLERS, *CLOSINGS, *VERBS.values(), "user\n", "assistant\n"]
    words += [tag for j in range(1, 7) for tag in (f"<p{j}>", f"</p{j}>")]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|unk|>"]
    characters = [chr(c) for c in range(32, 127)]
    vocabulary = {token: i for i, token in enumerate(dict.fromkeys(special + words + characters))}
    escaped = ["".join(c if c.isalnum() else f"\\x{ord(c):02x}" for c in word)
               for word in sorted(words, key=len, reverse=True)]
    pattern = "|".join(escaped) + r"|(?m:.)"  # in this dialect (?m) lets the dot match a newline
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<|unk|>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<|endoftext|>", eos_token="<|im_end|>",
        unk_token="<|unk|>", additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False, padding_side="left")
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
    return tokenizer


def make_model(tokenizer):
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=128, intermediate_size=512, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=1024,
        tie_word_embeddings=True, rope_theta=10_000.0, use_cache=True,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None)
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id,
                                               pad_token_id=tokenizer.pad_token_id)
    return model


# ------------------------------------------------------------------------------ warm-up


def batch(tokenizer, rng, size, curriculum, held_out):
    """`size` examples as [(ids, labels), ...], each (rows, L), labels -100 off the reply.

    Two halves by length: a glance is a third as long as steps, and padding is paid for like text.
    """
    examples = []
    while len(examples) < size:
        start, chain = draw_chain(rng)
        if statement(start, chain) in held_out:
            continue
        if curriculum:
            question = curriculum_question(start, chain)
            reply = curriculum_answer(start, chain, rng)
        else:
            question, reply = statement(start, chain) + SUFFIX, answer(start, chain, rng)
        prompt = tokenizer.apply_chat_template([{"role": "user", "content": question}],
                                               add_generation_prompt=True, tokenize=False)
        p = tokenizer.encode(prompt, add_special_tokens=False)
        r = tokenizer.encode(reply, add_special_tokens=False) + [tokenizer.eos_token_id]
        examples.append((torch.tensor(p + r), torch.tensor([-100] * len(p) + r)))
    examples.sort(key=lambda example: len(example[0]))
    halves = examples[:size // 2], examples[size // 2:]
    return [(pad_sequence([e[0] for e in half], True, tokenizer.pad_token_id),
             pad_sequence([e[1] for e in half], True, -100)) for half in halves]


def warm_up(model, tokenizer, steps, batch_size, lr, rng, held_out):
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(  # a tenth of linear warm-up, then half a cosine
        optimizer, lambda s: min(10 * (s + 1) / steps, 0.5 * (1 + math.cos(math.pi * s / steps))))
    model.train()
    bar = tqdm(range(steps), desc="warm-up", disable=None)
    for step in bar:
        halves = batch(tokenizer, rng, batch_size, step % 8 == 7, held_out)
        tokens = sum(int((labels[:, 1:] != -100).sum()) for _, labels in halves)
        total = 0.0
        for ids, labels in halves:  # right-padded and causal: no mask needed
            ids, labels = ids.to(model.device), labels.to(model.device)
            logits = model(input_ids=ids).logits  # (rows, L, V)
            loss = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(),
                                 reduction="sum") / tokens
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        bar.set_postfix(loss=f"{total:.3f}")
        if bar.disable and step % 100 == 0:
            print(f"step {step:5d}  loss {total:.3f}", flush=True)
    return model.eval()


def write_problems(path, chains):
    with open(path, "w") as file:
        for start, chain in chains:
            row = {"problem": statement(start, chain), "answer": str(values(start, chain)[-1]),
                   "subproblems": subproblems(start, chain)}
            file.write(json.dumps(row) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=HERE, help="receives tiny/ and the problems")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1000, help="warm-up steps")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    began = time.time()
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)

    chains = {}
    while len(chains) < 8_000:  # one entry a distinct statement
        start, chain = draw_chain(rng)
        chains[statement(start, chain)] = (start, chain)
    chains = list(chains.values())
    args.out.mkdir(parents=True, exist_ok=True)
    write_problems(args.out / "arithmetic_train.jsonl", chains[:7_000])
    write_problems(args.out / "arithmetic_test.jsonl", chains[7_000:])
    held_out = {statement(*chain) for chain in chains[7_000:]}  # not seen in the warm-up either

    tokenizer = make_tokenizer()
    model = make_model(tokenizer).to(args.device)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens")
    warm_up(model, tokenizer, args.steps, args.batch_size, args.lr, rng, held_out)
    model.save_pretrained(args.out / "tiny")
    tokenizer.save_pretrained(args.out / "tiny")
    print(f"wrote {args.out / 'tiny'} in {time.time() - began:.0f} s")


if __name__ == "__main__":
    main()
