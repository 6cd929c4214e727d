r"""GRPO and GRAIL in one file: a tiny model learns to think before it answers.

    python examples/mini.py --credit grail   # or grpo; 2 to 3 minutes, silent for about 10 s

P and T: tokens of prompt and completion, L = P + T, H: numbers in an embedding, V: vocabulary."""
import argparse
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

DATA = Path(__file__).resolve().parent.parent / "data"
ASK = r" Please reason step by step, and put your final answer within \boxed{}."


def attempt(model, tokenizer, row, n, top_k=0):
    """Answer a problem n times: a list of (prompt (P,), completion (T,), box, reward)."""
    text = f"<|im_start|>user\n{row['problem']}{ASK}<|im_end|><|im_start|>assistant\n"
    prompt = tokenizer(text, return_tensors="pt").input_ids[0]   # (P,)
    out = model.generate(prompt[None], num_return_sequences=n, max_new_tokens=72,
                         do_sample=True, top_k=top_k)            # 0: any token, 1: the likeliest
    tries = []
    for ids in out[:, len(prompt):]:
        said = ids.tolist() + [tokenizer.eos_token_id]
        ids = ids[:said.index(tokenizer.eos_token_id) + 1]       # (T,) up to its stop token
        tokens = [tokenizer.decode(i) for i in ids]
        box, reward = None, 0.0
        for start, token in enumerate(tokens):                   # the last box counts
            if token == r"\boxed{" and "}" in tokens[start:]:
                box = (start, tokens.index("}", start))
                reward = float("".join(tokens[start + 1:box[1]]) == row["answer"])
        tries.append((prompt, ids, box, reward))
    return tries


def grail_weights(logp, e, start, close):
    """How much the answer in the box depends on each token before it, as weights (T,)."""
    J = -logp[start:close + 1].sum()                             # () surprise at its own box
    gradient, = torch.autograd.grad(J, e, retain_graph=True)     # (L, H)
    s = (gradient * e).norm(dim=1)[-len(logp):].detach()         # (T,) saliency
    log_s = (s[:start] + 1e-8 * s.max() + 1e-30).log()           # (start,) never log(0)
    z = (log_s - log_s.mean()) / (log_s.var(correction=0) + 1e-8).sqrt()  # (start,)
    w = torch.ones(len(logp))                                    # (T,)
    w[:start] = (1 + 0.5 * z).clamp(0.5, 5)                      # leaned on more, weighs more
    w[start + 1:close] = 5                                       # the number in the box
    return w


def update(model, optimizer, groups, credit):
    """One step: answers above the group's mean become more likely, the others less likely."""
    count = sum(len(ids) for tries in groups for _, ids, _, _ in tries)
    for tries in groups:
        mean = sum(reward for _, _, _, reward in tries) / len(tries)
        for prompt, ids, box, reward in tries:
            A = reward - mean                                            # the advantage
            e = model.get_input_embeddings()(torch.cat([prompt, ids]))   # (L, H)
            logits = model(inputs_embeds=e[None]).logits[0, len(prompt) - 1:-1]  # (T, V)
            logp = logits.log_softmax(1)[torch.arange(len(ids)), ids]    # (T,)
            w = torch.ones(len(ids))                                     # (T,) GRPO
            if credit == "grail" and A < 0 and box and box[0] >= 2:   # A = 0: no gradient anyway
                w = grail_weights(logp, e, *box)                         # (T,)
            loss = -(A * w * logp).sum() / count     # one step a batch: GRPO's clip never acts
            loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def train(steps, credit, seed=0):
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(DATA / "tiny")
    model = AutoModelForCausalLM.from_pretrained(DATA / "tiny")
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=0.0)
    rows = [json.loads(line) for line in open(DATA / "arithmetic_train.jsonl")]
    for step in range(1, steps + 1):
        picked = torch.randint(100, len(rows), (16,))            # the first 100 are held out
        groups = [attempt(model, tokenizer, rows[i], 8) for i in picked]
        update(model, optimizer, groups, credit)
        rewards = [reward for tries in groups for _, _, _, reward in tries]
        print(f"step {step:3d}  reward {sum(rewards) / len(rewards):.2f}", flush=True)
    right = sum(attempt(model, tokenizer, row, 1, top_k=1)[0][3] for row in rows[:100])
    print(f"greedy: {right:.0f} of 100 held-out problems")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--credit", default="grail", choices=["grail", "grpo"])
    torch.set_num_threads(1)  # tensors this small gain nothing from more, and wait on a busy core
    train(**vars(parser.parse_args()))
