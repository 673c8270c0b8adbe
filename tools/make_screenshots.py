"""Make the pictures of the dashboard that the documents show: `python tools/make_screenshots.py [FOLDER]`.

A farm of real nodes on loopback, with clients and messages, is looked at with the browser that the tests use.
Without FOLDER they go to `docs/images`.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import socket
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ViewportSize

from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.packets import MQTT_3_1_1, Publish
from hedgerow.pipeline.program import Program
from hedgerow_workshop.bench.browser import running_browser
from hedgerow_workshop.bench.wire import Mqtt

IMAGES = Path(__file__).parents[1] / "docs/images"
HERE = "127.0.0.1:0"
READY_S = 20.0
TRAFFIC_S = 20.0  # sparklines show a minute; so much of it is enough to see
TICK_S = 0.05
SETTLED_S = 2.5
DESKTOP: ViewportSize = {"width": 1_280, "height": 800}

# Node → whom it dials, and what else it is told.
NODES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "house": ((), ("--federation", "--role", "fixed", "--domain", "farm-link", "--hot-topics")),
    "north": (("house",), ()),
    "south": (("house", "north"), ()),
    "west": (("south", "house"), ()),
    "mill": (("north",), ()),
}
BRIDGE = """\
connection town
address {address}
topic farm/+/wind out 0
"""
CLIENTS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "house": (("panel", ("farm/#",)), ("alarm", ("farm/+/frost",))),
    "north": (("sprinkler-1", ("farm/north/soil",)), ("sprinkler-2", ("farm/north/soil",))),
    "south": (("gate", ("farm/south/gate",)),),
    "west": (("pump", ("farm/west/tank", "farm/+/soil")),),
    "mill": (("miller", ("farm/+/wind",)),),
    "tractor": (("cab", ("farm/west/tank", "farm/north/soil")),),
}
READINGS = {
    "north": ("farm/north/soil", "farm/north/wind", "farm/north/frost"),
    "south": ("farm/south/soil", "farm/south/gate"),
    "west": ("farm/west/tank", "farm/west/wind"),
    "tractor": ("farm/west/soil",),
}


@dataclass(frozen=True)
class Picture:
    name: str
    path: str
    point_at: str | None = None


PICTURES = (
    Picture("dashboard", "/", point_at="#hit-edge-south-west > line"),
    Picture("dashboard-mesh", "/topics?topic=farm%2F%2B%2Fwind"),
    Picture("dashboard-messages", "/messages?filter=farm%2F%23"),
)


class Farm:
    """All nodes, each with the URLs that it has printed, and their clients."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self.urls: dict[str, dict[str, str]] = {}
        self._start("town")
        bridge = directory / "bridge.conf"
        bridge.write_text(BRIDGE.format(address=self.urls["town"]["mqtt"].removeprefix("mqtt://")))
        for name, (dialled, words) in NODES.items():
            linked = [word for each in dialled for word in ("--neighbour", self.urls[each]["mqtt"])]
            self._start(name, *linked, *words, *(("--bridge", str(bridge)) if name == "house" else ()))
        fixed = ("--role", "mobile", "--domain", "farm-link", "--fixed", self.urls["house"]["mqtt"])
        self._start("tractor", *fixed, "--no-move-clients")
        for name, clients in CLIENTS.items():
            for client_id, filters in clients:
                Mqtt().subscribe(self.connect(name, client_id), filters)

    def connect(self, name: str, client_id: str) -> socket.socket:
        port = urlsplit(self.urls[name]["mqtt"]).port
        assert port is not None
        return self._stack.enter_context(Mqtt().connect(port, client_id))

    def _start(self, name: str, *words: str) -> None:
        program = self._stack.enter_context(Program(name, self._directory / name))
        listen = ("--mqtt", HERE, "--ws", "off", "--http", HERE, "--id", name)
        program.launch([sys.executable, "-m", "hedgerow", "up", *listen, *words])
        give_up_at = time.monotonic() + READY_S
        while not {"mqtt", "http"} <= (urls := _urls(program)).keys():
            if program.has_ended or time.monotonic() > give_up_at:
                raise SystemExit(f"{name} does not listen: {program.last_words()}")
            time.sleep(TICK_S)
        self.urls[name] = urls


def _urls(program: Program) -> dict[str, str]:
    lines = re.findall(r"^listening (\S+)\s", program.output.read_text(), re.MULTILINE)
    return {urlsplit(url).scheme: url for url in lines}


def talk(connections: dict[str, socket.socket], stop: threading.Event) -> None:
    """Readings from everywhere, at rates that differ and swing."""
    for tick in itertools.count():
        for number, (name, topics) in enumerate(READINGS.items()):
            for place, topic in enumerate(topics):
                if math.sin(tick / 40 + number) + 1 > 0.5 * place:
                    value = round(20 + 5 * math.sin(tick / 30 + number + place), 2)
                    payload = json.dumps({"value": value, "unit": "°C", "at": round(time.time(), 1)})
                    packet = encode(Publish(topic, payload.encode(), retain=True), MQTT_3_1_1)
                    connections[name].sendall(packet)
        if stop.wait(TICK_S):
            return


def take(browser: Browser, farm: Farm, picture: Picture, folder: Path) -> None:
    with browser.new_context(viewport=DESKTOP) as profile:
        page = profile.new_page()
        page.goto(farm.urls["house"]["http"] + picture.path)
        page.wait_for_timeout(1_000 * SETTLED_S)
        if picture.point_at is not None:
            page.locator(picture.point_at).hover(force=True)
        page.screenshot(path=folder / f"{picture.name}.png")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hedgerow-")))
        farm = Farm(directory, stack)
        browser = stack.enter_context(running_browser())
        connections = {name: farm.connect(name, f"sensors-{name}") for name in READINGS}
        stop = threading.Event()
        talking = threading.Thread(target=talk, args=(connections, stop))
        talking.start()
        stack.callback(talking.join)
        stack.callback(stop.set)
        # Somebody has to look for a while: what there was before nobody has kept.
        watching = browser.new_page()
        watching.goto(farm.urls["house"]["http"])
        watching.wait_for_timeout(1_000 * TRAFFIC_S)
        for picture in PICTURES:
            take(browser, farm, picture, folder)
            size = (folder / f"{picture.name}.png").stat().st_size
            print(f"{picture.name}.png: {size / 1_000:.0f} kB")


if __name__ == "__main__":
    main()
