"""Is a page well formed, does it need nothing from elsewhere, and can it be read without seeing it?"""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "input", "link"}
# Words of SVG that have an address in them in other pages.
ADDRESSES = ("src", "href", "srcset", "data", "action", "xlink:href", "poster")


class Page(HTMLParser):
    """What is wrong is in `faults`; an empty list is a good page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.ids: set[str] = set()
        self._open: list[str] = []
        self._links: set[str] = set()
        self.feed(text)
        self.close()
        self._finish(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attributes)
        if tag not in VOID and not (self.get_starttag_text() or "").endswith("/>"):
            self._open.append(tag)
        if tag in ("script", "iframe", "object", "embed", "link"):
            self.faults.append(f"<{tag}>")
        if tag == "html" and not given.get("lang"):
            self.faults.append("no lang")
        if tag == "svg" and not (given.get("role") == "img" and given.get("aria-label")):
            self.faults.append("a picture without a text")
        if given.get("id"):
            self.ids.add(str(given["id"]))
        for name, value in attributes:
            if name.startswith("on"):
                self.faults.append(f"{name} of <{tag}>")
            if name in ADDRESSES and (value or "").startswith("#"):
                self._links.add(str(value)[1:])
            elif name in ADDRESSES:
                self.faults.append(f"{name}={value}")

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self._open or self._open[-1] != tag:
            self.faults.append(f"</{tag}> ends {self._open[-1:]}")
        else:
            self._open.pop()

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def _finish(self, text: str) -> None:
        self.faults += [f"<{tag}> is never ended" for tag in self._open]
        self.faults += [f"#{link} leads nowhere" for link in self._links - self.ids]
        if re.search(r"(url\(|@import)", text):
            self.faults.append("the style asks for something")
        if not text.startswith("<!doctype html>") or "title" not in self.tags or "main" not in self.tags:
            self.faults.append("no doctype, title or main")
        figures = self.tags.count("figure")
        if self.tags.count("figcaption") != figures or self.tags.count("table") != self.tags.count("caption"):
            self.faults.append("a figure or table without a caption")

    @property
    def text(self) -> str:
        return " ".join(self.words)
