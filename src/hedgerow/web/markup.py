"""HTML that pages are put together from. Every text that comes in is escaped here; `Html` marks what already
is HTML.

`text` is the one way from a stranger's words to the page: characters that cannot be seen (controls, marks
that turn the direction of writing, halves of surrogates) are written as ␀ or \\u202e, long texts are cut,
with more of them in the title.
"""

from __future__ import annotations

import json
import re
from codecs import getincrementaldecoder
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from html import escape
from typing import NewType
from urllib.parse import quote, urlencode, urlsplit

Html = NewType("Html", str)
"""HTML, with nothing in it that was not escaped."""

MAX_TEXT = 80  # characters of a name in a table
MAX_TITLE = 1000
MAX_PAYLOAD_SHOWN = 4096  # bytes
MAX_HEX_SHOWN = 256

MAX_NESTED = 200

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_decoder = getincrementaldecoder("utf-8")
_PLAIN_ID = re.compile(r"[A-Za-z0-9_-]{1,40}\Z")


def join(parts: Iterable[str], between: str = "") -> Html:
    return Html(between.join(parts))


def visible(words: str) -> str:
    """The same words, with what cannot be seen written out. Not escaped."""
    return words if words.isprintable() else "".join(map(_visible_character, words))


def _visible_character(character: str) -> str:
    if character.isprintable() or character == "\u3000":
        return character
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def text(words: str, most: int = MAX_TEXT) -> Html:
    """Words of a stranger, as HTML: visible, escaped, and cut with a title where they are long."""
    if len(words) <= MAX_TEXT and len(words) <= most:
        return _short_text(words)
    if len(words) <= most:
        return Html(escape(visible(words)))
    return Html(f'<span title="{attribute(words)}">{escape(visible(words[: most - 1]))}…</span>')


@lru_cache(maxsize=4096)  # the same names are shown each second
def _short_text(words: str) -> Html:
    return Html(escape(visible(words)))


def short(words: str, most: int) -> Html:
    """The same where no element can stand: in an attribute, in an SVG's text."""
    cut = words if len(words) <= most else words[: most - 1] + "…"
    return Html(escape(visible(cut)))


def attribute(words: str) -> Html:
    return short(words, MAX_TITLE)


def ident(kind: str, *names: str) -> str:
    """An id for an element, the same at each render: readable where the names are plain."""
    if sum(map(len, names)) > MAX_TITLE:
        return _mark(kind, names)
    return _short_ident(kind, names)


@lru_cache(maxsize=8192)
def _short_ident(kind: str, names: tuple[str, ...]) -> str:
    # Of several names none has a "-" of its own: a and b-c are not a-b and c.
    is_plain = all(map(_PLAIN_ID.match, names)) and (len(names) == 1 or "-" not in "".join(names))
    return "-".join((kind, *names)) if is_plain else _mark(kind, names)


def _mark(kind: str, names: tuple[str, ...]) -> str:
    mark = blake2b("\0".join(names).encode(errors="surrogatepass"), digest_size=8).hexdigest()
    return f"{kind}--{mark}"


def href(path: str, **query: str) -> Html:
    """The value of an href to a page of ours."""
    asked = tuple([(key, value) for key, value in query.items() if value])
    return (
        _short_href(path, asked)
        if sum([len(value) for _, value in asked]) < MAX_TITLE
        else _href(path, asked)
    )


def _href(path: str, asked: tuple[tuple[str, str], ...]) -> Html:
    return Html(escape(f"{path}?{urlencode(asked, errors='replace')}" if asked else path))


_short_href = lru_cache(maxsize=8192)(_href)


def link(label: Html, path: str, **query: str) -> Html:
    """To a page of ours. The label alone where the address would be too long."""
    if any(len(value) > MAX_TITLE for value in query.values()):
        return label
    return Html(f'<a href="{href(path, **query)}">{label}</a>')


def outside_link(url: str) -> Html:
    """A URL that a stranger gave: a link only if it leads to a web page."""
    try:
        parts = urlsplit(url)
        is_web = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_web = False
    if not is_web or not url.isprintable():
        return text(url)
    address = quote(url, safe="/:?&=%#[]@+,;~", errors="replace")
    return Html(f'<a href="{escape(address)}" rel="noreferrer noopener">{text(url)}</a>')


def paragraph(words: str, kind: str = "") -> Html:
    return Html(f"<p{_class(kind)}>{escape(words)}</p>")


def empty(words: str, hint: str = "") -> Html:
    """What stands where nothing is to be seen: that it is so, and what to do."""
    more = f"<br>{escape(hint)}" if hint else ""
    return Html(f'<p class="empty">{escape(words)}{more}</p>')


def badge(words: str, kind: str) -> Html:
    """A word with a colour; the word alone tells the same."""
    return Html(f'<span class="badge {escape(kind)}">{short(words, 30)}</span>')


def code(words: str, most: int = MAX_TEXT) -> Html:
    return Html(f"<code>{text(words, most)}</code>")


def heading(words: str, anchor: str = "") -> Html:
    place = f' id="{escape(anchor)}"' if anchor else ""
    return Html(f"<h2{place}>{escape(words)}</h2>")


def table(anchor: str, caption: str, head: Sequence[str], rows: Iterable[tuple[str, Sequence[Html]]]) -> Html:
    """Rows are (id, cells). A column's head that ends in "#" is of numbers, which stand to the right."""
    numbers = {position for position, name in enumerate(head) if name.endswith("#")}
    kinds = [' class="number"' if position in numbers else "" for position in range(len(head))]
    tops = "".join(
        f'<th scope="col"{kind}>{escape(name.removesuffix("#"))}</th>'
        for name, kind in zip(head, kinds, strict=True)
    )
    pieces = [
        f'<div class="scroll" id="{anchor}-scroll" role="region" tabindex="0" aria-label="{escape(caption)}">'
        f'<table id="{anchor}"><caption>{escape(caption)}</caption><thead><tr>{tops}</tr></thead>'
        f'<tbody id="{anchor}-rows">'
    ]
    for row_id, cells in rows:
        inner = "".join([f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, cells, strict=True)])
        pieces.append(f'<tr id="{row_id}">{inner}</tr>' if row_id else f"<tr>{inner}</tr>")
    pieces.append("</tbody></table></div>")
    return Html("\n".join(pieces))


def figures(anchor: str, pairs: Iterable[tuple[str, Html]]) -> Html:
    """Names with their values, as a list of descriptions."""
    inner = "".join([f"<div><dt>{short(name, 40)}</dt><dd>{value}</dd></div>" for name, value in pairs])
    return Html(f'<dl class="figures" id="{anchor}">{inner}</dl>')


def payload(data: bytes) -> Html:
    """A message's payload: JSON pretty, text as it is, anything else as hex with its size."""
    if not data:
        return Html('<span class="soft">empty</span>')
    shown = data[:MAX_PAYLOAD_SHOWN]
    more = len(data) - len(shown)
    try:
        words = _decoder().decode(shown, not more)
    except UnicodeDecodeError:
        return _hex(data)
    if _CONTROL.search(words):
        return _hex(data)
    if not more:
        words = _pretty(words)
    lines = "\n".join([visible(line) for line in words.replace("\t", "    ").splitlines()])
    cut = f'\n<span class="soft">… {more:,} bytes more</span>' if more else ""
    return Html(f"<pre>{escape(lines[: 2 * MAX_PAYLOAD_SHOWN])}{cut}</pre>")


def _pretty(words: str) -> str:
    # Each level is indented further: of deep nesting the pretty text grows with the square.
    if words[:1] not in ("{", "[") or words.count("[") + words.count("{") > MAX_NESTED:
        return words
    try:
        return json.dumps(json.loads(words), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return words


def _hex(data: bytes) -> Html:
    more = " …" if len(data) > MAX_HEX_SHOWN else ""
    return Html(
        f'<pre class="hex"><span class="soft">{len(data):,} bytes</span>\n'
        f"{data[:MAX_HEX_SHOWN].hex(' ')}{more}</pre>"
    )


def field_value(words: str) -> Html:
    """The value of a form's field, whole: it is sent back as it is. No page can hold half of a surrogate."""
    return Html(escape(words.encode(errors="replace").decode()))


def hidden(name: str, value: str) -> Html:
    return Html(f'<input type="hidden" name="{name}" value="{field_value(value)}">')


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
