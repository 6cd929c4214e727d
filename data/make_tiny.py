"""Make the embedded model: 0.8 M parameters, can do sums, but often guesses without thinking.

    python data/make_tiny.py            # 2 CPU cores; rewrites data/tiny/ and the two problem files
    python data/make_tiny.py --steps 50 --out /some/folder       # a quick try
    python data/make_tiny.py --chain 10-14 --roughly 0.5 --slips 0.03 --glances 0.2 \\
        --glance-right 0.12 --out data/tiny_long --device cuda   # long chains: --model tiny-long

The problems are chains of 2-4 operations ("Start with 7, add 5, times 3, minus 8."). Every running
value is between 0 and 99. Supervised learning warms the model up on answers that we write, right
and wrong, so that reinforcement learning can improve it:

    style     share   what it looks like                                      right
    glance     55 %   At a glance, \\boxed{31}.                                one time in four
    steps      45 %   one line per step, then \\boxed{}                        by step, see below

and each line of the step-by-step style is one of these:

    plain     7+5=12                       wrong 5 % of the time
    idle      "So 7+5=12", "Now ..."       a filler word that changes nothing: an idle token
    sloppy    "roughly 12*3=37"            wrong 40 % of the time: "roughly" predicts the error

Later lines go on from a wrong step, as people do. So we know by construction which tokens matter
(At a glance, roughly, the digits of a result) and which do not (So, Now, the closing words). One
batch in eight has the curriculum format of SCRL: at most four prefixes of a chain in one prompt,
answered in <p1>..</p1> blocks.

On such short chains it hardly helps to know which line was wrong. The long task is for comparing
methods of credit: it has more lines, more of them sloppy, and fewer glances.

What we left out, on purpose: any tuning of this file with a credit method. We chose task, size and
noise with plain GRPO only (for the long task: GRPO and the step oracle) and then froze them. So the
comparison favours no method.
"""
import argparse
import json
import math
import random
import re
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import WordLevel
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from engine.errors import BadInput, run_cli
from models import check_device
from problems import SUFFIX  # the one sentence that asks for a box

CURRICULUM = (r" Solve the numbered problems in order, each inside its own tags <p1> </p1>,"
              r" <p2> </p2> and so on, and end each block with its answer within \boxed{}.")
FILLERS = ("So ", "Now ", "Then ", "Well, ", "Okay, ")
CLOSINGS = ("The answer is ", "So we get ", "Therefore ")
VERBS = {"+": ", add ", "-": ", minus ", "*": ", times "}


class Task(NamedTuple):
    """The task's settings: numbers of operations, and the shares of the table above."""
    chain: tuple = (2, 4)
    glances: float = 0.55
    glance_right: float = 0.25
    roughly: float = 0.25        # of the lines of steps
    roughly_wrong: float = 0.40
    slips: float = 0.05          # wrong among the other lines


SHORT = Task()
LAST_DRAWS = 100_000  # give up after so many draws without a new problem

# ------------------------------------------------------------------------------ problems


def apply(value, operation, operand):
    return {"+": value + operand, "-": value - operand, "*": value * operand}[operation]


def draw_chain(rng, task=SHORT):
    """A start in 1..20 and `task.chain` (operation, operand) pairs; values stay in 0..99."""
    start = value = rng.randint(1, 20)
    chain = []
    for _ in range(rng.randint(*task.chain)):
        choices = [(o, b) for o in "+-*" for b in range(2, 10) if 0 <= apply(value, o, b) <= 99]
        operation = rng.choice(sorted({o for o, _ in choices}))  # operations equally often
        operand = rng.choice([b for o, b in choices if o == operation])
        chain.append((operation, operand))
        value = apply(value, operation, operand)
    return start, chain


def draw_problems(rng, number, task=SHORT):
    """`number` chains whose statements differ. Raises BadInput if there seem to be fewer."""
    chains, in_vain = {}, 0
    while len(chains) < number:
        start, chain = draw_chain(rng, task)
        known = len(chains)
        chains[statement(start, chain)] = (start, chain)
        in_vain = in_vain + 1 if len(chains) == known else 0
        if in_vain == LAST_DRAWS:
            low, high = task.chain
            raise BadInput(f"--problems {number}: after {known:,} problems of --chain {low}-{high} "
                           f"the next {in_vain:,} draws gave no new one; ask for fewer problems or "
                           "longer chains.")
    return list(chains.values())


def statement(start, chain):
    return f"Start with {start}" + "".join(VERBS[o] + str(b) for o, b in chain) + "."


def values(start, chain):
    """The running values, the last of which is the answer."""
    out = []
    for operation, operand in chain:
        start = apply(start, operation, operand)
        out.append(start)
    return out


def prefix_ends(chain, most=4):
    """The number of operations of each subproblem: all of 1..n, or `most` evenly spread ones."""
    return sorted({math.ceil(len(chain) * j / most) for j in range(1, most + 1)})


def subproblems(start, chain):
    """The chain's own prefixes: [{"problem", "answer"}, ...], the last one the original problem."""
    known = values(start, chain)
    return [{"problem": statement(start, chain[:n]), "answer": str(known[n - 1])}
            for n in prefix_ends(chain)]


# ------------------------------------------------------------------------------ answers


def near_miss(value, rng):
    """A wrong value in 0..99, near or off by ten, like people's slips."""
    slips = [value + d for d in (-10, -2, -1, 1, 2, 10) if 0 <= value + d <= 99]
    return rng.choice(slips)


def step_line(value, operation, operand, rng, task=SHORT):
    """One written step from a (possibly wrong) value: (text, resulting value)."""
    kind, word, wrong = rng.random(), "", task.slips
    if kind < task.roughly:
        word, wrong = "roughly ", task.roughly_wrong
    elif kind < task.roughly + 0.35:
        word = rng.choice(FILLERS)
    result = apply(value, operation, operand)
    if rng.random() < wrong or not 0 <= result <= 99:  # a carried slip can leave 0..99
        result = near_miss(min(max(result, 0), 99), rng)
    return f"{word}{value}{operation}{operand}={result}", result


def answer(start, chain, rng, task=SHORT):
    """A completion in one of the two styles."""
    truth = values(start, chain)[-1]
    if rng.random() < task.glances:
        guess = truth if rng.random() < task.glance_right else rng.randint(0, 99)
        return rf"At a glance, \boxed{{{guess}}}."
    lines, value = [], start
    for operation, operand in chain:
        line, value = step_line(value, operation, operand, rng, task)
        lines.append(line)
    return "\n".join(lines) + "\n" + rng.choice(CLOSINGS) + rf"\boxed{{{value}}}."


def curriculum_question(start, chain):
    numbered = [f"\n{j}. {sub['problem']}" for j, sub in enumerate(subproblems(start, chain), 1)]
    return statement(start, chain) + "".join(numbered) + CURRICULUM


def curriculum_answer(start, chain, rng, task=SHORT):
    """One block per prefix, with the lines that it adds. Block j+1 goes on from a slip in j."""
    blocks, value, done = [], start, 0
    for j, n in enumerate(prefix_ends(chain), 1):
        lines = []
        for operation, operand in chain[done:n]:
            line, value = step_line(value, operation, operand, rng, task)
            lines.append(line)
        steps = "\n".join(lines)
        blocks.append(rf"<p{j}>{steps} \boxed{{{value}}}</p{j}>")
        done = n
    return "\n".join(blocks)


# ------------------------------------------------------------------------------ tokenizer and model


def make_tokenizer():
    """Words with their trailing space, single digits, and one token for each fixed instruction.

    Any other text becomes single printable ASCII characters. Decoding concatenates the tokens, so
    text -> ids -> text is the identity.
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
    core = Tokenizer(WordLevel(vocabulary, unk_token="<|unk|>"))
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


def batch(tokenizer, rng, size, curriculum, held_out, task=SHORT):
    """`size` examples as [(ids, labels), ...], each (rows, L), labels -100 outside the reply.

    The halves hold the short and the long ones. A glance is a third as long as steps, and padding
    costs as much time as text.
    """
    examples = []
    while len(examples) < size:
        start, chain = draw_chain(rng, task)
        if statement(start, chain) in held_out:
            continue
        if curriculum:
            question = curriculum_question(start, chain)
            reply = curriculum_answer(start, chain, rng, task)
        else:
            question, reply = statement(start, chain) + SUFFIX, answer(start, chain, rng, task)
        prompt = tokenizer.apply_chat_template([{"role": "user", "content": question}],
                                               add_generation_prompt=True, tokenize=False)
        p = tokenizer.encode(prompt, add_special_tokens=False)
        r = tokenizer.encode(reply, add_special_tokens=False) + [tokenizer.eos_token_id]
        examples.append((torch.tensor(p + r), torch.tensor([-100] * len(p) + r)))
    examples.sort(key=lambda example: len(example[0]))
    halves = examples[:size // 2], examples[size // 2:]
    return [(pad_sequence([e[0] for e in half], True, tokenizer.pad_token_id),
             pad_sequence([e[1] for e in half], True, -100)) for half in halves]


def warm_up(model, tokenizer, steps, batch_size, lr, rng, held_out, task=SHORT):
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(  # a tenth of linear warm-up, then half a cosine
        optimizer, lambda s: min(10 * (s + 1) / steps, 0.5 * (1 + math.cos(math.pi * s / steps))))
    model.train()
    bar = tqdm(range(steps), desc="warm-up", disable=None)
    for step in bar:
        halves = batch(tokenizer, rng, batch_size, step % 8 == 7, held_out, task)
        tokens = sum(int((labels[:, 1:] != -100).sum()) for _, labels in halves)
        total = 0.0
        for ids, labels in halves:  # right-padded and causal: no mask needed
            ids, labels = ids.to(model.device), labels.to(model.device)
            logits = model(input_ids=ids).logits  # (rows, L, V)
            loss = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(),
                                 reduction="sum") / tokens
            loss.backward()
            total += loss.item()
        if not math.isfinite(total):
            raise FloatingPointError(f"step {step + 1}: the loss is {total}; lower --lr {lr}.")
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


# ------------------------------------------------------------------------------ the command line


def numbers(text):
    """--chain: "10-14" -> (10, 14). More than 20 operations would not fit the model's context."""
    found = re.fullmatch("([0-9]{1,2})-([0-9]{1,2})", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]) <= 20:
        raise argparse.ArgumentTypeError(f"{text!r} is no range within 1-20, such as 10-14")
    return int(found[1]), int(found[2])


def share(text):
    """A number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share, a number from 0 to 1")
    return value


def parse(argv=None):
    """(the flags, the Task that they describe)."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add, default = parser.add_argument, SHORT
    add("--out", type=Path, default=HERE, help="receives tiny/ and the problems")
    add("--seed", type=int, default=0)
    add("--steps", type=int, default=1000, help="warm-up steps")
    add("--batch-size", type=int, default=128)
    add("--lr", type=float, default=3e-3)
    add("--device", default="cpu")
    add("--problems", type=int, default=8_000, help="of which the last eighth is held out")
    add("--chain", type=numbers, default=default.chain, help="operations a problem, such as 10-14")
    add("--glances", type=share, default=default.glances, help="share of answers without steps")
    add("--glance-right", type=share, default=default.glance_right, help="share of right glances")
    add("--roughly", type=share, default=default.roughly, help="share of lines that are sloppy")
    add("--roughly-wrong", type=share, default=default.roughly_wrong, help="share of wrong ones")
    add("--slips", type=share, default=default.slips, help="share of other lines that are wrong")
    args = parser.parse_args(argv)
    task = Task(*(getattr(args, name) for name in Task._fields))
    if task.roughly > 0.65:
        parser.error(f"--roughly {task.roughly}: 0.65 at most, because 0.35 of the lines are idle")
    if args.problems < 8:
        parser.error(f"--problems {args.problems}: 8 at least, because an eighth is held out")
    if args.batch_size < 2:
        parser.error(f"--batch-size {args.batch_size}: 2 at least, because it is cut in two halves")
    if args.steps < 1:
        parser.error(f"--steps {args.steps}: 1 at least, or the model stays random")
    if not 0 < args.lr < math.inf:  # NaN fails here, too
        parser.error(f"--lr {args.lr}: a finite number above 0 is needed")
    if not 0 <= args.seed < 2**40:
        parser.error(f"--seed {args.seed}: must be at least 0 and below 2^40")

    others = [f"--{name.replace('_', '-')}" for name, value in vars(args).items()
              if name != "out" and value != parser.get_default(name)]
    if args.out.resolve() == HERE and others:
        parser.error(f"{', '.join(others)}: another task, or other weights, would overwrite "
                     "data/tiny; name a folder of its own with --out")
    return args, task


def main(argv=None):
    args, task = parse(argv)
    check_device(args.device)
    began = time.time()
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)

    chains = draw_problems(rng, args.problems, task)
    n = args.problems - args.problems // 8
    try:
        (args.out / "tiny").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out {args.out}: no folder can be made there "
                       f"({error.strerror}).") from None
    write_problems(args.out / "arithmetic_train.jsonl", chains[:n])
    write_problems(args.out / "arithmetic_test.jsonl", chains[n:])
    held_out = {statement(*chain) for chain in chains[n:]}  # not seen in the warm-up either

    tokenizer = make_tokenizer()
    model = make_model(tokenizer).to(args.device)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens")
    warm_up(model, tokenizer, args.steps, args.batch_size, args.lr, rng, held_out, task)
    model.save_pretrained(args.out / "tiny")
    tokenizer.save_pretrained(args.out / "tiny")
    print(f"wrote {args.out / 'tiny'} in {time.time() - began:.0f} s")


if __name__ == "__main__":
    run_cli(main)
