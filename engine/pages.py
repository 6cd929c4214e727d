"""The look of a page of credit; show.py decides its content. Skip this on a first reading.

A page is one file: no fonts, images or scripts from elsewhere. A model's text is escaped in it, and
so are control characters, as in the terminal.
"""
import html
import math

from engine.errors import printable

# A tint's opacity at weight 5 or 1/5. With more, text on it would be hard to read.
DEEPEST = 0.75
NO_TEXT = "\u25cc"  # a dotted circle, for a token that holds only a part of a character
STRONG = 3  # from this weight on a token is bold, too

STYLE = """
:root{color-scheme:light dark;--fg:#1b1f24;--bg:#fff;--soft:#59636e;--line:#d1d9e0;--card:#f6f8fa;
--more:214 58 28;--less:28 98 230;--slip:#8a2be2}
@media(prefers-color-scheme:dark){:root{--fg:#f2f5f8;--bg:#0f1216;--soft:#9aa6b2;--line:#333b44;
--card:#181c22;--more:226 74 48;--less:52 116 240;--slip:#d9a6ff}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--fg);background:var(--bg);
margin:1.5rem 1.5rem 9rem;overflow-wrap:anywhere}
a{color:inherit}nav a{margin-right:1rem}
h1{font-size:1.35rem;margin:0 0 .3rem}h2{font-size:1.05rem;margin:2.2rem 0 .3rem}
h3{font-size:1rem;margin:0 0 .4rem}p,li{max-width:75ch;margin:.3rem 0}
details{margin:.8rem 0}summary{cursor:pointer}
.soft,.figures{color:var(--soft)}
.row{display:grid;gap:1rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,13.5rem),1fr));
margin:.6rem 0}
.row>section{background:var(--card);border:1px solid var(--line);border-radius:6px;padding:.8rem;
max-width:42rem}
.text{font:14px/2 ui-monospace,monospace;white-space:pre-wrap;margin:0}
.text span{padding:.12em 0;border-radius:2px}
.key span{display:inline-block;padding:.1em .55em;border:1px solid var(--line)}
.strong{font-weight:700}
.m{background:rgb(var(--more)/var(--a))}.l{background:rgb(var(--less)/var(--a))}
.rim{text-decoration:underline dotted 2px;text-underline-offset:.3em}
.content{text-decoration:underline solid 2px;text-underline-offset:.3em}
.slip{text-decoration:underline wavy var(--slip) 2px;text-underline-offset:.3em}
.cross::before{content:"\\2717";color:var(--slip);font-weight:bold}
.same,.text span:focus,.text span:hover{outline:2px solid var(--fg);outline-offset:-1px}
.figures{font-size:.85rem;margin:.6rem 0 0;font-variant-numeric:tabular-nums}
#bar{position:fixed;left:0;right:0;bottom:0;z-index:1;padding:.6rem 1.5rem;max-height:40vh;
overflow:auto;background:var(--fg);color:var(--bg);white-space:pre-wrap;line-height:1.45;
font-size:.9rem;font-variant-numeric:tabular-nums}
.tabs{display:none;gap:.4rem;flex-wrap:wrap;margin:.6rem 0}
.tabs button{font:inherit;color:var(--fg);background:var(--card);border:1px solid var(--line);
border-radius:6px;padding:.35rem .8rem}
.tabs button[aria-selected=true]{background:var(--fg);color:var(--bg)}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{padding:.2rem .9rem .2rem 0;text-align:right;overflow-wrap:normal}td{white-space:nowrap}
@media(max-width:640px){body{margin:1rem 1rem 12rem}#bar{padding:.6rem 1rem}
.js .tabs{display:flex}.js .row>section{display:none}.js .row>section.on{display:block}}
"""
# The bar shows all about the token under the pointer or the focus. Arrow keys move the focus.
SCRIPT = """
const bar = document.getElementById("bar");
document.documentElement.classList.add("js");
document.querySelectorAll("details").forEach(details => {
  details.open = !matchMedia("(max-width:640px)").matches;
});

function show(token) {
  document.querySelectorAll(".same").forEach(other => other.classList.remove("same"));
  const same = [...token.closest("article").querySelectorAll(`[data-i="${token.dataset.i}"]`)];
  same.forEach(other => other.classList.add("same"));
  bar.textContent = same.find(other => other.dataset.tip).dataset.tip;
  bar.hidden = false;
}

for (const kind of ["mouseover", "focusin"]) addEventListener(kind, event => {
  const token = event.target.closest("[data-i]");
  if (token) show(token);
});

function choose(method) {
  document.querySelectorAll("article").forEach(article => {
    const found = [...article.querySelectorAll("section")];
    const on = found.find(section => section.dataset.method === method);
    if (!on) return;
    found.forEach(section => section.classList.toggle("on", section === on));
    article.querySelectorAll("[role=tab]").forEach(tab => {
      tab.setAttribute("aria-selected", tab.dataset.method === method);
    });
  });
}

addEventListener("click", event => {
  const tab = event.target.closest("[role=tab]");
  if (tab) choose(tab.dataset.method);
});

addEventListener("keydown", event => {
  const token = event.target.closest("[data-i]");
  if (!token) return;
  const row = [...token.parentNode.children], at = row.indexOf(token);
  const columns = [...token.closest("article").querySelectorAll(`[data-i="${token.dataset.i}"]`)];
  const place = columns.indexOf(token);
  const next = {ArrowLeft: row[at - 1], ArrowRight: row[at + 1], Home: row[0], End: row.at(-1),
                ArrowUp: columns[place - 1], ArrowDown: columns[place + 1]}[event.key];
  if (!next) return;
  event.preventDefault();
  next.focus();
});
"""


def strength(weight):
    """A weight's place between 1/5 and 5: -1 to 1, and 0 at weight 1.

    The root of the logarithm: 0.9 and 1.1 are visible, and 2 and 5 still look different.
    """
    if weight <= 0:
        return -1.0
    depth = min(1.0, abs(math.log(weight)) / math.log(5)) ** 0.5
    return math.copysign(depth, weight - 1)


def visible(token):
    """A token's text, or a sign if it adds none."""
    return token or NO_TEXT


def escaped(text):
    """Any text, made safe between tags and in a quoted attribute."""
    return html.escape(printable(text))


def tinted(weight):
    """CSS class and style for the colour of a weight."""
    return "m" if weight > 1 else "l", f"--a:{DEEPEST * abs(strength(weight)):.2f}"


def tip(it, i):
    """The bar's text for token i: the model's own numbers, then all methods' weights."""
    shown = visible(it["tokens"][i]).replace("\n", "\u23ce")
    facts = [f"token {i} \u2039{shown}\u203a"]
    if it.get("p"):
        facts.append(f"probability {it['p'][i]:.3f}")
    if it.get("entropy"):
        facts.append(f"entropy {it['entropy'][i]:.3f}")
    if it.get("own"):
        facts.append(f"its own A {it['own'][i]:+.3f}")
    lines = ["   ".join(facts), "weight   " + "   ".join(
        f"{method['name']} {method['weights'][i]:.2f}" for method in it["methods"])]
    for method in it["methods"]:
        if method["s"]:
            z = "" if math.isnan(method["z"][i]) else f", z {method['z'][i]:+.2f}"
            lines.append(f"{method['name']}: saliency {method['s'][i]:.2e}{z}")
    return "\n".join(lines)


def column(it, method, first):
    """One method's <section>. The tokens of the first one hold the bar's texts."""
    name = escaped(method["name"])
    start, content, close, end = it["box"] or (len(it["tokens"]),) * 4
    slip = it.get("slip") or range(0)
    spans = []
    for i, (token, weight) in enumerate(zip(it["tokens"], method["weights"])):
        kind, style = tinted(weight)
        kinds = [kind] + ["strong"] * (weight >= STRONG)
        if start <= i < end:
            kinds.append("content" if content <= i < close else "rim")
        if i in slip:
            kinds += ["slip"] + ["cross"] * (i == slip[0])
        told = f' data-tip="{escaped(tip(it, i))}"' if first else ""
        text = escaped(visible(token)).replace("\n", "\u23ce\n")
        spans.append(f'<span class="{" ".join(kinds)}" style="{style}" data-i="{i}" '
                     f'tabindex="{0 if i == 0 else -1}"{told}>{text}</span>')
    note = f'<p class="figures">{escaped(method["note"])}</p>' if method.get("note") else ""
    return (f'<section data-method="{name}"><h3>{name}</h3><p class="text">{"".join(spans)}</p>'
            f'<p class="figures">{method["figures"]}</p>{note}</section>')


def facts(it):
    """The lines under a completion's title: right answer, advantage, first false line."""
    rows = []
    if it.get("gold") is not None:
        rows.append(f'right answer: <b>{escaped(it["gold"])}</b>')
    A = it.get("A")
    if it.get("own"):
        rows.append("each token has its own advantage A, see the bar")
    elif A is not None:
        word = "red is blamed more" if A < 0 else "red is praised more"
        rows.append(f"<b>A = {A:+.3g}</b>: {word if A else 'nothing is learned from it'}")
    if it.get("slip"):
        rows.append('<span class="slip cross">first false line</span>')
    if it.get("twins"):
        n = it["twins"]
        rows.append(f"{n} other completion{'s' * (n > 1)} of this group say"
                    f"{'s' * (n == 1)} the same, and {'is' if n == 1 else 'are'} left out")
    return '<p class="facts">' + " \u00b7 ".join(rows) + "</p>" if rows else ""


def article(it):
    """A completion under its methods. A method with the same weights as another is only named."""
    shown, alike = [], []
    for method in it["methods"]:
        twin = next((other for other in shown if other["weights"] == method["weights"]), None)
        if twin is None:
            shown.append(method)
        else:
            note = f" ({escaped(method['note'])})" if method.get("note") else ""
            alike.append(f"<p>{escaped(method['name'])}: the same weights as "
                         f"{escaped(twin['name'])} here, so its column is left out{note}.</p>")
    columns = [column(it, method, i == 0) for i, method in enumerate(shown)]
    last = min(1, len(shown) - 1)  # a phone first shows the method beside GRPO
    columns[last] = columns[last].replace("<section ", '<section class="on" ', 1)
    tabs = "".join(
        f'<button type="button" role="tab" aria-selected="{"true" if i == last else "false"}" '
        f'data-method="{escaped(method["name"])}">{escaped(method["name"])}</button>'
        for i, method in enumerate(shown))
    verdict = "right" if it["reward"] > 0 else "wrong"
    return (f'<article><h2>{verdict} (reward {it["reward"]:g}): {escaped(it["problem"])}</h2>'
            f'{facts(it)}<div class="tabs" role="tablist">{tabs if len(shown) > 1 else ""}</div>'
            f'<div class="row">{"".join(columns)}</div>{"".join(alike)}</article>')


def legend():
    key = []
    for weight, label in ((0.2, "1/5 or less"), (0.5, "0.5"), (0.9, "0.9"), (1, "1"), (1.1, "1.1"),
                          (2, "2"), (5, "5 or more")):
        kind, style = tinted(weight)
        strong = " strong" * (weight >= STRONG)
        key.append(f'<span class="{kind}{strong}" style="{style}">{label}</span>')
    return f"""<details><summary>How to read this</summary>
<p class="key">weight: {"".join(key)}</p>
<p>A token's weight multiplies the advantage A: the completion's reward minus its group's mean.
GRPO's weight is 1 for every token. If A is below 0 the completion is blamed, and red tokens are
blamed more than under GRPO. If A is above 0 they are praised more.</p>
<p>Underlined: <span class="rim">the box</span>, <span class="content">its content</span>, and
<span class="slip cross">the first false line</span> of arithmetic, if it is known. {NO_TEXT}: a
token without a character of its own, such as the first part of one; the last part shows it.</p>
<p>Point at a token, or reach it with Tab and the arrow keys. A bar at the bottom shows its
probability and entropy (in nats) under the policy that sampled it, and its weight under every
method. z: z-score of the log saliency over the tokens before the box. ESS ratio: the weights'
effective sample size over the number of tokens; 1 if all are equal.</p></details>"""


def document(title, body, script=""):
    title = escaped(title)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>{STYLE}</style></head><body>
{body}
{script}</body></html>
"""


def page(title, completions, about="", links=()):
    """The page (str) of a few completions, see show.entry, each with its methods side by side.

    about: a sentence below the title. links: (words, relative address) of other pages.
    """
    shown, repeated = [], 0
    for it in completions:
        if any((it["tokens"], it["problem"]) == (other["tokens"], other["problem"])
               for other in shown):
            repeated += 1
        else:
            shown.append(it)
    body = f"<h1>{escaped(title)}</h1>{navigation(links)}"
    if about:
        body += f'<p class="soft">{escaped(about)}</p>'
    body += legend() + "".join(article(it) for it in shown)
    if repeated:
        body += f"<p>{repeated} more with the same text, left out.</p>"
    return document(title, body, f'<div id="bar" role="status" hidden></div>\n'
                                 f"<script>{SCRIPT}</script>")


NEXT = "<!--next-->"  # the place for the link to the next page


def navigation(links):
    if not links:
        return ""
    shown = "".join(f'<a href="{escaped(where)}">{escaped(words)}</a>' for words, where in links)
    return f"<nav>{shown}{NEXT}</nav>"


def link_to_next(path, where):
    """Add the link to the next page to a page that was written earlier."""
    text = path.read_text(encoding="utf-8")
    link = f'<a href="{escaped(where)}">next</a>'
    path.write_text(text.replace(NEXT, link, 1), encoding="utf-8")


def contents(title, about, rows, links):
    """The page (str) that lists the pages of a run. rows: dicts with href, step, reward, length."""
    cells = "".join(
        f'<tr><td><a href="{escaped(row["href"])}">step {row["step"]}</a></td>'
        f'<td>{row["reward"]:.3f}</td><td>{row["informative"]}/{row["groups"]}</td>'
        f'<td>{row["length"]:.0f}</td></tr>' for row in rows)
    head = "<tr><th>page</th><th>reward</th><th>informative groups</th><th>length</th></tr>"
    return document(title, f"<h1>{escaped(title)}</h1>{navigation(links)}"
                           f'<p class="soft">{escaped(about)}</p><table>{head}{cells}</table>')
