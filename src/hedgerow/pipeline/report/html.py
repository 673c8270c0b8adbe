"""One HTML page that needs nothing else: its style and its pictures are inside, for light and dark screens.

Every text that comes in is escaped here; `Html` marks what already is HTML. Tables scroll by themselves where
the screen is narrow, and can be reached with the keyboard.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NewType

Html = NewType("Html", str)
"""HTML, with nothing in it that was not escaped."""

MAX_LINES = 500  # of a table: a page that a browser cannot open helps nobody
MAX_OPEN = 15  # lines of a table before the rest is folded
MAX_CELL = 300  # characters

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "currentColor")
"""Distinct for colour-blind people too (Okabe and Ito), and on a light and a dark page."""

_STYLE = """\
:root { color-scheme: light dark; --ink: #1b1f23; --soft: #57606a; --line: #d0d7de; --page: #fff }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9aa4af; --line: #3a424c; --page: #0f1419 }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
  max-width: 66rem; margin: 2rem auto; padding: 0 1rem }
h2 { margin-top: 3rem; border-bottom: 1px solid var(--line) }
a { color: inherit }
.scroll { overflow-x: auto; margin: 1rem 0 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
caption { text-align: left; color: var(--soft); padding-bottom: .4rem }
th, td { padding: .25rem .8rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
th:first-child, .text { text-align: left }
tbody th { font-weight: normal }
figure { margin: 1.5rem 0 } figure svg { width: 100%; height: auto; max-width: 52rem }
figcaption, .soft { color: var(--soft) }
details { margin: .6rem 0 } summary { cursor: pointer }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif }
svg .frame { stroke: var(--line); fill: none } svg .mark { stroke: var(--soft); stroke-dasharray: 4 3 }
"""


def page(title: str, parts: Iterable[Html]) -> str:
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>\n<style>\n{_STYLE}</style>\n</head>",
            f"<body>\n<main>\n<h1>{escape(title)}</h1>",
            *parts,
            "</main>\n</body>\n</html>\n",
        ]
    )


def heading(text: str, level: int = 2, anchor: str = "") -> Html:
    place = f' id="{escape(anchor)}"' if anchor else ""
    return Html(f"<h{level}{place}>{escape(text)}</h{level}>")


def paragraph(text: str, *, is_soft: bool = False) -> Html:
    kind = ' class="soft"' if is_soft else ""
    return Html(f"<p{kind}>{escape(text)}</p>")


def items(texts: Iterable[str]) -> Html:
    lines = [f"<li>{escape(text)}</li>" for text in texts]
    return Html("\n".join(["<ul>", *lines, "</ul>"]) if lines else "")


def contents(sections: Iterable[tuple[str, str]]) -> Html:
    """Links to the sections, each given by its anchor and its title."""
    lines = [f'<li><a href="#{escape(anchor)}">{escape(title)}</a></li>' for anchor, title in sections]
    return Html("\n".join(['<nav aria-label="Contents">\n<ul>', *lines, "</ul>\n</nav>"]))


def table(lines: Sequence[Sequence[str]], caption: str) -> Html:
    """The first line is the head. The first cell of a line names it."""
    head, *body = lines
    columns = list(zip(*body, strict=True)) or [()] * len(head)
    kinds = ["" if _are_numbers(column) else ' class="text"' for column in columns]
    cells = "".join(
        f'<th scope="col"{kind}>{_cell(cell)}</th>' for cell, kind in zip(head, kinds, strict=True)
    )
    parts = [
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}">',
        f"<table>\n<caption>{escape(caption)}</caption>\n<thead><tr>{cells}</tr></thead>\n<tbody>",
    ]
    for first, *rest in body[:MAX_LINES]:
        others = "".join(f"<td{kind}>{_cell(cell)}</td>" for cell, kind in zip(rest, kinds[1:], strict=True))
        parts.append(f'<tr><th scope="row">{_cell(first)}</th>{others}</tr>')
    parts.append("</tbody>\n</table>\n</div>")
    if len(body) > MAX_LINES:
        parts.append(paragraph(f"… and {len(body) - MAX_LINES:,} more lines", is_soft=True))
    return Html("\n".join(parts))


def long_table(lines: Sequence[Sequence[str]], caption: str, left_out: str = "") -> Html:
    """As `table`; of a long one the rest is folded. `left_out` says what is not in the lines."""
    head, *body = lines
    parts = [table([head, *body[:MAX_OPEN]], caption)]
    if len(body) > MAX_OPEN:
        rest = table([head, *body[MAX_OPEN:]], f"{caption}, continued")
        parts.append(folded(f"{len(body) - MAX_OPEN:,} more lines", [rest]))
    if left_out:
        parts.append(paragraph(left_out, is_soft=True))
    return Html("\n".join(parts))


def figure(picture: Html, caption: str) -> Html:
    return Html(f"<figure>\n{picture}\n<figcaption>{escape(caption)}</figcaption>\n</figure>")


def folded(summary: str, parts: Iterable[Html]) -> Html:
    return Html("\n".join([f"<details>\n<summary>{escape(summary)}</summary>", *parts, "</details>"]))


def _are_numbers(cells: Sequence[str]) -> bool:
    """Or nothing: what is not known is no word."""
    return all(cell in ("", "–") or cell[-1].isdigit() or cell[0].isdigit() for cell in cells)


def _cell(text: str) -> str:
    return escape(text if len(text) <= MAX_CELL else text[: MAX_CELL - 1] + "…")
