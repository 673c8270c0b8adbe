"""Wire vectors: what goes over the wire, byte by byte, with the clauses that say so.

The files are tests/vectors/*.toml; each vector has a title, its clauses by protocol version (it runs
once for each version named), and a list of steps:

    a connects                  send a CONNECT with a clean start, and see it accepted
    a begins                    the same for a session that is kept, of which there is none yet
    a resumes                   the same for a session that is kept and must be present
    b resumes as a              … with the client identifier of `a`; `key=value` add to the CONNECT
    a subscribes "~/t" 01       send a SUBSCRIBE for one filter with these options, and see it granted
    a > 30 [ "~/t" % `hi` ]     send these bytes; a connection is opened by its first step
    a < 30 [ "~/t" % `hi` ]     the next packet is this one
    a closes                    the broker closes the connection, and sends nothing before
    a silent                    nothing comes: the answer to a PINGREQ is the next packet
    a drops                     the client closes the connection without a word
    wait 3                      seconds pass
    5| a < e0 [ 82 ... ]        … a step for MQTT 5 alone; `34|` for the older ones

Bytes are hexadecimal; `00*300` repeats one; "text" is a UTF-8 string with its length, `text` is the
text alone; [ … ] has the length of what is inside before it, as a variable byte integer, and { … } as
two bytes; % is "no properties" (one byte in MQTT 5, nothing before it); @ is the protocol's name and
version; ~ inside text is a tag that differs from run to run, so that vectors share a broker. In what is
expected, `..` is any byte and `...` any bytes up to the end of the enclosing bracket.

`core_only` says why a vector cannot run live. `mosquitto` says by version how Mosquitto differs, in words
or by a name from the file's table of reasons, and then it must; `saw` is what that looks like.
"""

from __future__ import annotations

import re
import tomllib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hedgerow.message import Properties
from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import MQTT_3_1, MQTT_5, Connect
from hedgerow.mqtt.wire import PROTOCOL_NAMES
from tests.broker.harness import Client, World

FOLDER = Path(__file__).resolve().parents[1] / "vectors"
FIELDS = {"clauses", "core_only", "mosquitto", "steps", "title"}
EXPIRY_S = 1_000

TOKEN = re.compile(
    r'\s*(?:(?P<string>"[^"]*")|(?P<text>`[^`]*`)|(?P<rest>\.\.\.)|(?P<any>\.\.)|(?P<mark>[][{}%@])'
    r"|(?P<repeated>[0-9a-f]{2}\*\d+)|(?P<hex>(?:[0-9a-f]{2})+))"
)


@dataclass(frozen=True)
class Vector:
    title: str
    clauses: str
    version: int
    steps: tuple[str, ...]
    core_only: str | None
    mosquitto: str | None
    saw: str = ""  # what the disagreement with Mosquitto looks like

    def __str__(self) -> str:
        return f"{self.clauses} v{self.version}: {self.title}"


def load() -> list[Vector]:
    """All vectors, one for each version that they name."""
    return [vector for path in sorted(FOLDER.glob("*.toml")) for vector in _read(path)]


def _read(path: Path) -> Iterator[Vector]:
    content = tomllib.loads(path.read_text())
    reasons = content.get("mosquitto", {})
    for entry in content["vector"]:
        unknown = entry.keys() - FIELDS
        assert not unknown, f"{path.name}: {unknown}"
        for version, clauses in entry["clauses"].items():
            differs = entry.get("mosquitto", {}).get(version)
            reason = reasons.get(differs, differs)
            if not isinstance(reason, dict):
                reason = {"why": reason}
            yield Vector(
                entry["title"],
                clauses,
                int(version),
                tuple(_for_version(entry["steps"], version)),
                entry.get("core_only"),
                reason["why"],
                reason.get("saw", ""),
            )


def _for_version(steps: list[str], version: str) -> Iterator[str]:
    for step in steps:
        versions, mark, rest = step.partition("| ")
        if not mark or not versions.isdigit():
            yield step
        elif version in versions:
            yield rest


# The notation.


@dataclass(frozen=True)
class Group:
    """What stands in brackets."""

    length: str  # "[": variable byte integer, "{": two bytes
    items: tuple[Any, ...]  # bytes, Group, ANY or REST


ANY = object()
REST = object()


def parse(text: str, version: int, tag: str) -> tuple[Any, ...]:
    items: list[Any] = []
    stack: list[tuple[str, list[Any]]] = []
    position = 0
    text = text.strip()
    while position < len(text):
        token = TOKEN.match(text, position)
        assert token is not None, f"not in the notation: {text[position:]}"
        position = token.end()
        value = token[0].strip()
        if value in ("[", "{"):
            stack.append((value, items))
            items = []
        elif value in ("]", "}"):
            length, outer = stack.pop()
            assert {"[": "]", "{": "}"}[length] == value
            outer.append(Group(length, tuple(items)))
            items = outer
        else:
            items.append(_plain(token, value, version, tag))
    assert not stack, f"a bracket is not closed: {text}"
    return tuple(items)


def _plain(token: re.Match[str], value: str, version: int, tag: str) -> Any:
    if token["string"]:
        data = value[1:-1].replace("~", tag).encode()
        return len(data).to_bytes(2, "big") + data
    if token["text"]:
        return value[1:-1].replace("~", tag).encode()
    if token["repeated"]:
        byte, count = value.split("*")
        return bytes.fromhex(byte) * int(count)
    if token["hex"]:
        return bytes.fromhex(value)
    if value == "%":
        return b"\0" if version == MQTT_5 else b""
    if value == "@":
        name = PROTOCOL_NAMES[version].encode()
        return len(name).to_bytes(2, "big") + name + bytes((version,))
    return REST if token["rest"] else ANY


def build(items: tuple[Any, ...]) -> bytes:
    """The bytes to send."""
    pieces: list[bytes] = []
    for item in items:
        if isinstance(item, Group):
            inner = build(item.items)
            is_variable = item.length == "["
            pieces += (
                codec.encode_remaining_length(len(inner)) if is_variable else len(inner).to_bytes(2, "big"),
                inner,
            )
        else:
            assert isinstance(item, bytes), "only what is expected may be left open"
            pieces.append(item)
    return b"".join(pieces)


def agrees(items: tuple[Any, ...], data: bytes) -> bool:
    """Are these the bytes that were expected?"""
    position = 0
    for item in items:
        if item is REST:
            return True
        if item is ANY:
            position += 1
        elif isinstance(item, Group):
            start, end = _bounds(item, data, position)
            if end > len(data) or not agrees(item.items, data[start:end]):
                return False
            position = end
        elif data.startswith(item, position):
            position += len(item)
        else:
            return False
        if position > len(data):
            return False
    return position == len(data)


def _bounds(group: Group, data: bytes, position: int) -> tuple[int, int]:
    if group.length == "[":
        return codec.read_header(data, position - 1) or (0, len(data) + 1)
    start = position + 2
    return start, start + int.from_bytes(data[position:start], "big")


# Running a vector.


class Broker(Protocol):
    """A broker, near or far, with connections by name."""

    async def open(self, name: str) -> None: ...
    async def send(self, name: str, data: bytes) -> None: ...
    async def receive(self, name: str) -> bytes | None:
        """The next packet; b"" when the broker has closed the connection, None when nothing comes."""

    async def drop(self, name: str) -> None: ...
    async def wait(self, seconds: float) -> None: ...


class DisagreementError(AssertionError):
    """The broker did something else than the vector says."""


class Run:
    """One vector on one broker."""

    def __init__(self, vector: Vector, broker: Broker, tag: str) -> None:
        self.vector = vector
        self.version = vector.version
        self.broker = broker
        self.tag = tag
        self.open: set[str] = set()
        self.accepted: set[str] = set()  # a PINGREQ on these is answered
        self.unread: dict[str, deque[bytes]] = {}

    async def run(self) -> None:
        for step in self.vector.steps:
            try:
                await self._step(step)
            except DisagreementError as disagreement:
                raise DisagreementError(f"{self.vector}\n  at step: {step}\n  {disagreement}") from None

    async def _step(self, step: str) -> None:
        if step.startswith("wait "):
            await self.broker.wait(float(step.removeprefix("wait ")))
            return
        name, verb, *rest = step.split(maxsplit=2)
        argument = rest[0] if rest else ""
        if name not in self.open:
            self.open.add(name)
            self.unread[name] = deque()
            await self.broker.open(name)
        if verb == ">":
            await self.broker.send(name, build(self._parse(argument)))
        elif verb == "<":
            await self._expect(name, argument)
        elif verb in ("connects", "begins", "resumes"):
            await self._connect(name, verb, argument)
        elif verb == "subscribes":
            topic_filter, options = argument.rsplit(maxsplit=1)
            await self.broker.send(name, build(self._parse(f"82 [ 00fe % {topic_filter} {options} ]")))
            await self._expect(name, f"90 [ 00fe % {int(options, 16) & 3:02x} ]")
        elif verb == "closes":
            await self._expect_close(name)
        elif verb == "silent":
            await self._expect_silence(name)
        else:
            assert verb == "drops", f"not a step: {step}"
            self._forget(name)
            await self.broker.drop(name)

    def _parse(self, text: str) -> tuple[Any, ...]:
        return parse(text, self.version, self.tag)

    def _forget(self, name: str) -> None:
        self.open.discard(name)
        self.accepted.discard(name)

    async def _connect(self, name: str, verb: str, argument: str) -> None:
        words = argument.split()
        client = words[words.index("as") + 1] if "as" in words else name
        packet = Connect(self.tag + client, self.version, clean_start=verb == "connects", keep_alive=60)
        properties: dict[str, Any] = {"session_expiry_interval": EXPIRY_S} if verb != "connects" else {}
        for word in words:
            if "=" in word:
                key, value = word.split("=")
                properties[key] = int(value)
        packet.keep_alive = properties.pop("keep_alive", packet.keep_alive)
        packet.properties = self._properties(properties)
        await self.broker.send(name, codec.encode(packet, self.version))
        present = verb == "resumes" and self.version != MQTT_3_1
        await self._expect(name, f"20 [ {present:02x} 00 ... ]")
        self.accepted.add(name)

    def _properties(self, properties: dict[str, Any]) -> Properties:
        return properties if self.version == MQTT_5 else {}  # type: ignore[return-value]

    async def _next(self, name: str) -> bytes | None:
        return self.unread[name].popleft() if self.unread[name] else await self.broker.receive(name)

    async def _expect(self, name: str, text: str) -> None:
        packet = await self._next(name)
        if packet is None:
            raise DisagreementError("nothing came")
        if packet == b"":
            raise DisagreementError("the broker closed the connection instead")
        if not agrees(self._parse(text), packet):
            raise DisagreementError(f"came: {packet.hex(' ')} ({packet!r})")
        if packet[0] == 0x20 and packet[3] == 0:
            self.accepted.add(name)

    async def _expect_close(self, name: str) -> None:
        packet = await self._next(name)
        if packet is None:
            raise DisagreementError("the connection stayed open")
        if packet:
            raise DisagreementError(f"came: {packet.hex(' ')} ({packet!r})")
        self._forget(name)
        await self.broker.drop(name)

    async def _expect_silence(self, name: str) -> None:
        # First the others: what they sent has then been handled, and has been sent on.
        for other in sorted(self.accepted - {name}):
            await self._ping(other)
        await self._ping(name)
        if self.unread[name]:
            packet = self.unread[name][0]
            raise DisagreementError(f"came: {packet.hex(' ')} ({packet!r})" if packet else "it closed")

    async def _ping(self, name: str) -> None:
        """Read up to the answer to a PINGREQ; what comes before it stays to be read."""
        if b"" in self.unread[name]:
            return
        await self.broker.send(name, b"\xc0\x00")
        while (packet := await self.broker.receive(name)) != b"\xd0\x00":
            if packet is None:
                raise DisagreementError(f"{name} got no PINGRESP")
            self.unread[name].append(packet)
            if packet == b"":
                return


class Core:
    """The machine itself, in virtual time."""

    def __init__(self) -> None:
        self.world = World()
        self.clients: dict[str, Client] = {}

    async def open(self, name: str) -> None:
        self.clients[name] = self.world.open()

    async def send(self, name: str, data: bytes) -> None:
        if not self.clients[name].closed:
            self.clients[name].send_bytes(data)

    async def receive(self, name: str) -> bytes | None:
        client = self.clients[name]
        if client.has_bytes:
            return client.take_raw_packet()
        return b"" if client.closed else None

    async def drop(self, name: str) -> None:
        if not self.clients[name].closed:
            self.clients[name].lose()

    async def wait(self, seconds: float) -> None:
        self.world.advance(seconds)
