r"""SCRL: the model also learns from problems that it solved only in part.

    python scrl.py                          # CPU, two minutes: the embedded model
    python scrl.py --arm both-grpo          # a control, see below; or no-cut
    python scrl.py --make-subproblems gsm8k steps.jsonl     # from reference solutions, no model
    python scrl.py --model Qwen/Qwen3-0.6B --data steps.jsonl

If all G rollouts fail, GRPO learns nothing. SCRL (Jiang et al., arXiv 2605.22074) splits them into
two halves. Half of them, n = G/2, answer K subproblems in blocks <p1>..</p1> to <pK>..</pK>. The
last subproblem is the original. The other half answers only the original, by plain GRPO.

    r[i, j] = 1 if the last box in block j of rollout i is right, else 0                      (n, K)
    R[i, j] = r[i, 1] r[i, 2] ... r[i, j]         nothing counts after the first failure      (n, K)
    A[i, j] = (R[i, j] - mean_i R[i, j]) / std_i R[i, j]     down the n rows of each column   (n, K)

A token strictly inside block j of rollout i gets A[i, j]. Any other token gets 0. A rollout is
malformed if its tags are not exactly these K pairs in order. It gets A = 0 everywhere, and its row
of r is 0 and counts in mean and std. The loss is divided by all tokens. No reward asks for the
format, so watch the log's `compliance`, the share of well-formed rollouts. The paper's ablation,
which we know second-hand, says that most of the gain comes from the prompts. So we add baselines:

    --arm both-grpo                  same prompts; every token gets the row's advantage on item K
    --arm no-cut                     r in place of R
    python grpo.py --scale-by-std    all G rollouts on the original, advantages scaled as here

We made two choices. The paper does not define its std. Ours is the population std + 1e-6, and equal
columns give 0. Its clip is symmetric. Ours is the loop's, 0.2 and 0.28, so that methods differ only
in credit (--clip-high 0.2 gives the paper's; with --num-iterations 1 no clip acts).

What we left out: subproblems written by a large model, a format reward, the system turn.
"""
import bisect
import json
import re
from collections import Counter

import torch

import problems
import verify
from engine.errors import BadInput, run_cli
from engine.flags import flags, parse
from grpo import group_advantages, train
from rollout import answers, rewardable

# The embedded model was warmed up on exactly this sentence (data/make_tiny.py), as one token.
INSTRUCTION = (r" Solve the numbered problems in order, each inside its own tags <p1> </p1>,"
               r" <p2> </p2> and so on, and end each block with its answer within \boxed{}.")
TAG = re.compile(r"</?p[0-9]+>")


def make_prompts(tokenizer, row, config):
    """The prompts of a problem, one for each half of its group: [curriculum, original].

    Raises BadInput unless the row has two or more gradable subproblems, the last with its answer.
    """
    where = f"--data {config.data}: problem {row['id']}"
    items = row.get("subproblems")
    if not well_formed(items):
        raise BadInput(f'{where} has no "subproblems", two or more {{"problem": text, "answer": '
                       'text}; --make-subproblems SOURCE FILE.jsonl writes a file that has them.')
    golds = [str(item["answer"]) for item in items]
    gradable = [verify.verify(rf"\boxed{{{gold}}}", gold, strict=True) for gold in golds]
    if not all(gradable) or not verify.equivalent(golds[-1], row["answer"]):
        raise BadInput(f"{where}: its subproblems' answers are {str(golds)[:200]}; each must be "
                       f"gradable, and the last the problem's own, {row['answer'][:60]!r}.")

    text = row["problem"]
    for j, item in enumerate(items, 1):
        text += f"\n{j}. {item['problem']}"
    return [problems.build_prompt(tokenizer, text, config.thinking, INSTRUCTION),
            problems.build_prompt(tokenizer, row["problem"], config.thinking)]


def well_formed(items):
    """Is this a list of two or more {"problem": text, "answer": text or number}?"""
    if not isinstance(items, list) or len(items) < 2:
        return False
    for item in items:
        if not isinstance(item, dict):
            return False
        if not isinstance(item.get("problem"), str):
            return False
        if type(item.get("answer")) not in (str, int, float):
            return False
    return True


def find_spans(text, K):
    """The insides of K blocks, (start, end) in characters each. None if malformed: the tags after
    any </think> must be exactly <p1> </p1> ... <pK> </pK>."""
    wanted = []
    for j in range(1, K + 1):
        wanted += [f"<p{j}>", f"</p{j}>"]
    tags = list(TAG.finditer(text, *verify.final_part(text)))
    if [tag[0] for tag in tags] != wanted:
        return None
    return [(opens.end(), closes.start()) for opens, closes in zip(tags[::2], tags[1::2])]


def tokens_inside(tokenizer, ids, span):
    """The slice of the sampled ids whose characters all lie in this span of the text. A token that
    holds part of a tag is in no block. Prefixes are decoded, see saliency.py."""
    def characters(n):
        prefix = tokenizer.decode(ids[:n], skip_special_tokens=True,
                                  clean_up_tokenization_spaces=False)
        return len(prefix.rstrip("\ufffd"))  # drop a character that is not complete yet

    positions = range(len(ids) + 1)
    first = bisect.bisect_left(positions, span[0], key=characters)
    end = bisect.bisect_right(positions, span[1], key=characters) - 1
    return slice(first, end)


def column_advantages(r, cut=True):
    """Verdicts r (n, K), 0 or 1 -> advantages (n, K), each column normalised on its own."""
    R = r  # (n, K)
    if cut:
        R = r.cumprod(1)
    return group_advantages(R.T, scale_by_std=True).T  # (n, K)


def verdicts(texts, spans, row):
    """Grade one problem's G texts: r (n, K) of the curriculum's blocks, and (n,) of the original.

    spans: the blocks of the first n texts. A malformed text (None) has nothing right.
    """
    items = row["subproblems"]
    n = len(spans)
    triples = []
    for text, blocks in zip(texts, spans):
        for (start, end), item in zip(blocks or [(0, 0)] * len(items), items):
            triples.append((text[start:end], str(item["answer"]), item["problem"]))
    for text in texts[n:]:
        triples.append((text, row["answer"], row["problem"]))
    right = torch.tensor(verify.verify_all(triples, strict=True)).float()  # (n K + n,)
    return right[:-n].view(n, -1), right[-n:]


def subproblem_reward(rollouts, rows, config, tokenizer, model=None):
    """Rewards (N, G), 1 if the original (in a curriculum row: item K) is right; the tokens'
    advantages (B, T); figures for the log. The first n rows of each problem are curriculum."""
    n = config.group // 2
    mask = rollouts.completion_mask.cpu()                                # (B, T)
    A = torch.zeros(mask.shape)                                          # (B, T)
    rewards, formed, solved = [], [], []
    graded = answers(rollouts, tokenizer)
    originals = rewardable(graded, rollouts.finished.tolist())           # a curriculum has K boxes
    for start, row in zip(range(0, len(mask), 2 * n), rows):
        texts = graded[start:start + n] + originals[start + n:start + 2 * n]
        spans = [find_spans(text, len(row["subproblems"])) for text in texts[:n]]
        r, original = verdicts(texts, spans, row)                        # (n, K), (n,)
        halves = torch.stack([r[:, -1], original])                       # (2, n)
        advantages = group_advantages(halves, True).view(-1, 1)          # (G, 1)
        A[start:start + 2 * n] = advantages                              # (G, T)
        if config.arm != "both-grpo":
            A[start:start + n] = 0
            by_block = column_advantages(r, config.arm == "scrl").tolist()
            for i, blocks in enumerate(spans):
                ids = rollouts.sampled[start + i]
                for span, advantage in zip(blocks or [], by_block[i]):
                    A[start + i, tokens_inside(tokenizer, ids, span)] = advantage
        rewards.append(halves.flatten())                                 # (G,)
        formed += [blocks is not None for blocks in spans]
        solved += r.cumprod(1).mean(1).tolist()

    rewards = torch.stack(rewards)                                       # (N, G)
    figures = {"compliance": sum(formed) / len(formed),
               "prefix": sum(solved) / len(solved),
               "original": float(rewards[:, n:].mean())}
    device = rollouts.lengths.device
    return rewards.to(device), (A * mask).to(device), figures


# ------------------------------------------------------------------------------ making subproblems

NUMBER = r"(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)"
VALUE, SIGN = rf"\$?{NUMBER}%?", r"\s*[-+*/x×÷−–]\s*"
SUM = rf"\(*{VALUE}\)*(?:{SIGN}\(*{VALUE}\)*)+"
PLAIN = re.compile(rf"({SUM})\s*=\s*({VALUE})(?![\w(]|[.,]\d|{SIGN}[\d(.$])")      # 48/2 = 24
MARKED = re.compile(rf"(?:{SUM}\s*=\s*)?\$?<<([^<>=]*)=({VALUE})>>(?:{VALUE})?")  # <<48/2=24>>24
SPELLING = str.maketrans("x×÷−–", "**/--", "$, ")


def split_solution(problem, answer, solution, most=4):
    """(up to `most` subproblems, "") from a reference solution, or ([], why not).

    A step's question is its sentence with a blank for the equation: "Natalia sold ___ clips in
    May." It names the quantity, not the calculation. A question must not give a value away, so it
    is left out if it has a number that the problem lacks, or an answer that the problem has.
    """
    def numbers(text):
        return {float(found.replace(",", "")) for found in re.findall(NUMBER, text)}

    given = numbers(problem)
    pattern = PLAIN
    if "<<" in solution:
        pattern = MARKED
    steps = []
    for sentence in re.split(r"\n+|(?<=[.!?])\s+", solution):
        for found in pattern.finditer(sentence):
            left, value = (side.translate(SPELLING) for side in found.groups())
            if not verify.equivalent(value, left):
                return [], "a step is wrong"
            blank = f"{sentence[:found.start()]}___{sentence[found.end():]}".strip()
            in_words = "=" not in blank and re.search("[a-z]{2}", blank)  # one equation
            fair = in_words and numbers(blank) <= given and not numbers(value) & given
            steps.append((blank, value, fair))
    if len(steps) < 2 or not verify.equivalent(steps[-1][1], answer):
        return [], "fewer than two steps, or the last is not the answer"

    items = []
    for blank, value, fair in steps[:-1]:
        if fair:
            text = f"{problem} Find only what belongs in the blank: {blank}"
            items.append({"problem": text, "answer": value})
    if not items:
        return [], "no step can be asked for fairly"
    return items[1 - most:] + [{"problem": problem, "answer": answer}], ""


def make_subproblems(source, out):
    """Write the problems of `source` whose "solution" can be split into `out`, a new JSONL file."""
    made, counts = [], Counter()
    for row in problems.load_problems(source):
        items, reason = split_solution(row["problem"], row["answer"], str(row.get("solution")))
        counts[reason or "written"] += 1
        if items:
            made.append({**items[-1], "id": row["id"], "subproblems": items})
    report = ", ".join(f"{count:,} {what}" for what, count in counts.most_common())
    if not made:
        raise BadInput(f'--make-subproblems {source}: no "solution" can be split ({report}).')
    try:
        with open(out, "x", encoding="utf-8") as file:
            for row in made:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
    except OSError as error:
        raise BadInput(f"--make-subproblems {out}: {error.strerror}; name a new file.") from None
    print(f"{out}: {report}")


def main(argv=None):
    parser = flags("scrl", __doc__.split("\n")[0])
    parser.set_defaults(scale_by_std=True)
    add = parser.add_argument
    add("--arm", default="scrl", choices=["scrl", "both-grpo", "no-cut"], help="SCRL or a control")
    add("--make-subproblems", nargs=2, metavar=("SOURCE", "OUT"), help="write data and stop")
    config = parse(parser, argv)
    source_and_out = vars(config).pop("make_subproblems")
    if source_and_out:
        return make_subproblems(*source_and_out)
    if config.group % 2 or config.group < 4:
        raise BadInput(f"--group {config.group}: each half of it is a group of its own; "
                       "take an even number, 4 or more.")
    train(config, make_prompts=make_prompts, reward_fn=subproblem_reward)


if __name__ == "__main__":
    run_cli(main)
