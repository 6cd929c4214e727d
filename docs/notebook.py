r"""The walkthrough as a notebook, docs/walkthrough.ipynb: python docs/notebook.py

It is made from docs/walkthrough.md. A line after `>>>` becomes a line of a code cell, what stands
below it the cell's output, and a picture is shown by a cell. Two parts are the notebook's own: the
first cell, which fetches the project where it is not there, and a training at the end, with a live
curve. A notebook is JSON, so nothing of Jupyter is needed here.
"""
import argparse
import doctest
import json
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE, NOTEBOOK = HERE / "walkthrough.md", HERE / "walkthrough.ipynb"

HOW = """## How to run this page

Run the cells from the top, one after the other: Shift and Enter. The first one finds the project.
In Colab it fetches it: put the project's address into its first line before.
"""

FIRST = """REPOSITORY = ""  # in Colab: the address that `git clone` takes

import os
import subprocess
import sys
from pathlib import Path

STEPS = int(os.environ.get("STEPS", 40))  # of the training at the end; 40 take a few minutes

places = [Path("credit"), Path.cwd(), *Path.cwd().parents]
if not any((place / "grail.py").exists() for place in places):
    assert REPOSITORY, "put the project's address into the first line, or start in its folder"
    subprocess.run(["git", "clone", "--depth", "1", REPOSITORY, "credit"], check=True)
root = next(place for place in places if (place / "grail.py").exists()).resolve()
if "google.colab" in sys.modules:
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "-r", root / "requirements.txt"],
                   check=True)
os.chdir(root)
sys.path.insert(0, str(root))"""

LAST = """## 10. Train

One step proves little. Here are many, once with GRPO's weights and once with GRAIL's, from the same
start and with the same problems. The curve shows the share of right answers among each step's 128.
Two curves of one seed each do not tell which method is better: a difference of some points between
them is chance. With ten seeds each, no difference in GRAIL's favour is seen
([results](../results/README.md))."""

TRAINING = """from engine.flags import flags, parse


def trained(method, steps, seed=0):
    \"\"\"Train the embedded model; after each step, hand out the share of right answers.\"\"\"
    config = parse(flags(method, ""), [])  # as python grpo.py, but for its warm-up
    config.reweight, config.activation, config.as_released = "wrong", "embeddings", False
    credit = {"grpo": grpo.uniform, "grail": grail.credit(config)}[method]
    model, tokenizer = problems.load_policy("tiny")
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=0.0)
    train_set = problems.load_problems("arithmetic", "train")
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        numbers = torch.randint(len(train_set), (config.prompts,), generator=generator).tolist()
        chosen = [train_set[i] for i in numbers]
        prompts = [problems.build_prompt(tokenizer, row["problem"]) for row in chosen]
        rollouts = rollout.sample(model, tokenizer, prompts, samples=config.group,
                                  max_new_tokens=config.max_new_tokens, seed=1000 * seed + step)
        gold = [row["answer"] for row in chosen for _ in range(config.group)]
        rewards = torch.tensor([float(verify.verify(text, answer, strict=True))
                                for text, answer in zip(rollouts.texts, gold)])
        rewards = rewards.view(-1, config.group)
        grpo.update(model, optimizer, rollouts, rewards, credit, config, tokenizer)
        yield rewards.mean().item()"""

CURVE = """import matplotlib.pyplot as plt
from IPython.display import clear_output

curves = {"grpo": [], "grail": []}
for method in curves:
    for reward in trained(method, STEPS):
        curves[method].append(reward)
        clear_output(wait=True)
        for name, values in curves.items():
            plt.plot(range(1, len(values) + 1), values, label=name)
        plt.xlim(0, STEPS + 1)
        plt.ylim(0, 1)
        plt.xlabel("step")
        plt.ylabel("share of right answers")
        plt.legend()
        plt.show()"""


def markdown(text):
    return {"cell_type": "markdown", "metadata": {}, "source": text.strip("\n")}


def code(source, outputs=()):
    return {"cell_type": "code", "metadata": {}, "execution_count": None,
            "source": source.strip("\n"), "outputs": list(outputs)}


def cells_of_code(block):
    """A block of lines after >>> as cells, each of which ends where something comes back."""
    cells, source = [], ""
    for example in doctest.DocTestParser().get_examples(block):
        source += example.source
        if example.want:
            said = {"output_type": "stream", "name": "stdout", "text": example.want}
            cells.append(code(source, [said]))
            source = ""
    return cells + ([code(source)] if source else [])


def cell_of_picture(name):
    """A cell that shows docs/figures/name."""
    picture = (HERE / "figures" / name).read_text(encoding="utf-8")
    shown = {"output_type": "display_data", "metadata": {}, "data": {"image/svg+xml": picture}}
    return code(f'from IPython.display import SVG, display\n\n'
                f'display(SVG("docs/figures/{name}"))', [shown])


def made():
    """The notebook's text."""
    page = PAGE.read_text(encoding="utf-8")
    page = re.sub(r"## How to run this page\n.*?(?=\n## )", lambda _: HOW, page, flags=re.S)
    cells = []
    for part in re.split(r"(```pycon\n.*?```|!\[[^\]]*\]\(figures/[^)]*\))", page, flags=re.S):
        if part.startswith("```pycon"):
            cells += cells_of_code(part.removeprefix("```pycon\n").removesuffix("```"))
        elif part.startswith("!["):
            cells.append(cell_of_picture(re.search(r"figures/([^)]*)", part)[1]))
        elif part.strip():
            cells.append(markdown(part))
            if "## How to run this page" in part:
                before, after = part.split(HOW)
                cells[-1:] = [markdown(before + HOW), code(FIRST), markdown(after)]
    cells += [markdown(LAST), code(TRAINING), code(CURVE)]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = {"nbformat": 4, "nbformat_minor": 5, "cells": cells,
                "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}}}
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    NOTEBOOK.write_text(made(), encoding="utf-8")
    print("docs/walkthrough.ipynb")
