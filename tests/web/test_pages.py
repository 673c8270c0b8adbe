"""Pages: what they show to whom, that no words break out of them, and that they are as htmx needs them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hedgerow.node.backlogs import LogReader, ReaderFigures
from hedgerow.web import frame, pages
from hedgerow.web.charts import clock, delay, duration, number, share, sparkline
from hedgerow.web.fabric import Fabric, StatusEvent
from hedgerow.web.markup import MAX_PAYLOAD_SHOWN, ident, outside_link, payload, text
from hedgerow.web.pages import LOGIN, PAGES, Page, topics
from hedgerow.web.scan import AT_ONCE
from hedgerow.web.view import (
    MAX_ROWS,
    ClientRow,
    EmptyLocal,
    MessageRow,
    RetainedRow,
    SubscriptionRow,
    View,
    Viewer,
    WatchView,
)
from tests.test_imports import OUTSIDE_WORLD
from tests.web.statuses import HOSTILE, NOW, farm, link, mesh, status, tell, tell_meshes

AFTER = NOW + 2.5
BY_PATH = {page.path: page for page in (*PAGES, LOGIN)}
VOID = {"meta", "link", "input", "br", "img"}
ADMINISTRATOR = Viewer("farmer", is_administrator=True, token="t0k3n")


class Reader(HTMLParser):
    """Elements in order, and their text; fails on what does not nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), (tag, attrs)
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str) -> Iterator[dict[str, str]]:
        return (attributes for name, attributes in self.elements if name == tag)


class Rows(EmptyLocal):
    """A node that has one of everything, under the name it is given."""

    def __init__(self, name: str = "sensor", data: bytes = b"on") -> None:
        self.name, self.data = name, data

    def clients(self, search: str, limit: int) -> tuple[Sequence[ClientRow], int]:
        return [ClientRow(self.name, self.name, self.name, self.name, self.name, since=NOW)], 400

    def subscriptions(self, search: str, limit: int) -> tuple[Sequence[SubscriptionRow], int]:
        return [SubscriptionRow(self.name, self.name, 1, self.name)], 1

    def retained(self, topic_filter: str, limit: int) -> tuple[Sequence[RetainedRow], int]:
        return [RetainedRow(self.name, self.data, 1, 60.0)], 1

    def events(self, limit: int) -> Sequence[StatusEvent]:
        return [StatusEvent(1, NOW, self.name, self.name)]

    def backlogs(self) -> Sequence[ReaderFigures]:
        reader = LogReader(self.name, self.name, False, False, 3_000, 1_500_000, NOW - 7_200)
        return [ReaderFigures(reader, 0.25, 90.0)]


def view_of(fabric: Fabric, viewer: Viewer | None = None, **query: str) -> View:
    return View("barn", fabric, AFTER, viewer or Viewer(), query)


def live(path: str, fabric: Fabric, viewer: Viewer | None = None, **query: str) -> Reader:
    return Reader(BY_PATH[path].render(view_of(fabric, viewer, **query)))


def whole(page: Page, view: View) -> Reader:
    return Reader(frame.document(page, view, page.render(view)))


@pytest.mark.parametrize("page", [*PAGES, LOGIN], ids=lambda page: page.path)
def test_an_empty_fabric_has_pages_that_say_what_to_do(page: Page) -> None:
    found = whole(page, view_of(Fabric()))
    assert page is LOGIN or "empty" in [attributes.get("class") for attributes in found.all("p")]


@pytest.mark.parametrize("page", [*PAGES, LOGIN], ids=lambda page: page.path)
def test_a_page_has_no_script_or_style_inside_and_ids_once(page: Page) -> None:
    watch = WatchView("farm/#", [MessageRow(1, NOW, "farm/wind", b"{}")], left_out=3)
    view = View("barn", farm(), AFTER, ADMINISTRATOR, {"topic": "farm/#", "filter": "farm/#"}, Rows(), watch)
    found = whole(page, view)
    assert list(found.all("script")) == [{"src": frame.SCRIPT_PATH, "defer": ""}]
    assert not list(found.all("style"))
    for tag, attributes in found.elements:
        assert not any(name == "style" or name.startswith("on") for name in attributes), (tag, attributes)
    ids = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_a_page_polls_its_own_live_part_and_morphs_it(page: Page) -> None:
    found = whole(page, view_of(farm(), search='a&b"', live="1"))
    (main,) = found.all("main")
    assert main["hx-get"] == f"{page.path}?search=a%26b%22&live=1"
    assert main["hx-swap"] == "innerMorph"
    assert main["hx-trigger"].startswith("every 1s")
    assert ("hx-include" in main) == page.is_searched
    assert [a["href"] for a in found.all("a") if "aria-current" in a] == [page.path]


def test_a_paused_page_and_the_log_in_are_not_polled() -> None:
    paused = view_of(farm(), pause="1")
    for page, view in ((BY_PATH["/messages"], paused), (LOGIN, view_of(farm()))):
        (main,) = whole(page, view).all("main")
        assert not [name for name in main if name.startswith("hx-")]


def test_without_htmx_the_page_reloads_itself() -> None:
    view = View("barn", farm(), AFTER, is_live=False)
    found = whole(PAGES[0], view)
    assert {"http-equiv": "refresh", "content": "5"} in list(found.all("meta"))
    assert not list(found.all("script"))
    (main,) = found.all("main")
    assert "hx-get" not in main


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_words_stay_words(page: Page, name: str) -> None:
    node_id = name[:500].replace("/", "|")
    fabric = Fabric(max_payload=1 << 22)
    for count in (1, 2):
        tell(
            fabric, node_id, count, links=[link(name, kind=name, state=name, name=name)], kind=name,
            software=name, beside=name, urls=[name], problem=name, counts={name[:99]: 1},
            hot=[[name, 1, name]], events=[{"number": count, "at": NOW, "kind": name, "text": name}],
            journal={name: name[:500]}, pipeline={name[:500]: {name[:500]: name}},
        )  # fmt: skip
    tell_meshes(fabric, node_id, {name: mesh(name, [name, name])})
    assert (len(fabric.nodes), len(fabric.meshes), fabric.ignored) == (1, 1, 0)
    watch = WatchView(name, [MessageRow(1, NOW, name, name.encode(errors="replace"), message_id=name)])
    rows = Rows(name, name.encode(errors="replace"))
    query = {"node": node_id, "topic": name[:500], "filter": name[:500], "back": name[:500]}
    view = View(
        name, fabric, AFTER, Viewer(name, True, "t0k3n"), query, rows, watch, notice=name, has_users=True
    )
    html = frame.document(page, view, page.render(view))
    html.encode()  # a half of a surrogate would fail here
    assert len(html) < 400_000
    found = Reader(html)
    assert len(list(found.all("script"))) == 1
    assert not list(found.all("img"))
    for tag, attributes in found.elements:
        assert not any(key == "style" or key.startswith("on") for key in attributes), (tag, attributes)
        assert not attributes.get("href", "/").startswith("javascript"), attributes
        assert "\x1b" not in str(attributes.get("title", ""))
    assert not re.search(r"[\x00-\x08\x0b\x1b\u202e]", re.sub(r'value="[^"]*"', "", html))


def test_the_first_page_has_figures_map_nodes_and_events() -> None:
    fabric = farm()
    tell(fabric, "south", 3, events=[{"number": 1, "at": NOW, "kind": "lost", "text": "north is gone"}])
    found = live("/", fabric)
    assert "Nodes 3 heard" in found.text
    assert "Links up 2 of 3" in found.text
    assert "Clients 9 connected" in found.text
    assert "Messages in 30 a second" in found.text
    assert "Messages out 60 a second" in found.text
    assert "north is gone" in found.text
    ids = {attributes.get("id") for _, attributes in found.elements}
    assert {"map", "tiles", "row-barn", "node-barn", "newest"} <= ids


def test_retained_values_are_said_to_be_those_of_this_node() -> None:
    found = Reader(BY_PATH["/retained"].render(View("barn", farm(), AFTER, Viewer(), {}, Rows())))
    assert "Retained values of barn" in found.text


def test_without_bridges_the_page_says_which_command_makes_one() -> None:
    assert "hedgerow bridge new" in live("/links", farm(), search="north").text


def test_a_link_on_which_nothing_is_counted_says_so() -> None:
    fabric = Fabric()
    for name, to, kind in (("truck", "tower", "fixed"), ("tower", "truck", "mobile")):
        tell(fabric, name, links=[link(to, kind=kind, out={}, **{"in": {}})])
    words = live("/links", fabric).text
    assert words.count("not counted not counted") == 2
    assert "nothing yet" not in words
    tell(fabric, "barn", links=[link("house", out={"published": 0}, **{"in": {"published": 0}})])
    assert "nothing yet nothing yet" in live("/links", fabric).text


def test_journal_and_pipeline_are_shown_where_a_node_has_them() -> None:
    fabric = farm()
    assert "Journal" not in live("/", fabric).text
    tell(fabric, "barn", 3, journal={"messages/recorded": 77}, pipeline={"hot": {"rows_per_s": 41}})
    words = live("/", fabric).text
    assert "Journal barn Messages recorded 77" in words
    assert "Pipeline hot barn Rows/s 41" in words


def test_the_marks_on_the_map_are_explained_where_there_are_some() -> None:
    fabric = farm()
    assert "sidecar" not in live("/", fabric).text
    tell(fabric, "barn", 3, kind="sidecar")
    assert "S sidecar: a federator beside another broker" in live("/", fabric).text


def test_a_pipelines_figures_are_for_people() -> None:
    fabric = farm()
    told = {"rows_per_s": 261.9098483230079, "total_rows": 16582, "batch_s": 0.00123456, "mean": 12345.678}
    tell(fabric, "barn", 3, pipeline={"hot": {**told, "behind": None, "reason": ""}})
    words = live("/", fabric).text
    assert "Rows/s 262 Total rows 16,582 Batch s 0.00123 Mean 12,346" in words
    assert not {"behind", "null", "reason"} & set(words.split())


def test_a_chosen_node_is_shown_closely_and_links_only_to_web_pages() -> None:
    fabric = farm()
    urls = ["mqtt://127.0.0.1:1883", "http://127.0.0.1:8780", "javascript:alert(1)//http://x"]
    tell(fabric, "barn", 3, urls=urls, problem="the disk is full")
    found = live("/", fabric, node="barn")
    assert "the disk is full" in found.text
    assert all(url in found.text for url in urls)
    assert [a["href"] for a in found.all("a") if "127.0.0.1" in a["href"]] == ["http://127.0.0.1:8780"]
    assert "No node of this name" in live("/", fabric, node="nobody").text


def test_backlogs_are_shown_for_the_node_and_for_whom_most_waits() -> None:
    fabric = farm()
    backlog = {
        "readers": 2, "messages": 3_010, "bytes": 1_500_000, "limit": 6_000_000, "oldest_at": AFTER - 7_200,
        "full_in_s": 90,
    }  # fmt: skip
    tell(fabric, "barn", 3, backlog=backlog)
    found = live("/", fabric, node="barn").text
    assert "Share of the room 25 %" in found
    assert "Oldest waits for 2 h 0 min" in found
    assert "Full in 1 min" in found
    tell(fabric, "barn", 4, backlog={**backlog, "limit": None, "oldest_at": None, "full_in_s": None})
    assert "Share of the room" not in live("/", fabric, node="barn").text
    view = replace(view_of(fabric), local=Rows("office"))
    words = Reader(BY_PATH["/clients"].render(view)).text
    assert "office client away 3 k 1.5 MB 25 % 2 h 0 min 1 min" in words


def test_a_chosen_link_shows_the_ledger_of_both_ends() -> None:
    words = live("/", farm(), link="edge-barn-north").text
    assert words.count("published 1204, away 14 published 880, duplicates 10") == 2


def test_topics_are_found_and_one_is_drawn() -> None:
    fabric = farm()
    tell_meshes(fabric, "south", {"home/kitchen": mesh("south")})
    assert "home/kitchen" in live("/topics", fabric).text
    assert "home/kitchen" not in live("/topics", fabric, search="FARM").text
    assert "No filter has these words" in live("/topics", fabric, search="x").text
    found = live("/topics", fabric, topic="farm/#")
    assert "arrow-barn-north" in {attributes.get("id") for _, attributes in found.elements}
    assert "barn has subscribers 1 north – north" in found.text
    assert "/topics?topic=farm%2F%23" in [a["href"] for a in live("/topics", fabric).all("a")]


async def test_topics_are_looked_for_in_slices() -> None:
    """Each of 500 nodes may tell a thousand."""
    asked = 0

    def may_read(topic: str) -> bool:
        nonlocal asked
        asked += 1
        return True

    fabric = farm()
    tell_meshes(fabric, "south", {f"home/{number:03}": mesh("south") for number in range(1_000)})
    view = View("barn", fabric, 0.0, viewer=Viewer(may_read=may_read))
    scan = topics.look_for(view)
    scan.run(slice_s=0.0)
    assert asked == AT_ONCE
    assert not scan.is_done
    await scan.run_in_turns()
    asked = 0
    rendered = str(topics.render(replace(view, topics=scan)))
    assert asked < AT_ONCE, "it was found already"
    assert f"{MAX_ROWS} of " in rendered


def test_hot_topics_say_where_they_are_served() -> None:
    fabric = farm()
    tell(fabric, "north", 3, hot=[["farm/soil", 40, "tower"]])
    words = live("/hot", fabric).text
    assert words.index("farm/soil 40 north tower") < words.index("farm/wind 19 barn itself")
    tell(fabric, "barn", 3)
    tell(fabric, "north", 4)
    assert "Start a node with --hot-topics" in live("/hot", fabric).text


def test_links_and_bridges_have_their_state() -> None:
    words = live("/links", farm()).text
    neighbours, bridges = words.split("Bridges")
    assert "north south neighbour down 1.2 ms 3" in neighbours
    assert "barn cloud.example:8883 bridge up" in bridges
    assert "cloud.example" not in live("/links", farm(), search="south").text


def test_somebody_who_may_read_little_sees_little() -> None:
    allowed = {"$hedgerow/status/north", "farm/wind"}
    viewer = Viewer("guest", may_read=lambda topic: topic in allowed, sees_clients=False)
    fabric = farm()
    tell(fabric, "north", 3, links=[link("barn")], hot=[["farm/wind", 3, "here"], ["secret", 9, "here"]])
    words = {page.path: live(page.path, fabric, viewer, topic="farm/#", node="south").text for page in PAGES}
    assert "row-barn" not in BY_PATH["/"].render(view_of(fabric, viewer))
    assert "No node of this name" in words["/"]
    assert "farm/wind" in words["/hot"]
    assert "secret" not in words["/hot"]
    assert "No mesh of this filter" in words["/topics"]
    assert "No topic has a mesh" in words["/topics"]
    assert "for administrators" in words["/clients"]


def test_somebody_who_may_read_no_status_is_told_so() -> None:
    viewer = Viewer("guest", may_read=lambda topic: False)
    for path in ("/", "/topics", "/hot", "/links"):
        assert "may not read $hedgerow/status/#" in live(path, farm(), viewer).text


def test_actions_are_offered_only_with_a_token_and_the_right() -> None:
    def forms(page: Page, viewer: Viewer) -> list[str]:
        view = View("barn", farm(), AFTER, viewer, {"filter": "farm/#"}, Rows(), WatchView("farm/#"))
        found = Reader(page.controls(view) + page.render(view))
        posts = [form["action"] for form in found.all("form") if form.get("method") == "post"]
        tokens = [a for a in found.all("input") if a.get("name") == "token" and a["value"] == viewer.token]
        assert len(tokens) == len(posts)
        return posts

    writer = Viewer("guest", token="t", may_write=lambda topic: True)
    reader = Viewer("guest", token="t", may_write=lambda topic: False)
    for page in PAGES:
        assert forms(page, Viewer("guest", is_administrator=True, token="")) == []
    assert forms(BY_PATH["/retained"], writer) == ["/actions/retained/clear"]
    assert forms(BY_PATH["/retained"], reader) == []
    assert forms(BY_PATH["/clients"], writer) == []
    assert forms(BY_PATH["/clients"], ADMINISTRATOR) == ["/actions/clients/disconnect"]
    assert forms(BY_PATH["/links"], writer) == []
    assert forms(BY_PATH["/links"], ADMINISTRATOR) == ["/actions/bridges/new", "/actions/bridges/delete"]
    assert forms(BY_PATH["/messages"], writer) == ["/actions/publish"]


def test_what_is_left_out_is_said() -> None:
    view = View("barn", farm(), AFTER, local=Rows())
    assert "1 of 400 are shown" in Reader(pages.clients.render(view)).text


def test_messages_are_shown_pretty_with_what_was_left_out() -> None:
    rows = [
        MessageRow(2, NOW, "farm/wind", b'{"speed":12.5}', 1, message_id="barn"),
        MessageRow(1, NOW, "farm/x", b"\xff\x00", 0, True),
    ]
    view = View("barn", farm(), AFTER, query={"filter": "farm/#"}, watch=WatchView("farm/#", rows, 1234))
    html = pages.messages.render(view)
    assert "{\n  &quot;speed&quot;: 12.5\n}" in html
    assert "at least 1,234 more left out" in html
    assert "2 bytes" in html
    assert "ff 00" in html
    assert html.index("message-2") < html.index("message-1")
    bad = View("barn", farm(), AFTER, query={"filter": "a#"}, watch=WatchView("a#", problem="no filter: a#"))
    assert "no filter: a#" in pages.messages.render(bad)


def test_events_of_this_node_are_its_own_whole_hour_and_of_others_their_newest() -> None:
    fabric = farm()
    for name in ("barn", "north"):
        tell(fabric, name, 3, events=[{"number": 1, "at": NOW, "kind": "joined", "text": f"told by {name}"}])
    words = Reader(pages.events.render(View("barn", fabric, AFTER, local=Rows("own")))).text
    assert "told by north" in words
    assert "told by barn" not in words
    assert "own" in words
    assert "told by barn" in live("/events", fabric).text
    assert "told by barn" not in live("/events", fabric, search="NORTH").text


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"", "empty"),
        (b"on", "<pre>on</pre>"),
        (b"a\tb\r\nc", "<pre>a    b\nc</pre>"),
        (b"<b>", "<pre>&lt;b&gt;</pre>"),
        (b"\x00\x01", "2 bytes</span>\n00 01"),
        (b"{bad", "<pre>{bad</pre>"),
        ("é".encode() * 4000, "… 3,904 bytes more"),
        (b"\xff" * 10_000, "10,000 bytes</span>"),
    ],
)
def test_payloads(data: bytes, shown: str) -> None:
    assert shown in payload(data)


def test_a_payload_that_is_shown_is_bounded() -> None:
    for data in (
        b"x" * 10_000_000,
        b"[" * 2000 + b"]" * 2000,
        b"[" + b"[[1]]," * 600 + b"1]",
        b"\xff" * 1_000_000,
    ):
        assert len(payload(data)) < 3 * MAX_PAYLOAD_SHOWN


def test_words_are_made_visible_cut_and_escaped() -> None:
    assert text("a\x00b\x1b\u202e") == "a␀b␛\\u202e"
    assert text("<i>") == "&lt;i&gt;"
    assert text("x" * 100, 10) == f'<span title="{"x" * 100}">xxxxxxxxx…</span>'


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "data:text/html,x", "mqtt://x", "http://[", "//x", "http:x"]
)
def test_only_web_addresses_become_links(url: str) -> None:
    assert "<a" not in outside_link(url)
    assert '<a href="https://x/"' in outside_link("https://x/")


def test_ids_of_different_names_differ() -> None:
    names = [
        ("a", "b-c"),
        ("a-b", "c"),
        ("a", "b c"),
        ("a b", "c"),
        ("", "x"),
        *((each, "x") for each in HOSTILE),
    ]
    ids = [ident("edge", *each) for each in names]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+", each) for each in ids)


def test_figures_as_people_read_them() -> None:
    assert [number(each) for each in (0, 7, 2.996, 12.34, 999, 1234, 1_234_567)] == [
        "0",
        "7",
        "3",
        "12.3",
        "999",
        "1.23 k",
        "1.23 M",
    ]
    assert [duration(each) for each in (5, 100, 4000, 100_000, -5)] == [
        "5 s",
        "1 min",
        "1 h 6 min",
        "1 d 3 h",
        "−5 s",
    ]
    assert clock(1e30) == "–"
    assert [share(each) for each in (None, 0.0004, 0.042, 0.25, 1.2)] == [
        "–",
        "0.04 %",
        "4.2 %",
        "25 %",
        "120 %",
    ]
    assert [delay(each) for each in (0.0124, -0.0003, -2.5)] == ["12 ms", "0 ms", "−2,500 ms"]
    assert "116,24 118,2" in sparkline("x", "y", [0, 10])


def test_the_pure_part_asks_nothing_of_the_world() -> None:
    folder = Path(frame.__file__).parent
    pure = ["fabric", "status", "map_layout", "map", "markup", "charts", "view", "frame"]
    for path in [*(folder / f"{name}.py" for name in pure), *(folder / "pages").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not OUTSIDE_WORLD & {name.partition(".")[0] for name in names}, path


def test_the_style_sheet_asks_for_nothing_from_elsewhere() -> None:
    sheet = (Path(frame.__file__).parent / "style.css").read_text()
    assert "url(" not in sheet
    assert "@import" not in sheet
    for needed in (
        "prefers-color-scheme: dark",
        "prefers-reduced-motion",
        ":focus-visible",
        "max-width: 640px",
    ):
        assert needed in sheet


TEXT_ON_GROUND = [
    *((ink, ground) for ink in ("ink", "soft", "accent") for ground in ("page", "card", "raised")),
    *((kind, f"{kind}-ground") for kind in ("good", "fair", "bad", "dull")),
    ("accent", "accent-soft"), ("ink", "accent-soft"), ("on-accent", "accent"), ("bad", "card"),
    *(("mark", disc) for disc in ("disc", "disc-mobile", "disc-fixed", "disc-sidecar", "disc-other")),
    ("ink", "link-silent"), ("ink", "line"),
]  # fmt: skip
LINES = ["link-up", "link-bridge", "link-waiting", "link-down", "link-silent", "core", "disc", "focus"]


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_can_be_told_apart(scheme: int) -> None:
    """WCAG 2.1, level AA: 1.4.3 for text, 1.4.11 for lines."""
    sheet = (Path(frame.__file__).parent / "style.css").read_text()
    block = re.findall(r":root \{(.*?)\}", sheet, re.DOTALL)[scheme]
    colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block))
    weak = [(a, b) for a, b in TEXT_ON_GROUND if contrast(colours[a], colours[b]) < 4.5]
    weak += [(line, "card") for line in LINES if contrast(colours[line], colours["card"]) < 3]
    assert weak == []


def test_a_status_of_another_version_is_not_shown() -> None:
    fabric = Fabric()
    fabric.receive("$hedgerow/status/new", status("new", version=2), NOW)
    assert "No node has said anything yet" in live("/", fabric).text
