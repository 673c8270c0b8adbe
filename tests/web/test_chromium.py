"""The dashboard of real nodes in a real browser: what people see, and that the browser does not complain."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest
from paho.mqtt import publish as paho
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion
from playwright.sync_api import Browser, expect

from hedgerow.node.passwords import set_password
from hedgerow.web.pages import PAGES
from hedgerow_workshop.bench.browser import first_paint_s
from tests.paho_sockets import close_sockets, stop_loop
from tests.programs import Node, run_node, wait_until
from tests.web.chromium import PHONE, Visit, is_update, start_browser, visit

PATHS = [page.path for page in PAGES]
ATTACK = "<script>document.title='taken'</script>"
OTHER_ATTACK = "<img src=/x onerror=\"document.title='taken'\">"
ACL = """\
user keeper
topic readwrite #
topic read $hedgerow/status/#
user guest
topic readwrite garden/#
topic read $hedgerow/status/gate
"""
# Before anything is drawn a browser asks for the page, its style and htmx: what that may come to.
MAX_FIRST_REQUESTS = 3
MAX_FIRST_BYTES = 150_000


@dataclass
class Farm:
    """Two nodes that federate, with a client at each."""

    barn: Node
    tower: Node

    @property
    def url(self) -> str:
        return self.barn.urls["http"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with start_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    with ExitStack() as running:

        def start(name: str, *arguments: str) -> Node:
            words = ("--id", name, "--http", "127.0.0.1:0", "--hot-topics", *arguments)
            return running.enter_context(run_node(tmp_path_factory.mktemp(name), *words))

        barn = start("barn", "--federation")
        tower = start("tower", "--neighbour", barn.urls["mqtt"])
        subscribe(running, barn, "soil-reader", "farm/soil")
        subscribe(running, tower, "wind-reader", "farm/wind")
        subscribe(running, tower, ATTACK, f"attack/{ATTACK}")
        yield Farm(barn, tower)


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with users: keeper, who is an administrator, and guest, who may read `garden/#`."""
    directory = tmp_path_factory.mktemp("gate")
    (directory / "acl").write_text(ACL)
    for user in ("keeper", "guest"):
        file, secret = directory / "passwords", f"{user}-secret".encode()
        set_password(file, user, secret, create=not file.exists(), iterations=10)
    words = ["--id", "gate", "--http", "127.0.0.1:0", "--federation", "--administrator", "keeper"]
    words += ["--passwords", str(directory / "passwords"), "--acl", str(directory / "acl")]
    with run_node(directory, *words) as node, ExitStack() as running:
        subscribe(running, node, "of-the-keeper", "garden/#", "cellar/#", user="keeper")
        for topic in ("garden/pond", "cellar/wine"):
            publish(node, topic, f"of {topic}", retain=True, user="keeper")
        yield node


def subscribe(running: ExitStack, node: Node, client_id: str, *filters: str, user: str | None = None) -> None:
    """A client that stays until the end."""
    client = Client(CallbackAPIVersion.VERSION2, client_id)
    if user is not None:
        client.username_pw_set(user, f"{user}-secret")
    granted: list[object] = []
    client.on_subscribe = lambda *_: granted.append(True)
    client.connect("127.0.0.1", node.port())
    client.subscribe([(each, 0) for each in filters])
    client.loop_start()
    running.callback(close_sockets, client)
    running.callback(stop_loop, client)
    running.callback(client.disconnect)
    wait_until(lambda: bool(granted), f"{client_id} to be subscribed")


def publish(node: Node, topic: str, payload: str, *, retain: bool = False, user: str | None = None) -> None:
    """QoS 1: the node has it when this returns."""
    auth: Any = {"username": user, "password": f"{user}-secret"} if user else None
    paho.single(topic, payload, 1, retain, "127.0.0.1", node.port(), auth=auth)


def messages_path(topic_filter: str) -> str:
    return f"/messages?filter={quote(topic_filter, safe='')}"


# What there is to see


def test_the_map_shows_the_nodes_and_their_link(browser: Browser, farm: Farm) -> None:
    for node in (farm.barn, farm.tower):
        with visit(browser, node.urls["http"]) as seen:
            expect(seen.page.locator("#node-barn")).to_be_visible()
            expect(seen.page.locator("#node-tower")).to_be_visible()
            expect(seen.page.locator("#map-links line.link.up")).to_have_count(1)
            expect(seen.page.locator("#map .ghost")).to_have_count(0)


def test_pointing_at_a_link_shows_its_ledger(browser: Browser, farm: Farm) -> None:
    with visit(browser, farm.url) as seen:
        page, tip = seen.page, seen.page.locator("#tip-edge-barn-tower")
        expect(page.locator("#node-tower")).to_be_visible()
        expect(tip).to_be_hidden()
        page.locator("#hit-edge-barn-tower > line").hover(force=True)
        expect(tip).to_be_visible()
        expect(tip).to_contain_text("barn – tower · neighbour · up")
        publish(farm.barn, "farm/wind", "strong")
        expect(tip).to_contain_text("published")
        expect(tip).to_be_visible()


def test_a_topic_shows_its_mesh_with_core_and_parents(browser: Browser, farm: Farm) -> None:
    with visit(browser, f"{farm.url}/topics") as seen:
        page = seen.page
        page.get_by_role("link", name="farm/wind", exact=True).click()
        expect(page.locator("#mesh h2")).to_have_text("farm/wind")
        expect(page.locator("#mesh-row-barn")).to_be_visible()
        expect(page.locator("#mesh-row-tower")).to_be_visible()
        core = page.locator("#map-nodes .core")
        expect(core).to_have_count(1)
        expect(page.locator("#mesh-table .badge", has_text="core")).to_have_count(1)
        expect(page.locator("#map-mesh .arrow")).to_have_count(1)


def test_messages_are_shown_as_they_come(browser: Browser, farm: Farm) -> None:
    with visit(browser, farm.url + messages_path("farm/#")) as seen:
        shown = seen.page.locator("#messages li")
        publish(farm.barn, "other/place", "not asked for")
        publish(farm.barn, "farm/soil", json.dumps({"moist": 0.3, "at": [1, 2]}))
        expect(shown).to_have_count(1)
        expect(shown.locator("header b")).to_have_text("farm/soil")
        assert '\n  "moist": 0.3,\n' in shown.locator("pre").inner_text()
        publish(farm.tower, "farm/from-afar", "over the link")
        expect(shown.first.locator("header b")).to_have_text("farm/from-afar")


def test_pause_holds_what_is_shown(browser: Browser, farm: Farm) -> None:
    with visit(browser, farm.url + messages_path("hold/#")) as seen:
        page, shown = seen.page, seen.page.locator("#messages li")
        publish(farm.barn, "hold/1", "before")
        expect(shown).to_have_count(1)
        page.get_by_role("link", name="Pause").click()
        expect(page.locator("#watch-state")).to_have_text("paused")
        publish(farm.barn, "hold/2", "meanwhile")
        page.reload()
        expect(shown).to_have_count(1)
        page.get_by_role("link", name="Go on").click()
        expect(page.locator("#watch-state")).to_have_text("live")
        publish(farm.barn, "hold/3", "after")
        expect(shown.first.locator("pre")).to_have_text("after")


def test_what_strangers_write_is_shown_and_not_run(browser: Browser, farm: Farm) -> None:
    topic = f"attack/{ATTACK}"
    publish(farm.barn, topic, OTHER_ATTACK, retain=True)
    with visit(browser, farm.url + messages_path("attack/#")) as seen:
        page = seen.page
        expect(page.locator("#messages pre")).to_have_text(OTHER_ATTACK)
        expect(page.locator("#messages header b")).to_have_text(topic)
        for path, element in (("/topics", "#topics"), ("/retained", "#retained")):
            seen.go(path)
            expect(page.locator(element)).to_contain_text(ATTACK)
            assert page.locator("main script, main img").count() == 0
        assert page.title() != "taken"
    with visit(browser, farm.tower.urls["http"] + "/clients") as seen:
        expect(seen.page.locator("#clients")).to_contain_text(ATTACK)
        assert seen.page.title() != "taken"


# How it is


def test_no_page_gives_the_browser_anything_to_complain_of(browser: Browser, farm: Farm) -> None:
    with browser.new_context() as profile:
        visits = [Visit(profile.new_page(), farm.url) for _ in PATHS]
        for seen, path in zip(visits, PATHS, strict=True):
            seen.go(path)
        for seen in visits:
            assert first_paint_s(seen.page) > 0
            sizes = [request.sizes() for request in seen.requests if not is_update(request)]
            assert len(sizes) <= MAX_FIRST_REQUESTS
            total = sum(size["responseBodySize"] + size["responseHeadersSize"] for size in sizes)
            assert 0 < total <= MAX_FIRST_BYTES
        for seen in visits:
            seen.wait_for_updates(2)
    assert [problem for seen in visits for problem in seen.problems] == []


def test_the_page_changes_by_itself(browser: Browser, farm: Farm) -> None:
    with visit(browser, f"{farm.url}/?node=barn") as seen:
        page = seen.page
        named = page.get_by_text("Received in all", exact=True)
        received = page.locator("#node-figures div").filter(has=named).locator("dd")
        before = int(received.inner_text())
        page.evaluate("window.kept = true")
        publish(farm.barn, "farm/soil", "one more")
        expect(received).not_to_have_text(str(before))
        assert int(received.inner_text()) > before
        assert page.evaluate("window.kept") is True


def test_it_can_be_used_with_the_keyboard_alone(browser: Browser, farm: Farm) -> None:
    with visit(browser, farm.url) as seen:
        page = seen.page
        reached = []
        for _ in range(2 + len(PATHS)):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.getAttribute('href')"))
            if reached[-1] == "/topics":
                break
        outline = page.evaluate(
            "(style => style.outlineStyle + style.boxShadow)(getComputedStyle(document.activeElement))"
        )
        assert outline != "nonenone"
        page.keyboard.press("Enter")
        page.wait_for_url("**/topics")
        assert reached[0] == "#live"
        page.locator("#topics a").first.focus()
        seen.wait_for_updates(2)
        assert page.evaluate("document.activeElement.closest('#topics') !== null")


def test_it_fits_on_a_phone(browser: Browser, farm: Farm) -> None:
    too_wide = {}
    with visit(browser, farm.url, viewport=PHONE, is_mobile=True, has_touch=True) as seen:
        for path in (*PATHS, messages_path("farm/#"), "/?node=barn", "/topics?topic=farm%2Fwind"):
            seen.go(path)
            width = seen.page.evaluate("document.scrollingElement.scrollWidth")
            if width > PHONE["width"]:
                too_wide[path] = width
    assert too_wide == {}


@pytest.mark.parametrize(("width", "rows"), [(390, [2, 2, 3]), (800, [4, 3]), (1_280, [7])])
def test_no_figure_stands_alone_in_its_row(browser: Browser, farm: Farm, width: int, rows: list[int]) -> None:
    with visit(browser, farm.url, viewport={"width": width, "height": 800}) as seen:
        tops = seen.page.locator(".tile").evaluate_all("all => all.map(each => each.offsetTop)")
        assert list(Counter(tops).values()) == rows


def test_text_has_the_font_of_a_page_and_not_one_of_formulas(browser: Browser, farm: Farm) -> None:
    """Where no desktop has chosen a font, a browser may take any for `system-ui`."""
    with visit(browser, farm.url) as seen:
        asked = seen.page.locator("body").evaluate("body => getComputedStyle(body).fontFamily")
        assert asked.endswith(", sans-serif")
        assert "system-ui" not in asked
        assert seen.page.locator(".map text").first.evaluate("e => getComputedStyle(e).fontFamily") == asked


def test_a_message_with_a_long_id_fits_on_a_phone(browser: Browser, farm: Farm) -> None:
    path = farm.url + messages_path("wide/#")
    with visit(browser, path, viewport=PHONE, is_mobile=True, has_touch=True) as seen:
        seen.wait_for_updates(1)
        words = ["pub", farm.barn.urls["mqtt"], "wide/soil", "31", "-q", "1", "--origin", "station" * 5]
        subprocess.run([sys.executable, "-m", "hedgerow", *words], check=True)
        expect(seen.page.locator("#messages")).to_contain_text("stationstation")
        assert seen.page.evaluate("document.scrollingElement.scrollWidth") == PHONE["width"]


def test_it_is_light_or_dark_as_the_system_is(browser: Browser, farm: Farm) -> None:
    colours = []
    for scheme in ("light", "dark"):
        with visit(browser, farm.url, color_scheme=scheme) as seen:
            colours.append(
                seen.page.evaluate(
                    "(style => [style.backgroundColor, style.color])(getComputedStyle(document.body))"
                )
            )
    (light, dark_text), (dark, light_text) = (map(brightness, pair) for pair in colours)
    assert light > dark_text
    assert light_text > dark
    assert light > dark


def brightness(colour: str) -> float:
    """Of `rgb(…)`: the sum is enough to tell dark from light."""
    return sum(map(float, colour[colour.index("(") + 1 : -1].split(",")[:3]))


def test_it_is_there_without_scripts(browser: Browser, farm: Farm) -> None:
    with visit(browser, farm.url, java_script_enabled=False) as seen:
        expect(seen.page.locator("#node-barn")).to_be_visible()
        assert len(seen.requests) <= MAX_FIRST_REQUESTS


# Users


def log_in(seen: Visit, user: str, password: str) -> None:
    seen.page.get_by_label("User").fill(user)
    seen.page.get_by_label("Password").fill(password)
    seen.page.get_by_role("button", name="Log in").click()


def test_users_log_in_and_out(browser: Browser, gate: Node) -> None:
    url = gate.urls["http"]
    with visit(browser, f"{url}/retained") as seen:
        page = seen.page
        expect(page.locator("#user")).to_be_focused()
        assert "gate" not in page.locator("main").inner_text()
        log_in(seen, "keeper", "guest-secret")
        expect(page.get_by_role("status")).to_contain_text("wrong")
        seen.forgive("403")
        log_in(seen, "keeper", "keeper-secret")
        expect(page.locator("#retained")).to_contain_text("cellar/wine")
        assert page.url == f"{url}/retained"
        page.get_by_role("button", name="Log out").click()
        expect(page.locator("#user")).to_be_visible()
        seen.go("/retained")
        expect(page.locator("#user")).to_be_visible()


def test_a_user_sees_what_it_may_read(browser: Browser, gate: Node) -> None:
    publish(gate, "cellar/door", "open", user="keeper")
    with visit(browser, gate.urls["http"]) as seen:
        log_in(seen, "guest", "guest-secret")
        for path, text in (
            ("/", "gate"),
            ("/topics", "garden/#"),
            ("/hot", ""),
            ("/links", ""),
            ("/retained", "of garden/pond"),
            ("/clients", "for administrators"),
            ("/events", ""),
            (messages_path("#"), "garden/pond"),
        ):
            seen.go(path)
            expect(seen.page.locator("main")).to_contain_text(text)
            assert "cellar" not in seen.page.content()
        publish(gate, "cellar/door", "shut", user="keeper")
        publish(gate, "garden/door", "shut", user="keeper")
        expect(seen.page.locator("#messages li").first).to_contain_text("garden/door")
        assert "cellar" not in seen.page.content()
