r"""SCRL: a problem that is too hard still teaches, through the part of it that was solved.

    python scrl.py                          # CPU, two minutes: the embedded model
    python scrl.py --arm both-grpo          # a control, see below; or no-cut
    python scrl.py --make-subproblems gsm8k steps.jsonl     # from reference solutions, no model
    python scrl.py --model Qwen/Qwen3-0.6B --data steps.jsonl

Where all G rollouts fail, GRPO learns nothing. SCRL (Jiang et al., arXiv 2605.22074) has half of
them, n = G/2, answer K subproblems in blocks <p1>..</p1> to <pK>..</pK>, the last of which is the
original; the other half answers the original alone and is plain GRPO within itself.

    r[i, j] = 1 if the last box in block j of rollout i is right, else 0                      (n, K)
    R[i, j] = r[i, 1] r[i, 2] ... r[i, j]         nothing counts after the first failure      (n, K)
    A[i, j] = (R[i, j] - mean_i R[i, j]) / std_i R[i, j]     down the n rows of each column   (n, K)

A token strictly inside block j of rollout i gets A[i, j], any other token 0. A malformed rollout,
whose tags are not just these K pairs in order, gets 0 everywhere; its zeros in r count in mean and
std. The loss is divided by all tokens. So nothing rewards the format: watch `compliance`, the share
of well-formed rollouts, in the log. The paper's ablation, which we know second-hand, credits the
prompts alone with most of the gain, hence three baselines:

    --arm both-grpo                  same prompts; every token gets the row's advantage on item K
    --arm no-cut                     r in place of R
    python grpo.py --scale-by-std    all G rollouts on the original, advantages scaled as here

Two choices of ours. The paper does not print its std: ours is the population's + 1e-6, and equal
columns give 0. Its clip is symmetric; ours is the loop's, 0.2 and 0.28, so that all methods differ
in credit alone (--clip-high 0.2 for the paper's; with --num-iterations 1 neither ever acts).

What we left out, on purpose: subproblems written by a large model, a format reward, the system
turn.
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

# The embedded model was warmed up on this very sentence (data/make_tiny.py): one token of its own.
INSTRUCTION = (r" Solve the numbered problems in order, each inside its own tags <p1> </p1>,"
               r" <p2> </p2> and so on, and end each block with its answer within \boxed{}.")


def ask(tokenizer, row, config):
    """The prompts of a problem, one for each half of its group: [curriculum, original].

    Raises BadInput unless the row has two or more gradable subproblems that end in its own answer.
    """
    items, where = row.get("subproblems"), f"--data {config.data}: problem {row['id']}"
    if not (isinstance(items, list) and len(items) > 1 and all(
            isinstance(item, dict) and isinstance(item.get("problem"), str)
            and isinstance(item.get("answer"), str) for item in items)):
        raise BadInput(f'{where} has no "subproblems", two or more {{"problem": text, "answer": '
                       'text}; --make-subproblems SOURCE FILE.jsonl writes a file that has them.')
    golds = [item["answer"] for item in items]
    if not verify.equivalent(golds[-1], row["answer"]) or not all(
            verify.verify(rf"\boxed{{{gold}}}", gold, strict=True) for gold in golds):
        raise BadInput(f"{where}: its subproblems' answers are {str(golds)[:200]}; each must be "
                       f"gradable, and the last the problem's own, {row['answer'][:60]!r}.")
    lesson = "".join(f"\n{j}. {item['problem']}" for j, item in enumerate(items, 1))
    return [problems.build_prompt(tokenizer, row["problem"] + lesson, config.thinking, INSTRUCTION),
            problems.build_prompt(tokenizer, row["problem"], config.thinking)]


def find_spans(text, K):
    """The insides of K blocks, (start, end) in characters each, or None where the tags after any
    </think> are not <p1> </p1> ... <pK> </pK> and no others: malformed."""
    tags = list(re.compile(r"</?p[0-9]+>").finditer(text, *verify.final_part(text)))
    if [tag[0] for tag in tags] != [f"<{s}p{j}>" for j in range(1, K + 1) for s in ("", "/")]:
        return None
    return [(a.end(), b.start()) for a, b in zip(tags[::2], tags[1::2])]


def tokens_inside(tokenizer, ids, span):
    """The slice of the sampled ids whose characters all lie in this span of their decoding: a token
    that a tag shares with a neighbour is in no block. Prefixes are decoded, see saliency.py."""
    def characters(n):
        prefix = tokenizer.decode(ids[:n], skip_special_tokens=True,
                                  clean_up_tokenization_spaces=False)
        return len(prefix.rstrip("\ufffd"))  # a character's first bytes wait for the others

    places = range(len(ids) + 1)
    return slice(bisect.bisect_left(places, span[0], key=characters),
                 bisect.bisect_right(places, span[1], key=characters) - 1)


def column_advantages(r, cut=True):
    """Verdicts r (n, K), 0 or 1 -> advantages (n, K), every column normalised on its own."""
    R = r.cumprod(1) if cut else r  # (n, K)
    return group_advantages(R.T, scale_by_std=True).T


def judge(rollouts, rows, config, tokenizer):
    """Rewards (N, G), 1 where the original (in a curriculum row: item K) is right; the tokens'
    advantages (B, T); figures for the log. Of each problem's rows the first n are curriculum."""
    n, mask = config.group // 2, rollouts.completion_mask.cpu()  # (B, T)
    A, rewards, formed, solved = torch.zeros(mask.shape), [], [], []  # (B, T)
    for start, row in zip(range(0, len(mask), 2 * n), rows):
        texts = rollouts.texts[start:start + 2 * n]
        golds = [item["answer"] for item in row["subproblems"]]
        spans = [find_spans(text, len(golds)) for text in texts[:n]]
        pairs = [(text[a:b], gold) for text, found in zip(texts, spans)
                 for (a, b), gold in zip(found or [(0, 0)] * len(golds), golds)]
        pairs += [(text, row["answer"]) for text in texts[n:]]
        right = torch.tensor(verify.verify_all(pairs, strict=True)).float()  # (n K + n,)
        r = right[:-n].view(n, -1)                                           # (n, K)
        halves = torch.stack([r[:, -1], right[-n:]])                         # (2, n)
        A[start:start + 2 * n] = group_advantages(halves, True).view(-1, 1)  # (G, T)
        if config.arm != "both-grpo":
            A[start:start + n] = 0
            for i, by_block in enumerate(column_advantages(r, config.arm == "scrl").tolist()):
                ids = rollouts.completion_ids[start + i, :rollouts.lengths[start + i]].tolist()
                for span, advantage in zip(spans[i] or [], by_block):
                    A[start + i, tokens_inside(tokenizer, ids, span)] = advantage
        rewards.append(halves.flatten())                                     # (G,)
        formed += [found is not None for found in spans]
        solved += r.cumprod(1).mean(1).tolist()
    rewards = torch.stack(rewards)  # (N, G)
    figures = {"compliance": sum(formed) / len(formed), "prefix": sum(solved) / len(solved),
               "original": float(rewards[:, n:].mean())}
    return rewards.to(rollouts.lengths.device), (A * mask).to(rollouts.lengths.device), figures


# ------------------------------------------------------------------------------ making subproblems

NUMBER = r"(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)"
VALUE, SIGN = rf"\$?{NUMBER}%?", r"\s*[-+*/x×÷−–]\s*"
SUM = rf"\(*{VALUE}\)*(?:{SIGN}\(*{VALUE}\)*)+"
PLAIN = re.compile(rf"({SUM})\s*=\s*({VALUE})(?![\w(]|[.,]\d|{SIGN}[\d(.$])")      # 48/2 = 24
MARKED = re.compile(rf"(?:{SUM}\s*=\s*)?\$?<<([^<>=]*)=({VALUE})>>(?:{VALUE})?")  # <<48/2=24>>24
SPELLING = str.maketrans("x×÷−–", "**/--", "$, ")


def split_solution(problem, answer, solution, most=4):
    """(up to `most` subproblems, "") from a reference solution, or ([], why not).

    A step's question is its own sentence with the equation blanked, "Natalia sold ___ clips in
    May.", which names the quantity, not the way. To give no value away, questions with a number
    that the problem does not have are left out, and those whose answer is one that it has.
    """
    def numbers(text):
        return {float(found.replace(",", "")) for found in re.findall(NUMBER, text)}

    steps, pattern = [], MARKED if "<<" in solution else PLAIN
    for sentence in re.split(r"\n+|(?<=[.!?])\s+", solution):
        for found in pattern.finditer(sentence):
            left, value = (side.translate(SPELLING) for side in found.groups())
            if not verify.equivalent(value, left):
                return [], "a step is wrong"
            blank = f"{sentence[:found.start()]}___{sentence[found.end():]}".strip()
            fair = ("=" not in blank and re.search("[a-z]{2}", blank) and  # one equation, in words
                    numbers(blank) <= numbers(problem) and not numbers(value) & numbers(problem))
            steps.append((f"{problem} Find only what belongs in the blank: {blank}", value, fair))
    if len(steps) < 2 or not verify.equivalent(steps[-1][1], answer):
        return [], "fewer than two steps, or the last is not the answer"
    asked = [{"problem": text, "answer": value} for text, value, fair in steps[:-1] if fair]
    asked = asked[1 - most:] + [{"problem": problem, "answer": answer}]
    return (asked, "") if asked[1:] else ([], "no step can be asked for fairly")


def make_subproblems(source, out):
    """Write the problems of `source` whose "solution" can be split to `out`, a new JSONL file."""
    made, counts = [], Counter()
    for row in problems.load_problems(source):
        items, reason = split_solution(row["problem"], row["answer"], str(row.get("solution")))
        counts[reason or "written"] += 1
        made += [{**items[-1], "id": row["id"], "subproblems": items}] if items else []
    report = ", ".join(f"{count:,} {what}" for what, count in counts.most_common())
    if not made:
        raise BadInput(f'--make-subproblems {source}: no "solution" can be split ({report}).')
    try:
        with open(out, "x", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in made)
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
        raise BadInput(f"--group {config.group}: each half of it is compared with itself; "
                       "take an even number, 4 or more.")
    train(config, make_prompts=ask, reward_fn=judge)


if __name__ == "__main__":
    run_cli(main)
