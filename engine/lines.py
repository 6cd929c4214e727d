"""A training step as one line of a table. Skip this on a first reading.

    print(legend(columns, width))    # once: what the columns mean
    print(heading(columns))
    print(line(columns, metrics))    # each step

The first seven columns fit in 80 characters. A wider terminal gets as many of the others as fit;
metrics.jsonl has all of them.
"""
import shutil
import textwrap
from typing import Callable, NamedTuple

EVERY = 20  # steps between two headings: a terminal shows about as many lines


class Column(NamedTuple):
    head: str
    width: int
    shown: Callable  # metrics of a step -> text of at most this width
    meaning: str


def terminal_width():
    """Columns of the terminal; 80 where the output goes to a file."""
    return shutil.get_terminal_size().columns


def number(x, width, decimals):
    """x with this many decimals; fewer if it would be wider than `width`; else like 1e+05."""
    for digits in range(decimals, -1, -1):
        text = f"{x:.{digits}f}"
        if len(text) <= width:
            return text
    return f"{x:.0e}"


def trained(metrics):
    """Whether a token with an advantage was trained in this step."""
    return metrics["ess"] > 0


def ran(metrics):
    """Whether any row was scored. A KL penalty also scores rows without an advantage."""
    return trained(metrics) or metrics["entropy"] > 0 or metrics["grad_norm"] > 0


def weight(metrics):
    """Mean, least and largest weight of the trained tokens."""
    if not trained(metrics):
        return "-"
    mean, least, most = (number(metrics[f"weight_{name}"], 5, 2) for name in ("mean", "min", "max"))
    return f"{mean} [{least}, {most}]"


def if_ran(show):
    """The same column, with - if no row was scored: a 0 would look like a measured number."""
    return lambda metrics: show(metrics) if ran(metrics) else "-"


def if_trained(show):
    return lambda metrics: show(metrics) if trained(metrics) else "-"


NARROW = [
    Column("reward", 6, lambda m: number(m["reward"], 6, 3),
           "mean over completions: 1 is right, 0 is wrong"),
    Column("informative", 11, lambda m: f"{m['informative']}/{m['groups']}",
           "groups with a gradient: a token's advantage is not 0"),
    Column("length", 6, lambda m: number(m["length"], 6, 0),
           "mean tokens of a completion"),
    Column("grad", 7, if_ran(lambda m: number(m["grad_norm"], 7, 3)),
           "norm of the gradient, before it is clipped"),
    Column("weight", 20, weight,
           "of trained tokens: mean [smallest, largest]; GRPO's is 1"),
    Column("seconds", 7, lambda m: number(m["seconds"], 7, 1),
           "time of the step"),
]
WIDE = [
    Column("cut off", 7, lambda m: f"{m['truncated']:.0%}",
           "completions that reached --max-new-tokens"),
    Column("entropy", 7, if_ran(lambda m: number(m["entropy"], 7, 3)),
           "mean entropy of the policy per token, in nats"),
    Column("clipped", 7, if_ran(lambda m: f"{m['clipped']:.1%}"),
           "tokens whose gradient the clip removed"),
    Column("ess", 5, if_trained(lambda m: number(m["ess"], 5, 2)),
           "how evenly the credit is spread; 1: the same for all tokens"),
    Column("top10", 5, if_trained(lambda m: f"{m['top10']:.0%}"),
           "share of the credit on the tenth of the tokens with the most"),
    Column("gap", 11, if_ran(lambda m: f"{m['gap_mean']:.0e}/{m['gap_max']:.0e}"),
           "difference of sampler's and loss's log-probs: mean/largest"),
    Column("tokens/s", 8, lambda m: number(m["tokens_per_second"], 8, 0),
           "sampled tokens per second of the step"),
    Column("GB", 5, lambda m: number(m["peak_gb"], 5, 1) if m["peak_gb"] else "-",
           "peak memory of the card"),
]
FROM_CREDIT = {"fallback": "share of completions with weight 1 everywhere, because they have "
                           "no signal"}


def own_column(name, of_the_credit):
    """The column of a figure that the method logs."""
    def show(metrics):
        value = metrics.get(name)
        if value is None:  # `columns_for` had to guess
            return "-"
        return f"{value:,}" if isinstance(value, int) else number(value, 9, 2)

    return Column(name, max(len(name), 9), if_trained(show) if of_the_credit else show,
                  FROM_CREDIT.get(name, "see the method's file"))


def columns_for(width, own, metrics):
    """The Columns that fit in `width` characters; own: names of the method's own figures."""
    # A credit that was not asked has logged nothing. Keep the column, as later steps may need it.
    credit = [own_column(name, True) for name in FROM_CREDIT
              if name in metrics or not trained(metrics)]
    more = [own_column(name, False) for name in own] + credit + WIDE
    columns = list(NARROW)
    for column in more:
        if len(heading([*columns, column])) > width:
            break
        columns.append(column)
    return columns


def heading(columns):
    return " " * 9 + "".join(f"  {column.head:>{column.width}}" for column in columns)


def line(columns, metrics):
    """The line of one step. Up to step 9999 it is at most as wide as its heading."""
    cells = [f"  {column.shown(metrics):>{column.width}}" for column in columns]
    return f"step {metrics['step']:4d}" + "".join(cells)


def legend(columns, width):
    """A line for each column, and one for the sign "-"."""
    rows = [(column.head, column.meaning) for column in columns]
    rows.append(("-", "nothing was trained: no group has a gradient"))
    at = max(len(head) for head, _ in rows) + 2
    return "\n".join(textwrap.fill(meaning, max(40, width), initial_indent=f"{head:{at}}",
                                   subsequent_indent=" " * at) for head, meaning in rows)


def wrapped(text, width):
    """A long line, wrapped for a narrow terminal. No word is cut."""
    return textwrap.fill(text, max(40, width), subsequent_indent="  ", break_long_words=False,
                         break_on_hyphens=False)
