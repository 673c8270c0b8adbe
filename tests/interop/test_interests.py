"""What a sidecar learns at a real Mosquitto of what its clients want, and what it says if it cannot."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from paho.mqtt.subscribeoptions import SubscribeOptions

from hedgerow.federation.interests.counts import UPTIME_TOPIC
from hedgerow.federation.interests.events import (
    MOSQUITTO_LINES,
    EverythingUntilKnown,
    InterestEvent,
    InterestsForgotten,
    LeavingNotLogged,
    LogSilent,
    SystemTopicsSilent,
    UnknownSubscriptions,
)
from hedgerow.federation.interests.interests import EVERYTHING, Interests
from hedgerow.federation.mesh.announcements import NEW_REGULAR_TOPIC
from hedgerow.federation.neighbours import NEIGHBOUR_PREFIX
from tests.conftest import StartMosquitto
from tests.interop.conftest import Reach
from tests.interop.paho_peer import PATIENCE_S, Paho, paho
from tests.programs import need_program, run_mosquitto, wait_until

GRACE_S = 2.0
OWN = f"{NEIGHBOUR_PREFIX}7"
SOON = "sys_interval 1"  # how often the broker counts
LOG = ("log_type none", *MOSQUITTO_LINES, "log_type information", SOON)  # The last but one is for the test.


class Sidecar:
    def __init__(self, *assume: str, live_within_s: float = 30.0, until_known: tuple[str, ...] = ()) -> None:
        self.ahead_s = 0.0
        """What a test has its clock skip, while it is not connected."""
        self.interests = Interests(
            self.now,
            assume,
            client_id=OWN,
            broker="here",
            linger_s=0.1,
            grace_s=GRACE_S,
            live_within_s=live_within_s,
            unknown_s=0.1,
            probed_within_s=0.3,
            until_known=until_known,
        )
        self.wanted: set[str] = set()
        self.events: list[InterestEvent] = []
        self.port = 0
        self._peer: Paho
        self._read = 0

    @property
    def now(self) -> float:
        return time.monotonic() + self.ahead_s

    @contextmanager
    def at(self, port: int, clean: bool = True) -> Iterator[None]:
        """Connected to the broker."""
        self.port = port
        with self.client(OWN, clean=clean, expiry_s=0 if clean else 3600) as self._peer:
            self._read = 0
            self.interests.connected(self.now, not self._peer.session_present)
            options = SubscribeOptions(qos=1, noLocal=True, retainAsPublished=True)
            for topic_filter in Interests.topics:
                (reason,) = self._peer.subscribe_with(topic_filter, options)
                self.interests.subscribed(topic_filter, reason < 0x80, hex(reason))
            yield
            self.look()
        self.interests.disconnected(self.now)

    @contextmanager
    def client(self, client_id: str, clean: bool = True, expiry_s: int = 0) -> Iterator[Paho]:
        reach = Reach("mqtt", self.port, Path())
        with paho(reach, "5", client_id, clean=clean, expiry_s=expiry_s) as peer:
            yield peer

    def look(self) -> None:
        while self._read < len(self._peer.inbox):
            message = self._peer.inbox[self._read]
            self._read += 1
            self.interests.receive(message.topic, bytes(message.payload), message.retain, self.now)
        if self.interests.take_probe():
            with self.client(f"{OWN}-log") as probe:
                probe.unsubscribe("nothing")
            self.interests.probed(True, self.now)
        if self.interests.deadline <= self.now:
            self.interests.handle_timer(self.now)
        for topic_filter, is_wanted in self.interests.take_changes():
            (self.wanted.add if is_wanted else self.wanted.remove)(topic_filter)
        self.events += self.interests.take_events()

    def wants(self, *filters: str) -> None:
        self.wait(lambda: self.wanted == set(filters), f"{filters} to be wanted")

    def says(self, event: type[InterestEvent]) -> InterestEvent:
        self.wait(lambda: bool(self.events), event.__name__)
        first = self.events.pop(0)
        assert isinstance(first, event), first
        return first

    def uptimes(self) -> list[int]:
        heard = [message for message in self._peer.inbox if message.topic == UPTIME_TOPIC]
        return [int(message.payload.split()[0]) for message in heard]

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        def holds() -> bool:
            self.look()
            return condition()

        wait_until(holds, what, PATIENCE_S)


def test_stock_clients_are_heard_and_federators_are_not(mosquitto: StartMosquitto) -> None:
    sidecar = Sidecar("assumed/#")
    stock = need_program("mosquitto_sub")
    with sidecar.at(mosquitto(*LOG)), sidecar.client(f"{NEIGHBOUR_PREFIX}8") as federator:
        federator.subscribe("of/a/federator", 1)
        arguments = [stock, "-p", str(sidecar.port), "-t", "field/+/soil", "-t", "assumed/a", "-t", "$SYS/#"]
        process = subprocess.Popen(arguments)
        try:
            sidecar.wants("assumed/#", "field/+/soil")
        finally:
            process.terminate()
            process.wait()
        sidecar.wants("assumed/#")
        assert sidecar.events == []


def test_announcements_of_a_person_with_mosquitto_pub(mosquitto: StartMosquitto) -> None:
    sidecar = Sidecar()
    port = mosquitto()
    name = f"{NEW_REGULAR_TOPIC}/kitchen"

    def publish(*arguments: str) -> None:
        subprocess.run([need_program("mosquitto_pub"), "-p", str(port), *arguments], check=True)

    publish("-t", name, "-m", "kitchen/#", "-r")
    with sidecar.at(port):
        sidecar.wants("kitchen/#")
        publish("-t", NEW_REGULAR_TOPIC, "-m", '{"subscribe": ["a", "b"]}')
        sidecar.wants("kitchen/#", "a", "b")
        publish("-t", NEW_REGULAR_TOPIC, "-m", '{"unsubscribe": "a"}')
        publish("-t", name, "-n", "-r")
        sidecar.wants("b")


def test_subscriptions_from_before_are_counted(mosquitto: StartMosquitto) -> None:
    sidecar = Sidecar()
    sidecar.port = mosquitto(*LOG)
    with sidecar.client("old") as old:
        old.subscribe("a", 1)
        old.subscribe("b", 1)
        with sidecar.at(sidecar.port):
            event = sidecar.says(UnknownSubscriptions)
            assert isinstance(event, UnknownSubscriptions)
            assert event.count == 2
            old.subscribe("a", 1)  # Now it is known.
            old.subscribe("c", 1)
            sidecar.wants("a", "c")
            sidecar.wait(lambda: sidecar.interests.unknown == 1, "the count")
            assert sidecar.events == []


def test_a_broker_without_the_lines_of_configuration(mosquitto: StartMosquitto) -> None:
    sidecar = Sidecar(live_within_s=0.5)
    with sidecar.at(mosquitto(SOON)):
        sidecar.says(LogSilent)


@pytest.mark.parametrize(
    ("missing", "more"),
    [("log_type notice", ()), ("log_type unsubscribe", ()), ("", ("connection_messages false",))],
)
def test_a_broker_whose_log_does_not_tell_who_leaves(
    mosquitto: StartMosquitto, missing: str, more: tuple[str, ...]
) -> None:
    sidecar = Sidecar(until_known=EVERYTHING)
    with sidecar.at(mosquitto(*(line for line in LOG if line != missing), *more)):
        sidecar.says(EverythingUntilKnown)
        event = sidecar.says(LeavingNotLogged)
        assert (missing or "leave connection_messages on") in str(event)
        rounds = len(sidecar.uptimes())
        sidecar.wait(lambda: len(sidecar.uptimes()) > rounds + 1, "a count")
        assert sidecar.wanted == {"#"}


def test_a_broker_whose_rights_withhold_the_log(mosquitto: StartMosquitto, tmp_path: Path) -> None:
    rights = tmp_path / "rights"
    rights.write_text("topic readwrite #\n")
    rights.chmod(0o600)
    sidecar = Sidecar(live_within_s=0.5)
    with sidecar.at(mosquitto(*LOG, f"acl_file {rights}")):
        assert "topic read $SYS/#" in str(sidecar.says(SystemTopicsSilent))
    rights.write_text("topic readwrite #\ntopic read $SYS/#\n")
    sidecar = Sidecar(live_within_s=0.5)
    with sidecar.at(mosquitto(*LOG, f"acl_file {rights}")):
        with sidecar.client("dev") as client:
            client.subscribe("a", 1)
            sidecar.wants("a")
        assert sidecar.events == []


def test_a_session_that_is_kept_hears_of_what_happened_while_it_was_away(mosquitto: StartMosquitto) -> None:
    sidecar = Sidecar()
    port = mosquitto(*LOG)
    with sidecar.at(port, clean=False):
        sidecar.wants()
    with sidecar.client("dev") as client:
        client.subscribe("a", 1)
        with sidecar.at(port, clean=False):
            sidecar.wants("a")
            assert sidecar.events == []


def test_a_broker_that_is_restarted(tmp_path: Path) -> None:
    sidecar = Sidecar()
    with (
        run_mosquitto(tmp_path, *LOG) as sidecar.port,
        sidecar.client("back") as back,
        sidecar.client("early") as early,
        sidecar.client("away") as away,
        sidecar.at(sidecar.port),
    ):
        back.subscribe("of/back", 1)
        early.subscribe("of/early", 1)
        away.subscribe("of/away", 1)
        sidecar.wants("of/back", "of/early", "of/away")
        sidecar.wait(lambda: bool(sidecar.uptimes()), "the broker to say its age")
    sidecar.ahead_s += 5.0  # Two that were started in the same seconds would be taken for one.
    with (
        run_mosquitto(tmp_path, *LOG) as sidecar.port,
        sidecar.client("early") as early,
    ):
        early.subscribe("of/early", 1)
        with sidecar.at(sidecar.port), sidecar.client("back") as back:
            back.subscribe("of/back", 1)
            grace_ends_at = sidecar.now + GRACE_S
            sidecar.wait(lambda: sidecar.interests.deadline > grace_ends_at, "the time of grace to end")
            # Someone is there of whom no line tells: it may be either.
            assert sidecar.wanted == {"of/back", "of/early", "of/away"}
            early.unsubscribe("of/early")
            sidecar.wants("of/back")
            sidecar.says(InterestsForgotten)
