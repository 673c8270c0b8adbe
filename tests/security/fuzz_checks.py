"""Any bytes in the protocols between nodes: no exception leaves a machine, and its tables are bounded.

Each check makes steps of any bytes (`Steps`), for hypothesis in the test run and for `make fuzz`: some of the
bytes stand where a well-formed beginning has been put before them, so that they reach what is behind it.
What can be read can be written, and is then read the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any, TypeVar

from hedgerow.bridges import stamp_codec
from hedgerow.bridges.admission import ADMITTED_TOPIC, ASK_TOPIC, KNOWN_TOPIC
from hedgerow.bridges.attendance import CARRIER_TOPIC, IDENTITY_TOPIC
from hedgerow.bridges.commands import DELETE_BRIDGE, NEW_BRIDGE
from hedgerow.bridges.section import read_section
from hedgerow.bridges.stamp_tables import StampBounds
from hedgerow.bridges.stamps import ANSWER_TOPIC, QUESTION_TOPIC, STAMPS_TOPIC, Stamps
from hedgerow.errors import ConfigError
from hedgerow.federation.document import wire as document
from hedgerow.federation.document.data_log import DataLog
from hedgerow.federation.document.federator import DocumentFederator
from hedgerow.federation.document.neighbours import DocumentPeer
from hedgerow.federation.mesh import wire as mesh
from hedgerow.federation.mesh.federator import Federator
from hedgerow.federation.mesh.limits import MeshBounds
from hedgerow.federation.mesh.wire import MeshKind
from hedgerow.federation.overlay import limits as overlay_limits
from hedgerow.federation.overlay import wire as overlay
from hedgerow.federation.overlay.limits import OverlaySettings
from hedgerow.federation.overlay.overlay import Overlay
from hedgerow.federation.overlay.wire import OverlayKind, Peer
from hedgerow.federation.tunnel import frames
from hedgerow.federation.tunnel.tunnels import MAX_HALF_OPEN
from hedgerow.message import Message, MessageId
from hedgerow.mobility.delegation import codec as delegation
from hedgerow.mobility.delegation.fixed import FixedSide
from hedgerow.mobility.delegation.mobile import MobileSide
from hedgerow.mobility.delegation.notifier import Matched
from hedgerow.mobility.delegation.publications import (
    ACKNOWLEDGEMENTS,
    CONTENT,
    EVENTS,
    FROM_FIXED,
    FROM_MOBILE,
    HelloBody,
    PublicationKind,
    StreamHeader,
)
from hedgerow.web.status import read_meshes, read_status
from tests.bridges.test_commands import Scene
from tests.federation.mesh.test_wire import ENTRIES
from tests.federation.tunnel.carrier import DIALLER, FEDERATOR, KEY, Carrier
from tests.mobility.delegation.world import DOMAIN

T = TypeVar("T")

MAX_STEPS = 40
NEIGHBOURS = ("n", "m")
BOUNDS = MeshBounds(cores=20, filters=100, memberships=50)
STAMPS = StampBounds(held=8, held_bytes=8_192, unmatched=8, values=8)


class Steps:
    """Any bytes, as choices and as what somebody sends."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self._left = MAX_STEPS

    def next(self) -> bool:
        self._left -= 1
        return self._left >= 0 and self._position < len(self._data)

    def number(self, below: int) -> int:
        return int.from_bytes(self.take(1), "big") % below

    def pick(self, values: Sequence[T]) -> T:
        return values[self.number(len(values))]

    def take(self, count: int) -> bytes:
        self._position += count
        return self._data[self._position - count : self._position]

    def text(self) -> bytes:
        """With its length before it; of any length up to 1,020 bytes."""
        return self.take(4 * self.number(256))


def read_again(
    data: bytes, read: Callable[[bytes], Any], write: Callable[[Any], bytes], refusal: type[Exception]
) -> None:
    try:
        found = read(data)
    except refusal:
        return
    assert read(write(found)) == found


# Federators that are not ours


def check_document(data: bytes) -> None:
    steps = Steps(data)
    peers = [DocumentPeer("a", 2, "a"), DocumentPeer("b")]
    machine = DocumentFederator(1, peers, DataLog(64 * 1024, 1.0), token=lambda: 0)
    speakers = ("user:a", "site:b", None)
    machine.set_wanted("t/#", True, 0.0)
    now = 1.0
    while steps.next():
        match steps.number(8):
            case 0:
                now += steps.pick((0.01, 0.5, 20.0))
                machine.handle_timer(now)
            case 1:
                address = steps.pick(("a", "b"))
                machine.unlinked(address)
                machine.linked(address, now)
            case 2:
                machine.set_wanted(steps.pick(("t/1", "+/2")), bool(steps.number(2)), now)
            case 3:
                machine.receive(
                    steps.text().decode(errors="replace"), steps.text(), steps.pick(speakers), now
                )
            case _:
                topic = steps.pick(document.PREFIXES) + steps.pick(
                    ("t/1", "t/2", "hedgerow/neighbour/1/0", "")
                )
                numbers = b"".join(steps.number(6).to_bytes(4, "little") for _ in range(steps.number(5)))
                machine.receive(topic, numbers + steps.text(), steps.pick(speakers), now)
        for packet in machine.take_packets():
            document.decode(packet.topic, packet.payload)
        machine.take_publications()
        machine.take_listens()
        assert len(list(machine.meshes)) <= MAX_STEPS
        assert machine.deadline > now - 20.0


# Federation: announcements of meshes, and the overlay


def check_federation(data: bytes) -> None:
    read_again(data, _read_mesh, _write_mesh, mesh.WireError)
    for key in (None, KEY):
        read_again(
            data,
            lambda each, key=key: overlay.decode(each, key, "n", "me"),  # type: ignore[misc]
            lambda found, key=key: overlay.encode(found[0], found[1], key, "n", "me"),  # type: ignore[misc]
            overlay.PacketError,
        )
    _check_federator(Steps(data))
    _check_overlay(Steps(data))


def _read_mesh(data: bytes) -> tuple[MeshKind, list[Any]]:
    kind, entries = mesh.decode(data)
    if kind in (
        MeshKind.CORE_ANN,
        MeshKind.PART_ANN,
    ):  # Lifetimes that no federator takes are not written as they were read.
        entries = [each for each in entries if 0 < each.lifetime_s < 1e6]  # type: ignore[union-attr]
    return kind, entries


def _write_mesh(found: tuple[MeshKind, list[Any]]) -> bytes:
    kind, entries = found
    return mesh.encode_packet(kind, map(ENTRIES[kind][1], entries))


def _check_federator(steps: Steps) -> None:
    machine, now = Federator("5", 0.0, random=lambda: 0.5, bounds=BOUNDS), 1.0
    for neighbour in NEIGHBOURS:
        may_learn = (lambda topic_filter: topic_filter < "m") if neighbour == NEIGHBOURS[-1] else None
        machine.add_neighbour(neighbour, 0.0, may_learn)
    machine.subscribe("a/#", 0.0)
    while steps.next():
        neighbour = steps.pick(NEIGHBOURS)
        match steps.number(8):
            case 0:
                now += steps.pick((0.01, 0.5, 20.0))
                machine.handle_timer(now)
            case 1:
                machine.remove_neighbour(neighbour, now)
                machine.add_neighbour(neighbour, now)
            case 2:
                machine.receive(neighbour, steps.text(), now)
            case _:
                head = bytes((mesh.VERSION, steps.pick(tuple(MeshKind))))
                machine.receive(neighbour, head + steps.text(), now)
        machine.take_changes()
        for _, packet in machine.take_packets():
            mesh.decode(packet)
        assert machine.core_count <= BOUNDS.cores + 1
        assert machine.filter_count <= BOUNDS.filters + len(NEIGHBOURS) * BOUNDS.memberships + 1


def _check_overlay(steps: Steps) -> None:
    now, sequence = 1_700_000_000.0, 1 << 32
    machine = Overlay(Peer("me", ("mqtt://me",)), now, epoch=1, random=Random(0).random)
    for neighbour in NEIGHBOURS:
        machine.connected(Peer(neighbour, ()), 0.01, now)
    while steps.next():
        neighbour = steps.pick(NEIGHBOURS)
        match steps.number(8):
            case 0:
                now += steps.pick((0.01, 1.0, 60.0))
                machine.handle_timer(now)
            case 1:
                machine.lost(Peer(neighbour, ()), now)
                machine.connected(Peer(neighbour, ()), 0.01, now)
            case 2:
                machine.receive(neighbour, steps.text(), now)
            case _:
                sequence += 1
                packet = overlay.OverlayPacket(steps.pick(tuple(OverlayKind)), steps.number(4))
                written = overlay.encode(packet, sequence, None, neighbour, "me")
                peers, count = steps.text(), steps.number(4)
                machine.receive(neighbour, written[:-1] + bytes([count]) + peers, now)
        for _, payload in machine.take_packets():
            overlay.decode(payload, None, "me", "")
        assert len(machine.take_connects()) <= overlay_limits.MAX_DIALS
        machine.take_disconnects()
        machine.take_events()
        assert len(machine.passive) <= OverlaySettings().passive_at_most


# Tunnels


def check_tunnel(data: bytes) -> None:
    plain, sealed = frames.Seal(None), frames.Seal(KEY)
    for seal in (plain, sealed):
        read_again(
            data,
            frames.decode,
            lambda frame, seal=seal: frames.encode(frame, seal),  # type: ignore[misc]
            frames.TunnelFrameError,
        )
    steps = Steps(data)
    has_key = steps.number(2) == 1
    carrier = Carrier(KEY if has_key else None, max_frame_bytes=4_000)
    carrier.dial()
    while steps.next():
        receiver = steps.pick((DIALLER, FEDERATOR))
        match steps.number(8):
            case 0:
                carrier.advance(steps.pick((0.001, 0.5, 5.0)))
            case 1:
                carrier.nodes[receiver].receive(steps.text(), carrier.now)
            case 2:
                carrier.carry(receiver)
            case 3:
                to, frame = steps.pick(carrier.carried)
                carrier.nodes[to].receive(_changed(frame, steps), carrier.now)
            case _:
                kind = steps.pick(tuple(frames.TunnelFrameKind))
                _, frame = steps.pick(carrier.carried)
                number = frames.decode(frame).number
                head = frames.head(kind, receiver == DIALLER, number, steps.pick((DIALLER, FEDERATOR)), plain)
                carrier.nodes[receiver].receive(head + steps.text(), carrier.now)
        carrier.collect()
        for node in carrier.nodes.values():
            assert node.half_open <= MAX_HALF_OPEN
            assert node.session_count <= MAX_HALF_OPEN + node.max_tunnels
    if has_key:
        assert not any(carrier.arrived.values()), "a stranger without the key has written into a stream"


def _changed(frame: bytes, steps: Steps) -> bytes:
    """One byte of what an honest node wrote is another one, or what is behind it."""
    at = steps.number(256) % len(frame)
    return frame[:at] + steps.text() + frame[at + 1 :]


# Delegation


def check_delegation(data: bytes) -> None:
    for kind in PublicationKind:
        events = " 0 1" if kind in EVENTS else ""
        pairs = (delegation.STREAM_PROPERTY, f"2 {kind} 1 1 1 1 1 1 0 0 0{events}"), ("hedgerow-id", "m/1/1")
        topic = delegation.topic_of(DOMAIN, "m1", kind)
        with suppress(delegation.CodecError):
            found = delegation.read(Message(topic, data, properties={"user_property": pairs}))
            assert delegation.read(delegation.write(DOMAIN, "m1", *found)) == found
    fixed = FixedSide("f1", DOMAIN, 1, lambda mobile_id: True)
    fixed.link_up("m1")
    fixed.link_up("m2")
    fixed.client_attached("b@m2", 1.0)
    _check_side(fixed, "m1", sorted(FROM_MOBILE), Steps(data))
    assert fixed.mobiles["m1"].entries == sum(map(len, fixed.mobiles["m1"].topics.values()))
    mobile = MobileSide("m1", DOMAIN, 1)
    mobile.subscribe("a@m1", "field/#", 1, 1.0)
    mobile.move_to("f1", 1.0)
    mobile.link_up("f1")
    mobile.publish(Message("field/1", b"", 1, id=MessageId("m1", 1, 1)), Matched(), 1.0)
    _check_side(mobile, "f1", sorted(FROM_FIXED), Steps(data))
    assert list(mobile.registries.by_filter) == ["field/#"]


def _check_side(
    side: FixedSide | MobileSide, sender: str, kinds: Sequence[PublicationKind], steps: Steps
) -> None:
    now, numbers = 1.0, {True: 0, False: 0}
    header, body = StreamHeader(9, 0, 1, 0, 0), HelloBody(0, 0)
    hello = delegation.write(DOMAIN, sender, PublicationKind.HELLO, header, body)
    side.receive_publication(sender, hello, now)
    while steps.next():
        kind = steps.pick(kinds)
        topic = delegation.topic_of(DOMAIN, sender, kind)
        match steps.number(8):
            case 0:
                now += steps.pick((0.1, 5.0, 100_000.0))
                side.handle_timer(now)
            case 1:
                side.receive_publication(sender, Message(topic, steps.text()), now)
            case 2:
                side.link_down(sender, now)
                side.link_up(sender)
                side.receive_publication(sender, hello, now)
                numbers = {True: 0, False: 0}
            case _:
                numbers[kind in CONTENT] += kind not in ACKNOWLEDGEMENTS
                acknowledged = steps.number(4)
                header = StreamHeader(9, 1, 1, numbers[kind in CONTENT], acknowledged, acknowledged)
                events = " 0 1" if kind in EVENTS else ""
                text = f"{delegation.VERSION} {kind} 1 {' '.join(map(str, header))}{events}"
                pairs = ((delegation.STREAM_PROPERTY, text),)
                written = Message(topic, steps.text(), properties={"user_property": pairs})
                side.receive_publication(sender, written, now)
        for _, message in side.take_publications():
            delegation.read(message)
        for delivery in side.take_deliveries():
            assert not any(name.endswith("@m2") for name, _ in delivery.callbacks)
        side.take_events()


# What carriers at a foreign broker write


def check_stamps(data: bytes) -> None:
    read_again(data, stamp_codec.decode_presence, stamp_codec.encode_presence, ValueError)
    read_again(
        data, stamp_codec.decode_question, lambda found: stamp_codec.encode_question(*found), ValueError
    )
    read_again(data, stamp_codec.decode_ids, _write_ids, ValueError)
    read_again(data, stamp_codec.decode_stamps, _write_stamps, ValueError)
    steps, now = Steps(data), 1_000.0
    carrier = Stamps("one", 1, True, "0123456789abcdef01234567", ("#",), bounds=STAMPS)
    carrier.connected(now)
    carrier.receive_subscribed(now)
    while steps.next():
        match steps.number(6):
            case 0:
                now += steps.pick((0.01, 1.0, 30.0))
                carrier.handle_timer(now)
            case 1:
                carrier.receive_message(Message(steps.pick("abc"), steps.take(1)), None, now)
            case 2:
                carrier.note_sent(Message(steps.pick("abc"), steps.take(1), id=MessageId("x", 1, 1)), now)
            case _:
                topic = steps.pick(CONTROL_TOPICS)
                carrier.receive_control(topic, bytes([stamp_codec.VERSION]) + steps.text(), now)
        carrier.take_publications()
        carrier.take_identified()
        assert carrier.held_count <= STAMPS.held
        assert carrier.unmatched_count <= STAMPS.unmatched
        assert carrier.value_count <= STAMPS.values


CONTROL_TOPICS = (
    *(STAMPS_TOPIC, IDENTITY_TOPIC, CARRIER_TOPIC + "two", CARRIER_TOPIC + "one", CARRIER_TOPIC),
    *(QUESTION_TOPIC + "two", ANSWER_TOPIC + "one", ANSWER_TOPIC + "two"),
    *(ASK_TOPIC + "one", ADMITTED_TOPIC + "one", KNOWN_TOPIC + "one"),
)


def _write_ids(ids: list[MessageId]) -> bytes:
    return b"".join(stamp_codec.encode_ids(ids)) or bytes([stamp_codec.VERSION])


def _write_stamps(found: tuple[int, list[stamp_codec.Stamp], bool]) -> bytes:
    life, stamps, goes_before = found
    head = stamp_codec._HEAD.pack(stamp_codec.VERSION, goes_before, life)
    return b"".join(stamp_codec.encode_stamps(life, stamps, goes_before)) or head


# Commands to bridges


def check_commands(data: bytes) -> None:
    read_again(data, read_section, lambda section: section.to_text().encode(), ConfigError)
    read_again(data, read_section, lambda section: section.to_json().encode(), ConfigError)
    scene, steps = Scene(), Steps(data)
    commander, given = scene.commander(), 0
    while steps.next():
        topic = steps.pick((NEW_BRIDGE, NEW_BRIDGE, DELETE_BRIDGE))
        begin = steps.pick((b"", BEGIN, b'{"connection": "', b'{"connection": "n", "address": "h", "'))
        commander.publish(topic, begin + steps.text(), 1, properties={"correlation_data": b"x"})
        commander.take()
        scene.settle()
        given += 1
    # One outcome each, whatever it was.
    assert len(scene.take_results()) == given
    scene.commands.take_events()


BEGIN = b"connection n\naddress h\ntopic # both\n"


# What nodes tell of themselves


def check_status(data: bytes) -> None:
    steps = Steps(data)
    told = {"version": 1} | {name: _value(steps, 4) for name in STATUS_NAMES if steps.number(4)}
    for payload in (data, json.dumps(told).encode()):
        for read in (read_status, read_meshes):
            with suppress(ValueError):
                read(payload)


STATUS_NAMES = (
    *("number", "at", "software", "urls", "counts", "links", "hot", "events", "journal", "pipeline"),
    *("filters", "more_filters"),
)
PART_NAMES = ("kind", "name", "round_trip_ms", "queued", "out", "number", "at", "text", "core", "parents")
PLAIN = (None, True, 0, -1, 2**70, 1.5, 1e308, float("nan"), float("-inf"), "", "\0", "\ud800", "word")


def _value(steps: Steps, depth: int) -> object:
    """Any that JSON has."""
    match steps.number(4) if depth else 0:
        case 1:
            return [_value(steps, depth - 1) for _ in range(steps.number(4))]
        case 2 | 3:
            return {steps.pick(PART_NAMES): _value(steps, depth - 1) for _ in range(steps.number(6))}
    return steps.pick(PLAIN)


CHECKS: dict[str, Callable[[bytes], None]] = {
    "federation": check_federation,
    "document": check_document,
    "tunnel": check_tunnel,
    "delegation": check_delegation,
    "stamps": check_stamps,
    "commands": check_commands,
    "status": check_status,
}
