"""`hedgerow bench dashboard`: how soon a node's dashboard is there, how fresh it is, and what it costs.

The node under test is one of a fabric of fifty; the others live in one process beside it, `dashboard_fabric`.
A thousand filters are subscribed in the fabric, and messages flow through the node under test. The dashboard
is open while a reader, `dashboard_reader`, asks for the map and for a message viewer each second.

Open and closed take turns at one and the same node: what they differ in is less than what two processes do.
A shared machine becomes slower and faster from minute to minute by more than that, too; so a round with the
dashboard open is compared with those before and after it alone.
All the while somebody looks at another node of the fabric: else the other forty-nine would tell their
statuses, and take the processor from the node under test, only while its own dashboard is open.
"""

from __future__ import annotations

import json
import select
import socket
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote

from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.packets import MQTT_3_1_1, Publish
from hedgerow.pipeline.program import Program
from hedgerow.topics import STATUS_FILTER
from hedgerow_workshop.bench import BenchError
from hedgerow_workshop.bench.broker import Shape, load
from hedgerow_workshop.bench.browser import NoBrowserError, OpenBrowser, first_paint_s, running_browser
from hedgerow_workshop.bench.dashboard_fabric import ANNOUNCE_INTERVAL_S, HOST, neighbours, node_id
from hedgerow_workshop.bench.dashboard_reader import EVERY_S, Answer, Tab, intervals_of, read_answers
from hedgerow_workshop.bench.loader import STALL_S, Load
from hedgerow_workshop.bench.peers import BROKERS, OURS, BrokerKind, Child, running
from hedgerow_workshop.bench.report import (
    BenchRequest,
    BenchResult,
    BenchRow,
    Better,
    Progress,
    make_result,
    measuring,
)
from hedgerow_workshop.bench.wire import PAYLOAD
from hedgerow_workshop.percentiles import percentile_95
from hedgerow_workshop.programs import free_port

OPEN, CLOSED, ASKED = "open", "closed", "asked"
PAINT_ROW = "first-paint"
COST_ROWS = UPDATE_ROW, AGE_ROW, SPEED_ROW, PROCESSOR_ROW, PACED_ROW = (
    "update-p95",
    "age-p95",
    "throughput",
    "throughput-processor",
    "processor-paced",
)
ROW_NAMES = (PAINT_ROW, *COST_ROWS)

PAINT_AT_MOST_S = 1.0
UPDATE_AT_MOST_S = 1.5  # each second, and half a one for a machine that others use too
AGE_AT_MOST_S = 2.5  # a message is shown with the next answer, if its viewer was not resting: a second each
AT_LEAST = 0.95  # of the messages a second with the dashboard closed
PACED_AT_MOST = 1 - AT_LEAST  # of a core, in addition: all that a node does, it does on one

TESTED = "tested"
SUBSCRIBED = 5  # Every fifth node has subscribers, of as many filters each.
# A filter becomes a mesh of all fifty nodes, which takes 15 ms of one core. All at once they would keep these
# from answering probes, as it would not with fifty machines.
FILTERS_PER_S = 30
WATCHED = "#"  # the worst filter for a message viewer: it matches all that flows
PATHS = ("/", f"/messages?filter={quote(WATCHED)}")
SHOWN = 'aria-label="node {},'  # on the map; a node that only others speak of is shown otherwise
PACED_TOPIC = "bench/paced"
PACED_PER_S = 10_000
TICK_S = 0.01

READY_S = 120.0
OPENED_S = 3.0  # until the statuses of all nodes have begun to come
ANSWERED_S = 30.0  # until a page was answered twice, and showed a message
CLOSED_S = 13.0  # until the node has noticed that nobody looks any more (10 s), and has told the others
_POLL_S = 0.1
_RECEIVE_BYTES = 262_144
_PROCESSOR_TICK_S = 0.01  # the least processor time that is told


@dataclass(frozen=True)
class Scale:
    nodes: int
    filters: int
    paints: int
    rounds: int
    saturated_s: float
    paced_s: float
    opened_s: float = OPENED_S
    closed_s: float = CLOSED_S


FULL = Scale(nodes=50, filters=1_000, paints=10, rounds=12, saturated_s=4.0, paced_s=5.0)
QUICK = Scale(nodes=10, filters=100, paints=3, rounds=2, saturated_s=1.0, paced_s=3.0)


@dataclass
class Seen:
    """Of all rounds with the dashboard open, or of all with it closed."""

    rates: list[float] = field(default_factory=list)
    """Messages a second, at full load, by round."""
    by_processor: list[float] = field(default_factory=list)
    """Messages for each second of the node's processor time, likewise."""
    paced_shares: list[float] = field(default_factory=list)
    """Of a core, with PACED_PER_S messages a second."""
    answers: list[list[Answer]] = field(default_factory=list)
    """While those flowed, by round."""


class Fabric:
    """The node under test among the others, with everybody's subscriptions."""

    def __init__(self, scale: Scale, directory: Path, stack: ExitStack) -> None:
        self.scale = scale
        self._directory = directory
        self._readers = 0
        others = stack.enter_context(Program("the other nodes", directory / "others"))
        others.launch(
            [sys.executable, "-m", "hedgerow_workshop.bench.dashboard_fabric", str(scale.nodes - 1)]
        )
        ports = _ports_of(others)
        self._far_port = ports[len(ports) // 2]
        self.node = stack.enter_context(running(self._broker(neighbours(ports)), directory / TESTED))
        connections = [
            stack.enter_context(self.node.dialect.connect(port, f"reader-{number}"))
            for number, port in enumerate((self.node.port, *ports)[::SUBSCRIBED])
        ]
        for each in range(scale.filters // len(connections)):
            for number, connection in enumerate(connections):
                self.node.dialect.subscribe(connection, [f"farm/{number:02}/{each:03}/+"])
            time.sleep(len(connections) / FILTERS_PER_S)

    def _broker(self, ports: Sequence[int]) -> BrokerKind:
        linked = [word for port in ports for word in ("--neighbour", f"mqtt://{HOST}:{port}")]

        def command(port: int, directory: Path) -> list[str]:
            self._http_port = free_port()
            words = ["--mqtt", f"{HOST}:{port}", "--ws", "off", "--http", f"{HOST}:{self._http_port}"]
            words += ["--id", TESTED, "--sys-interval", "0"]
            words += ["--announce-interval", f"{ANNOUNCE_INTERVAL_S:g}", *linked]
            return [sys.executable, "-m", "hedgerow", "up", *words]

        return replace(BROKERS[OURS], command=command)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._http_port}"

    @contextmanager
    def onlooker(self) -> Iterator[None]:
        """Somebody who hears all statuses at another node."""
        with self.node.dialect.connect(self._far_port, "onlooker") as connection:
            self.node.dialect.subscribe(connection, [STATUS_FILTER])
            reading = threading.Thread(target=_read_all, args=(connection,))
            reading.start()
            try:
                yield
            finally:
                connection.shutdown(socket.SHUT_RDWR)
                reading.join()

    @contextmanager
    def reader(self) -> Iterator[Program]:
        """Somebody who has the dashboard open."""
        self._readers += 1
        with Program("the reader", self._directory / f"reader-{self._readers}") as program:
            urls = [self.url + path for path in PATHS]
            program.launch([sys.executable, "-m", "hedgerow_workshop.bench.dashboard_reader", *urls])
            yield program

    def wait_until_shown(self, reader: Program) -> None:
        """Until the map has every node."""
        missing = {TESTED, *(node_id(number) for number in range(1, self.scale.nodes))}
        give_up_at = time.perf_counter() + READY_S
        while time.perf_counter() < give_up_at:
            check_runs(reader)
            page = Tab(self.url + "/").live().decode()
            missing = {name for name in missing if SHOWN.format(name) not in page}
            if not missing:
                return
            time.sleep(_POLL_S)
        raise BenchError(f"the map lacks {len(missing)} of {self.scale.nodes} nodes after {READY_S:g} s")


def _read_all(connection: socket.socket) -> None:
    with suppress(OSError):
        while connection.recv(_RECEIVE_BYTES):
            pass


def check_runs(program: Program) -> None:
    if program.has_ended:
        raise BenchError(f"{program.name} ended: {program.last_words()}")


def _ports_of(others: Program) -> list[int]:
    give_up_at = time.perf_counter() + READY_S
    while time.perf_counter() < give_up_at:
        check_runs(others)
        line, newline, _ = others.output.read_text().partition("\n")
        if newline:
            return [int(port) for port in json.loads(line)["ports"]]
        time.sleep(_POLL_S)
    raise BenchError(f"{others.name} were not ready within {READY_S:g} s")


class Pace:
    """PACED_PER_S messages a second from one client to another, each with the time when it was sent."""

    def __init__(self, node: Child, stack: ExitStack) -> None:
        self._subscriber = stack.enter_context(node.dialect.connect(node.port, "paced-subscriber"))
        node.dialect.subscribe(self._subscriber, [PACED_TOPIC])
        self._publisher = stack.enter_context(node.dialect.connect(node.port, "paced-publisher"))

    def run(self, seconds: float) -> None:
        """Raises BenchError unless all have arrived in the end."""
        each_tick = round(PACED_PER_S * TICK_S)
        started_at = time.perf_counter()
        missing = 0
        for tick in range(round(seconds / TICK_S)):
            packets = _stamped() * each_tick
            self._publisher.sendall(packets)
            missing += len(packets)
            missing -= self._receive(max(started_at + (tick + 1) * TICK_S - time.perf_counter(), 0.0))
        while missing > 0:
            arrived = self._receive_once(STALL_S)
            if not arrived:
                raise BenchError(f"{missing} bytes of the paced messages did not arrive")
            missing -= arrived

    def _receive(self, seconds: float) -> int:
        """How much arrives in so many seconds."""
        give_up_at = time.perf_counter() + seconds
        size = 0
        while arrived := self._receive_once(max(give_up_at - time.perf_counter(), 0.0)):
            size += arrived
        return size

    def _receive_once(self, seconds: float) -> int:
        """How much is there, or comes first; 0: nothing, for so many seconds."""
        if not select.select([self._subscriber], [], [], seconds)[0]:
            return 0
        data = self._subscriber.recv(_RECEIVE_BYTES)
        if not data:
            raise BenchError("closed the connection of the subscriber")
        return len(data)


def _stamped() -> bytes:
    payload = f"sent-at-{time.time():.3f} ".encode().ljust(len(PAYLOAD), b".")
    return encode(Publish(PACED_TOPIC, payload), MQTT_3_1_1)


def run(request: BenchRequest) -> BenchResult:
    request.check(ROW_NAMES, (CLOSED,))
    return measure(QUICK if request.quick else FULL, request.only)


def measure(
    scale: Scale, only: Sequence[str] = (), open_browser: OpenBrowser = running_browser
) -> BenchResult:
    """All rows, or those named in `only`."""
    wanted = set(only or ROW_NAMES)
    stages = [stage for stage in ((PAINT_ROW,), COST_ROWS) if not wanted.isdisjoint(stage)]
    notes: list[str] = []
    rows: list[BenchRow] = []
    with measuring(len(stages)) as (directory, shown), ExitStack() as stack:
        fabric = Fabric(scale, directory, stack)
        if (PAINT_ROW,) in stages:
            shown.begin(PAINT_ROW, scale.paints)
            rows += paint(fabric, open_browser, shown, notes)
        if COST_ROWS in stages:
            shown.begin(", ".join(COST_ROWS), 2 * scale.rounds + 1)
            rows += cost(fabric, shown, notes)
    for note in notes:
        shown.note(note)
    versions = {OURS: BROKERS[OURS].version()}
    of_what = {"nodes": scale.nodes, "filters": scale.filters}
    return make_result(OPEN, [CLOSED, ASKED], rows, only, versions, notes, **of_what)


def paint(fabric: Fabric, open_browser: OpenBrowser, shown: Progress, notes: list[str]) -> list[BenchRow]:
    """Seconds until a browser that was never here has drawn the map."""
    taken: list[float] = []
    try:
        with fabric.reader() as reader, open_browser() as browser:
            fabric.wait_until_shown(reader)
            for number in range(fabric.scale.paints):
                shown.step(f"page {number + 1} of {fabric.scale.paints}")
                with browser.new_context() as context:
                    page = context.new_page()
                    page.goto(fabric.url)
                    taken.append(first_paint_s(page))
    except NoBrowserError as error:
        notes.append(f"{PAINT_ROW}: {error}")
        return []
    notes.append(f"{PAINT_ROW}: {min(taken):.3f} s to {max(taken):.3f} s")
    return [_asked(PAINT_ROW, "s", "lower", statistics.median(taken), PAINT_AT_MOST_S, notes)]


def cost(fabric: Fabric, shown: Progress, notes: list[str]) -> list[BenchRow]:
    seen = {OPEN: Seen(), CLOSED: Seen()}
    with ExitStack() as stack:
        stack.enter_context(fabric.onlooker())
        loaded = load(fabric.node, Shape())
        stack.callback(loaded.close)
        pace = Pace(fabric.node, stack)
        with fabric.reader() as reader:
            fabric.wait_until_shown(reader)
        for number in range(1, fabric.scale.rounds + 1):
            shown.step(f"closed, round {number} of {fabric.scale.rounds}")
            time.sleep(fabric.scale.closed_s)
            _one_round(fabric, loaded, pace, seen[CLOSED])
            shown.step(f"open, round {number} of {fabric.scale.rounds}")
            with fabric.reader() as reader:
                fabric.wait_until_shown(reader)
                time.sleep(fabric.scale.opened_s)
                _one_round(fabric, loaded, pace, seen[OPEN], reader)
        shown.step("closed, once more")
        time.sleep(fabric.scale.closed_s)
        _one_round(fabric, loaded, pace, seen[CLOSED])
    return cost_rows(seen, notes)


def _one_round(fabric: Fabric, loaded: Load, pace: Pace, seen: Seen, reader: Program | None = None) -> None:
    before = fabric.node.processor_s()
    measured = loaded.run(fabric.scale.saturated_s)
    seen.rates.append(measured.messages / measured.seconds)
    used_s = max(fabric.node.processor_s() - before, _PROCESSOR_TICK_S)
    seen.by_processor.append(measured.messages / used_s)
    started_at, before = time.time(), fabric.node.processor_s()
    pace.run(fabric.scale.paced_s)
    seen.paced_shares.append((fabric.node.processor_s() - before) / (time.time() - started_at))
    if reader is not None:
        seen.answers.append(_answers_since(started_at, reader, pace))


def _answers_since(started_at: float, reader: Program, pace: Pace) -> list[Answer]:
    """Where the machine is so busy that they say nothing yet, messages flow for longer."""
    give_up_at = time.monotonic() + ANSWERED_S
    while True:
        check_runs(reader)
        answers = [answer for answer in read_answers(reader) if answer.at >= started_at]
        tell = any(intervals_of(answers)) and any(answer.age_s is not None for answer in answers)
        if tell or time.monotonic() >= give_up_at:
            return answers
        pace.run(EVERY_S)


def cost_rows(seen: dict[str, Seen], notes: list[str]) -> list[BenchRow]:
    answers = [answer for taken in seen[OPEN].answers for answer in taken]
    intervals = [interval for taken in seen[OPEN].answers for interval in intervals_of(taken)]
    ages = [answer.age_s for answer in answers if answer.age_s is not None]
    if not intervals or not ages:
        raise BenchError("the dashboard did not answer, or showed no message, while messages flowed")
    shares = {name: statistics.median(each.paced_shares) for name, each in seen.items()}
    more = shares[OPEN] - shares[CLOSED]
    notes.append(f"{PACED_ROW}: {1_000 * more:.0f} ms of processor time a second for the dashboard")
    if more > PACED_AT_MOST:
        notes.append(f"{PACED_ROW}: that is more than the {1_000 * PACED_AT_MOST:.0f} ms that we promise")
    for path in sorted({answer.path for answer in answers}):
        mine = [answer for answer in answers if answer.path == path]
        took_s = statistics.median(answer.took_s for answer in mine)
        size = statistics.median(answer.size for answer in mine)
        changed = statistics.fmean(answer.changed for answer in mine)
        notes.append(
            f"{path}: {1_000 * took_s:.0f} ms and {size / 1_000:.1f} kB an answer, {changed:.0%} of them new"
        )
    return [
        _asked(UPDATE_ROW, "s", "lower", percentile_95(intervals), UPDATE_AT_MOST_S, notes),
        _asked(AGE_ROW, "s", "lower", percentile_95(ages), AGE_AT_MOST_S, notes),
        _beside_closed(SPEED_ROW, seen[OPEN].rates, seen[CLOSED].rates, notes),
        _beside_closed(PROCESSOR_ROW, seen[OPEN].by_processor, seen[CLOSED].by_processor, notes),
        BenchRow(
            PACED_ROW,
            "of a core",
            "lower",
            shares[OPEN],
            {CLOSED: shares[CLOSED], ASKED: shares[CLOSED] + PACED_AT_MOST},
        ),
    ]


def _asked(name: str, unit: str, better: Better, value: float, asked: float, notes: list[str]) -> BenchRow:
    if value > asked:
        notes.append(f"{name}: {value:.2f} {unit} is more than the {asked:g} {unit} that we promise")
    return BenchRow(name, unit, better, value, {ASKED: asked})


def _beside_closed(name: str, opened: Sequence[float], closed: Sequence[float], notes: list[str]) -> BenchRow:
    """The median of the rounds, each beside the closed ones around it."""
    around = [statistics.fmean(neighbours) for neighbours in pairwise(closed)]
    ratios = [each / beside for each, beside in zip(opened, around, strict=True)]
    ratio = statistics.median(ratios)
    notes.append(
        f"{name}: {statistics.median(opened):,.0f} messages, {statistics.median(closed):,.0f} when closed; "
        f"{min(ratios):.2f}× to {max(ratios):.2f}× in {len(ratios)} rounds"
    )
    if ratio < AT_LEAST:
        notes.append(f"{name}: {ratio:.3f}× is less than the {AT_LEAST:g}× that we promise")
    return BenchRow(name, "× closed", "higher", ratio, {ASKED: AT_LEAST})
