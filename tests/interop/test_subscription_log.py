"""What a real Mosquitto's log tells of its clients' subscriptions."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from hedgerow.federation.interests.log_lines import TOPICS
from hedgerow.federation.interests.subscription_log import SubscriptionLog
from tests.conftest import StartMosquitto
from tests.interop.conftest import Reach
from tests.interop.paho_peer import PATIENCE_S, VERSIONS, Paho, connect_and_vanish, paho
from tests.programs import wait_until

OWN = "hedgerow-federator"
LOG = ("log_dest topic", "log_type subscribe", "log_type unsubscribe", "log_type notice")
OTHER_LOGS = {
    "as documented": ("log_type none", *LOG, "log_type information"),  # The last one is for the test.
    "all": ("log_dest topic", "log_type all"),
    "all, in a file too": ("log_dest topic", "log_dest stderr", "log_type all"),
    "no timestamps": (*LOG, "log_timestamp false"),
    "ISO timestamps": (*LOG, "log_timestamp_format %Y-%m-%dT%H:%M:%S"),
    "wordy timestamps": (*LOG, "log_timestamp_format %A, %e %B %Y: %H.%M"),
}
every_version = pytest.mark.parametrize("version", VERSIONS)


class Reader:
    """The log of one Mosquitto as our machine reads it; `filters` is what it told of changes."""

    def __init__(self, port: int, reader: Paho, uncertain_s: float) -> None:
        self.port = port
        self.log = SubscriptionLog(OWN, uncertain_s=uncertain_s)
        self._peer = reader
        self._read = 0
        self._told: set[str] = set()

    def filters(self) -> set[str]:
        while self._read < len(self._peer.inbox):
            message = self._peer.inbox[self._read]
            self._read += 1
            self.log.receive(message.topic, bytes(message.payload), time.monotonic())
        self.log.handle_timer(time.monotonic())
        for topic_filter, is_wanted in self.log.take_changes():
            (self._told.add if is_wanted else self._told.remove)(topic_filter)
        return self._told

    def expect(self, *topic_filters: str) -> None:
        """Exactly these, once all that happened so far is in the log."""
        with self.client("mark") as mark:
            mark.subscribe(name := f"mark/{self._read}/{time.monotonic_ns()}")
            wait_until(lambda: name in self.filters(), "the log", PATIENCE_S)
            mark.unsubscribe(name)
            wait_until(lambda: name not in self.filters(), "the log", PATIENCE_S)
        assert self.filters() == set(topic_filters)

    def client(
        self, client_id: str, version: str = "3.1.1", clean: bool = True, expiry_s: int = 0
    ) -> AbstractContextManager[Paho]:
        return paho(Reach("mqtt", self.port, Path()), version, client_id, clean=clean, expiry_s=expiry_s)

    def vanish(self, client_id: str, version: str) -> None:
        connect_and_vanish(Reach("mqtt", self.port, Path()), version, client_id, ("will", "1", 0, False))


@contextmanager
def reading(port: int, uncertain_s: float = 3600.0) -> Iterator[Reader]:
    with paho(Reach("mqtt", port, Path()), "5", OWN) as peer:
        reader = Reader(port, peer, uncertain_s)
        for topic in TOPICS:
            peer.subscribe(topic, 1)
        wait_until(lambda: reader.filters() == set() and reader.log.is_live, "our own line", PATIENCE_S)
        yield reader
        assert reader.log.stats.unreadable == 0
        assert reader.log.stats.early == 0


@pytest.mark.parametrize("lines", OTHER_LOGS.values(), ids=list(OTHER_LOGS))
def test_the_first_subscriber_of_a_filter_and_the_last(
    mosquitto: StartMosquitto, lines: tuple[str, ...]
) -> None:
    with reading(mosquitto(*lines)) as reader:
        with reader.client("one") as one, reader.client("number two") as two:
            one.subscribe("field/+/soil", 1)
            two.subscribe("field/+/soil", 2)
            two.subscribe("a b", 0)
            reader.expect("field/+/soil", "a b")
            one.unsubscribe("field/+/soil")
            reader.expect("field/+/soil", "a b")
            two.unsubscribe("a b")
            reader.expect("field/+/soil")
            two.unsubscribe("field/+/soil")
            reader.expect()
        assert reader.log.stats.notices > 0


def test_a_log_that_is_not_published_is_not_live(mosquitto: StartMosquitto) -> None:
    with paho(Reach("mqtt", mosquitto(), Path()), "5", OWN) as peer:
        log = SubscriptionLog(OWN)
        for topic in TOPICS:
            peer.subscribe(topic, 1)
        peer.subscribe("after", 1)
        peer.publish_and_wait("after", "1")
        wait_until(lambda: bool(peer.inbox), "the message", PATIENCE_S)
        assert [message.topic for message in peer.inbox] == ["after"]
        assert not log.is_live


@every_version
@pytest.mark.parametrize("client_id", ["dev", "my dev", "dev 1 x"])
def test_a_clean_session_ends_with_its_connection(
    mosquitto: StartMosquitto, version: str, client_id: str
) -> None:
    with reading(mosquitto(*LOG), uncertain_s=0.0) as reader:
        with reader.client(client_id, version) as client:
            client.subscribe("field/#", 1)
            client.subscribe("$SYS/broker/uptime", 1)
            reader.expect("field/#")
        reader.expect()


@every_version
def test_a_persistent_session_keeps_its_subscriptions(mosquitto: StartMosquitto, version: str) -> None:
    with reading(mosquitto(*LOG), uncertain_s=0.0) as reader:
        with reader.client("dev", version, clean=False, expiry_s=3600) as client:
            client.subscribe("field/#", 1)
        reader.expect("field/#")
        with reader.client("dev", version, clean=False, expiry_s=3600) as client:
            assert client.session_present or version == "3.1"
            reader.expect("field/#")
            client.unsubscribe("field/#")
            reader.expect()


def test_a_clean_start_ends_what_was_there(mosquitto: StartMosquitto) -> None:
    with reading(mosquitto(*LOG)) as reader:
        with reader.client("dev", clean=False) as client:
            client.subscribe("field/#", 1)
        with reader.client("dev"):
            reader.expect()


def test_an_expired_session_ends(mosquitto: StartMosquitto) -> None:
    with reading(mosquitto(*LOG)) as reader:
        with reader.client("dev", "5", clean=False, expiry_s=1) as client:
            client.subscribe("field/#", 1)
        reader.expect("field/#")
        wait_until(lambda: not reader.filters(), "the session to expire", PATIENCE_S)


def test_a_session_that_began_clean_is_remembered(mosquitto: StartMosquitto) -> None:
    """MQTT 5: clean at the first connection, kept between connections."""
    with reading(mosquitto(*LOG), uncertain_s=0.0) as reader:
        with reader.client("dev", "5", expiry_s=3600) as client:
            client.subscribe("field/#", 1)
            reader.expect("field/#")
        reader.expect()
        with reader.client("dev", "5", clean=False, expiry_s=3600) as client:
            assert client.session_present
            reader.expect("field/#")


@every_version
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "persistent"])
def test_a_connection_that_is_taken_over(mosquitto: StartMosquitto, version: str, clean: bool) -> None:
    port = mosquitto(*LOG)
    with reading(port, uncertain_s=0.0) as reader, reader.client("dev", version, clean, 3600) as old:
        old.client.on_disconnect = lambda client, *_: client.disconnect()
        old.subscribe("old", 1)
        reader.expect("old")
        with reader.client("dev", version, clean, 3600) as new:
            new.subscribe("new", 1)
            wait_until(lambda: not old.client.is_connected(), "the old one to be closed", PATIENCE_S)
            reader.expect(*(["new"] if clean else ["old", "new"]))


def test_a_client_that_vanishes_with_a_will(mosquitto: StartMosquitto) -> None:
    with reading(mosquitto(*LOG)) as reader:
        with reader.client("dev") as client:
            client.subscribe("field/#", 1)
            reader.expect("field/#")
            connection = client.client.socket()
            assert isinstance(connection, socket.socket)
            connection.shutdown(socket.SHUT_RDWR)
            client.client.on_disconnect = lambda client, *_: client.disconnect()
            wait_until(lambda: not reader.filters(), "the departure", PATIENCE_S)
        reader.vanish("other", "3.1.1")
        reader.expect()


def test_shared_subscriptions(mosquitto: StartMosquitto) -> None:
    with reading(mosquitto(*LOG)) as reader, reader.client("dev", "5") as client:
        client.subscribe("$share/group/field/#", 1)
        reader.expect("field/#")
        client.subscribe("field/#", 1)
        client.unsubscribe("$share/group/field/#")
        reader.expect("field/#")
        client.unsubscribe("field/#")
        reader.expect()


IMITATIONS = [
    "victim disconnected.",
    "victim disconnected: x",
    "1700000000: victim",
    "New client connected from 127.0.0.1:1 as victim (p4, c1, k60).",
    "x (p4, c1, k60, u'y",
    "victim (p4, c1, k60).",
    "victim (p4, c1, k60, u'y",
    "victim 0 field",
    "victim field",
    "victim ",
    " victim",
    "victim due to timeout.",
    "Ω victim ☃",
]
# The broker cuts the line about the connection of the first, and calls everybody the second who was refused.
# When such clients end cannot be known.
WITHOUT_END = ["victim" + "x" * 950, "<unknown>"]


def test_clients_whose_names_imitate_the_log(mosquitto: StartMosquitto) -> None:
    with reading(mosquitto(*LOG)) as reader, reader.client("victim") as victim:
        victim.subscribe("field", 1)
        for hostile_id in IMITATIONS + WITHOUT_END:
            with reader.client(hostile_id) as hostile:
                for topic_filter in ("x", "field", "field 0 x", "x victim field", " ", "x 0 field"):
                    hostile.subscribe(topic_filter, 1)
                    hostile.unsubscribe(topic_filter)
                hostile.subscribe("x", 1)
            with reader.client(hostile_id, clean=False):
                pass
            reader.vanish(hostile_id, "3.1.1")
            reader.expect("field", *(["x"] if hostile_id in WITHOUT_END else []))
        victim.unsubscribe("field")
        reader.expect("x")
        assert reader.log.stats.cut > 0


def test_a_refused_client_takes_nothing_from_the_one_whose_name_it_uses(
    mosquitto: StartMosquitto, tmp_path: Path
) -> None:
    passwords = tmp_path / "passwords"
    passwords.write_text("")
    passwords.chmod(0o600)
    with (
        reading(mosquitto(*LOG, "allow_anonymous true", f"password_file {passwords}")) as reader,
        reader.client("victim") as victim,
    ):
        victim.subscribe("field/#", 1)
        with socket.create_connection(("127.0.0.1", reader.port)) as stranger:
            stranger.sendall(bytes.fromhex("1018 0004 4d515454 04 c2 003c 0006 76696374696d 0001 78 0001 79"))
            assert stranger.recv(100) == bytes.fromhex("20020005")
            assert stranger.recv(100) == b""
        reader.expect("field/#")
