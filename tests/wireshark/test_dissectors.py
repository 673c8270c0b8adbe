"""Wireshark says of a packet what our own decoders say: tshark reads what was really sent, and both are
compared, field by field for good packets, and for cut and changed ones in whether they are accepted."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hedgerow.message import Message, MessageId
from hedgerow.multicast import frame
from hedgerow.multicast.frame import Flags, FrameError, FrameKind
from hedgerow.multicast.groups import ipv6_group, topic_crc
from hedgerow.multicast.keys import Keyring
from hedgerow.sensors import packet
from tests.wireshark.capture import Datagram, Dissected, dissect

MULTICAST_PORT = 18_514
BROKER_PORT = packet.DEFAULT_PORT
TOPIC = "farm/gate/öffnung"
SENDER = bytes.fromhex("00112233445566ff")
MEMBER = bytes.fromhex("a1a2a3a4a5a6a7a8")
GROUP = ipv6_group(TOPIC, scope=2)
SEED = 20_210_301


def of_protocol(dissected: Dissected, protocol: str) -> dict[str, Any]:
    """The fields of one of our protocols, by their short names; a flag is 0 or 1 in every version."""
    prefix = f"hedgerow.{protocol}."
    as_digit = {"True": "1", "False": "0"}
    fields = {name.removeprefix(prefix): value for name, value in dissected.fields.items() if prefix in name}
    return {
        name: as_digit.get(value, value) if isinstance(value, str) else value
        for name, value in fields.items()
    }


# Sensor packets.


def sensor_fields(data: bytes) -> dict[str, str] | None:
    """What our decoder says; None when it drops the packet."""
    parsed = packet.parse(data)
    if isinstance(parsed, packet.Malformed):
        return None
    fields = {"port": str(parsed.port), "role": str(parsed.role), "topic": str(parsed.topic)}
    return fields | ({"payload": parsed.payload.decode()} if parsed.payload else {})


def test_sensor_packets(tmp_path: Path) -> None:
    sent = [
        packet.build(12_346, packet.SUBSCRIBER, 1),
        packet.build(BROKER_PORT, packet.PUBLISHER, 1, b"21.5"),
        packet.build(BROKER_PORT, packet.PUBLISHER, 2, "3 m/s, böig".encode()),
        packet.build(65_535, packet.SUBSCRIBER, 99),
        b"12345",
        b"1234x101",
        b"00000101",
        b"65536101",
        b"12345201",
        b"123451x1",
        "١٢٣٤٥101".encode(),
        b"\xff" * 20,
    ]
    read = dissect(tmp_path, [Datagram(data, BROKER_PORT) for data in sent])
    for data, dissected in zip(sent, read, strict=True):
        expected = sensor_fields(data)
        assert dissected.protocol == "Sensor"
        assert dissected.is_malformed == (expected is None), (data, dissected)
        if expected is not None:
            assert of_protocol(dissected, "sensor") == expected
    assert read[0].info == "Subscribe to topic 01 (temperature) at port 12346"
    assert read[1].info == "Publish topic 01 (temperature): 21.5"
    assert read[4].info == "[Malformed: 5 bytes are shorter than the header of 8]"


def test_a_subscribers_port_is_learned_from_its_subscription(tmp_path: Path) -> None:
    text = b"only a text"
    read = dissect(
        tmp_path,
        [
            Datagram(text, 12_349, BROKER_PORT + 1),
            Datagram(packet.build(12_349, packet.SUBSCRIBER, 2), BROKER_PORT, 40_001),
            Datagram(text, 12_349, BROKER_PORT + 1),
            Datagram(packet.build(BROKER_PORT, packet.PUBLISHER, 2, b"7"), 12_349, BROKER_PORT + 1),
        ],
    )
    assert [dissected.protocol for dissected in read] == ["UDP", "Sensor", "Sensor", "Sensor"]
    assert [dissected.is_malformed for dissected in read] == [False, False, True, False]


def test_sensor_packets_on_other_ports_are_recognised_by_the_port_in_them(tmp_path: Path) -> None:
    broker, subscriber = 9_000, 9_001
    read = dissect(
        tmp_path,
        [
            Datagram(packet.build(broker, packet.PUBLISHER, 3, b"50 %"), broker),
            Datagram(packet.build(subscriber, packet.SUBSCRIBER, 3), 9_500, subscriber),
            Datagram(packet.build(9_600, packet.PUBLISHER, 3, b"50 %"), 9_700, 9_600),
            Datagram(b"20240101 is a date", 9_800, 9_801),  # port 20240, publisher, topic 01
            Datagram(b"20240001", 9_800, 9_801),
        ],
    )
    assert [dissected.protocol for dissected in read] == ["Sensor"] * 3 + ["UDP"] * 2


def test_a_port_can_be_named_by_the_user(tmp_path: Path) -> None:
    sent = [Datagram(packet.build(1, packet.PUBLISHER, 3, b"50 %"), 9_000)]
    (read,) = dissect(tmp_path, sent, "-d", "udp.port==9000,hedgerow.sensor")
    assert of_protocol(read, "sensor")["payload"] == "50 %"


# Multicast frames.


def data_frame(flags: int, rest: bytes, stream_sequence: int = 0, topic: str = TOPIC) -> bytes:
    header = frame.pack_header(FrameKind.DATA, flags, topic_crc(topic), SENDER, stream_sequence, 77)
    return header + rest


def message_frame(message: Message, published_at: float | None = None, more_flags: int = 0) -> bytes:
    flags, content = frame.pack_content(message, SENDER.hex(), published_at)
    return data_frame(flags | more_flags, content, 5)


def control_frame(kind: FrameKind, body: bytes = b"", topic: str | None = None) -> bytes:
    return frame.pack_header(kind, 0, topic_crc(topic) if topic else 0, SENDER, 9 if topic else 0) + body


def sealed_frame() -> bytes:
    keyring = Keyring({4_000_000_000: bytes(32)})
    return keyring.sealer(SENDER).seal(data_frame(Flags.TOPIC, b""), frame.pack_topic(TOPIC) + b"secret")


PROPERTIES: Any = {
    "payload_format_indicator": 1,
    "message_expiry_interval": 3_600,
    "content_type": "text/plain",
    "response_topic": "farm/answers",
    "correlation_data": b"\x00\xff",
    "user_property": (("unit", "°C"), ("unit", "K")),
}
FOREIGN_ID = MessageId("node-7", 3, frame.MAX_SEQUENCE)
# The first one announces the topic, so that the dissector knows it in all that follow.
FRAMES = {
    "topics": control_frame(FrameKind.TOPICS, frame.pack_names([TOPIC, "farm/well"])),
    "data": data_frame(0, b"open"),
    "data, empty": data_frame(0, b""),
    "data, topic": data_frame(Flags.TOPIC, frame.pack_topic(TOPIC) + b"open"),
    "data, QoS 1": message_frame(Message(TOPIC, b"open", 1)),
    "data, QoS 2": message_frame(Message(TOPIC, b"open", 2)),
    "data, retain": message_frame(Message(TOPIC, b"open", 0, True)),
    "data, held": message_frame(Message(TOPIC, b"open", 1, True), more_flags=Flags.HELD),
    "data, foreign": message_frame(Message(TOPIC, b"open", id=FOREIGN_ID)),
    "data, time": message_frame(Message(TOPIC, b"open"), 1_700_000_000.250001),
    "data, properties": message_frame(Message(TOPIC, b"open", properties=PROPERTIES)),
    "data, everything": message_frame(Message(TOPIC, b"open", 1, True, PROPERTIES, FOREIGN_ID), 1.5),
    "data, fragment": data_frame(Flags.FRAGMENT | Flags.QOS_1, frame.pack_fragment(2, 300, b"piece"), 8),
    "data, batch": data_frame(Flags.BATCH, frame.pack_batch([b"one", b"", b"three"])),
    "data, again": data_frame(Flags.AGE | Flags.QOS_1, frame.pack_age(1.5) + b"open", 8),
    "data, piece again": data_frame(
        Flags.AGE | Flags.FRAGMENT, frame.pack_age(0.25) + frame.pack_fragment(0, 2, b"piece"), 8
    ),
    "data, sealed": sealed_frame(),
    "heartbeat": control_frame(FrameKind.HEARTBEAT, frame.pack_heartbeat(3), TOPIC),
    "repair": control_frame(
        FrameKind.REPAIR,
        frame.pack_repair(frame.RepairRequest(MEMBER, frame.ANY_AGE, [(4, 1), (2**40, 9)])),
        TOPIC,
    ),
    "gone": control_frame(FrameKind.GONE, frame.pack_gone(frame.Gone(MEMBER, 2**63, 7)), TOPIC),
    "interest": control_frame(
        FrameKind.INTEREST, frame.pack_interest(frame.GroupInterest(True, ["farm/+/x", "#"]))
    ),
    "presence": control_frame(FrameKind.PRESENCE),
    "hello": control_frame(FrameKind.HELLO, frame.pack_hello(frame.Hello(b"12345678", True, ["farm/#"]))),
    "hello, nothing wanted": control_frame(
        FrameKind.HELLO, frame.pack_hello(frame.Hello(b"12345678", False, []))
    ),
    "welcome": control_frame(FrameKind.WELCOME, b"cookies!"),
    "challenge": control_frame(FrameKind.CHALLENGE, frame.pack_challenge(frame.Challenge(MEMBER, b"n" * 16))),
    "proof": control_frame(FrameKind.PROOF, frame.pack_challenge(frame.Challenge(MEMBER, b"n" * 16))),
    "leave": control_frame(FrameKind.LEAVE),
    "acknowledgement": control_frame(
        FrameKind.ACKNOWLEDGEMENT,
        frame.pack_acknowledgement(
            frame.Acknowledgement(MEMBER, 2**20, [(b"12345678", 2**40), (b"87654321", frame.CEASED)])
        ),
    ),
    "acknowledgement of nothing": control_frame(
        FrameKind.ACKNOWLEDGEMENT, frame.pack_acknowledgement(frame.Acknowledgement(MEMBER, 0, []))
    ),
    "ask": control_frame(FrameKind.ASK),
}


def colons(data: bytes) -> str:
    return data.hex(":")


def few(values: list[str]) -> Any:
    """As `Dissected.fields` has them: a list only when there are several."""
    return values[0] if len(values) == 1 else values


def named(name: str, values: list[str]) -> dict[str, Any]:
    return {name: few(values)} if values else {}


def property_texts(properties: Any) -> list[str]:
    texts = []
    for name, value in properties.items():
        if name == "user_property":
            texts += [f"{name} = {key}: {text}" for key, text in value]
        else:
            texts.append(f"{name} = {value.hex() if isinstance(value, bytes) else value}")
    return texts


NOT_IN_BATCH = Flags.FRAGMENT | Flags.FOREIGN | Flags.TIME | Flags.PROPERTIES | Flags.RETAIN | Flags.HELD


def data_fields(flags: int, body: bytes) -> dict[str, Any]:
    if flags & Flags.AGE:
        age_s, body = frame.parse_age(body)
        return {"age_ms": str(round(age_s * 1000))} | data_fields(flags & ~Flags.AGE, body)
    if flags & (Flags.QOS_1 | Flags.QOS_2) == Flags.QOS_1 | Flags.QOS_2:
        raise FrameError("QoS 3")
    if flags & Flags.BATCH and flags & NOT_IN_BATCH:
        raise FrameError("a flag that no batch may have")
    if flags & Flags.FRAGMENT:
        index, count, piece = frame.parse_fragment(body)
        return {"fragment.index": str(index), "fragment.count": str(count), "fragment.piece": colons(piece)}
    if flags & Flags.BATCH:
        return named("payload", [colons(payload) for payload in frame.parse_batch(body)])
    default_id = MessageId(SENDER.hex(), 0, 77)
    message = frame.parse_content(TOPIC, flags, default_id, body)
    fields: dict[str, Any] = {"payload": colons(message.payload)}
    if flags & Flags.FOREIGN:
        assert message.id is not None
        origin, epoch, sequence = message.id
        fields |= {"id.origin": origin, "id.epoch": str(epoch), "id.sequence": str(sequence)}
    if message.published_at is not None:
        fields["published_at"] = message.published_at
    return fields | named("property", property_texts(message.properties))


def repair_fields(body: bytes) -> dict[str, Any]:
    sender, newer_than_ms, ranges = frame.parse_repair(body)
    firsts, counts = [str(first) for first, _ in ranges], [str(count) for _, count in ranges]
    fields = {"stream_of": colons(sender), "newer_than_ms": str(newer_than_ms)}
    return fields | named("range.first", firsts) | named("range.count", counts)


def gone_fields(body: bytes) -> dict[str, Any]:
    gone = frame.parse_gone(body)
    return {"member": colons(gone.member), "last": str(gone.last), "missed": str(gone.messages)}


def acknowledgement_fields(body: bytes) -> dict[str, Any]:
    sender, window, streams = frame.parse_acknowledgement(body)
    fields = {"stream_of": colons(sender), "window": str(window)}
    return (
        fields
        | named("taken.topic", [colons(topic) for topic, _ in streams])
        | named("taken.last", [str(last) for _, last in streams])
    )


def interest_fields(body: bytes) -> dict[str, Any]:
    interest = frame.parse_interest(body)
    return {"wants_values": str(int(interest.wants_values))} | named("filter", interest.filters)


def hello_fields(body: bytes) -> dict[str, Any]:
    cookie, wants_copies, filters = frame.parse_hello(body)
    return {"cookie": colons(cookie), "wants_copies": str(int(wants_copies))} | named("filter", filters)


def challenge_fields(body: bytes) -> dict[str, Any]:
    member, nonce = frame.parse_challenge(body)
    return {"member": colons(member), "nonce": colons(nonce)}


BODY_FIELDS: dict[int, Callable[[bytes], dict[str, Any]]] = {
    FrameKind.HEARTBEAT: lambda body: {"oldest": str(frame.parse_heartbeat(body))},
    FrameKind.REPAIR: repair_fields,
    FrameKind.GONE: gone_fields,
    FrameKind.TOPICS: lambda body: named("topic", frame.parse_names(body, are_filters=False)),
    FrameKind.INTEREST: interest_fields,
    FrameKind.PRESENCE: lambda body: {},
    FrameKind.HELLO: hello_fields,
    FrameKind.WELCOME: lambda body: {"cookie": colons(frame.parse_welcome(body))},
    FrameKind.CHALLENGE: challenge_fields,
    FrameKind.PROOF: challenge_fields,
    FrameKind.LEAVE: lambda body: {},
    FrameKind.ACKNOWLEDGEMENT: acknowledgement_fields,
    FrameKind.ASK: lambda body: {},
}


def frame_fields(data: bytes) -> dict[str, Any]:
    """What our decoder says of a frame; FrameError when it drops it."""
    header = frame.parse_header(data)
    fields: dict[str, Any] = {
        "version": str(header.version),
        "kind": str(header.kind),
        "flags": f"0x{header.flags:04x}",
        "crc": f"0x{header.crc:08x}",
        "sender": colons(header.sender),
        "stream_sequence": str(header.stream_sequence),
        "sequence": str(header.message_sequence),
    }
    for flag in Flags:
        assert flag.name is not None
        fields[f"flags.{flag.name.lower()}"] = str(int(bool(header.flags & flag)))
    if header.crc == topic_crc(TOPIC):
        fields["topic"] = TOPIC
    body = data[frame.HEADER_BYTES :]
    if header.flags & Flags.SEALED:
        if len(body) < frame.SEAL_BYTES:
            raise FrameError("no sealed frame")
        key_id, counter = frame.SEAL.unpack_from(body)
        encrypted, tag = body[frame.SEAL.size : -frame.TAG_BYTES], body[-frame.TAG_BYTES :]
        seal = {"key_id": str(key_id), "counter": str(counter)}
        return fields | seal | {"encrypted": colons(encrypted), "tag": colons(tag)}
    if header.flags & Flags.TOPIC:
        fields["topic"], body = frame.parse_topic(body)
    if header.kind == FrameKind.DATA:
        return fields | data_fields(header.flags, body)
    return fields | BODY_FIELDS[header.kind](body)


def to_seconds(text: str) -> float:
    """tshark's UTC time with nanoseconds, in the words of its older versions or as ISO 8601."""
    text = text.removesuffix(" UTC").removesuffix("Z")[:-3]
    try:
        return datetime.strptime(text, "%b %d, %Y %H:%M:%S.%f").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def is_accepted(data: bytes) -> bool:
    try:
        frame_fields(data)
    except FrameError:
        return False
    return True


def multicast(frames: list[bytes], port: int = MULTICAST_PORT) -> list[Datagram]:
    return [Datagram(data, port, to=GROUP) for data in frames]


def test_the_frames_here_are_of_every_kind_and_flag() -> None:
    headers = [frame.parse_header(data) for data in FRAMES.values()]
    assert {header.kind for header in headers} == set(FrameKind)
    assert {flag for flag in Flags for header in headers if header.flags & flag} == set(Flags)


def test_every_kind_and_flag_of_multicast_frames(tmp_path: Path) -> None:
    read = dissect(tmp_path, multicast(list(FRAMES.values())))
    for (name, data), dissected in zip(FRAMES.items(), read, strict=True):
        fields = of_protocol(dissected, "multicast")
        fields.pop("properties", None)  # The same bytes again, as the parent of each property.
        if "published_at" in fields:
            fields["published_at"] = to_seconds(fields["published_at"])
        assert (name, fields) == (name, frame_fields(data))
        assert (name, dissected.protocol, dissected.is_malformed) == (name, "Hedgerow", False)
        assert dissected.info.startswith(FrameKind(data[1]).name)


def test_the_info_column(tmp_path: Path) -> None:
    expected = {
        "topics": f"TOPICS {TOPIC}, farm/well",
        "data, everything": f"DATA {TOPIC} #5 QoS 1 retain id node-7/3/{frame.MAX_SEQUENCE}, 4 bytes",
        "data, fragment": f"DATA {TOPIC} #8 QoS 1, fragment 3 of 300",
        "data, batch": f"DATA {TOPIC} QoS 0, 3 messages",
        "data, sealed": f"DATA {TOPIC}, encrypted with key 4000000000",
        "repair": f"REPAIR {TOPIC} #9 of a1a2a3a4a5a6a7a8: 4+1, 1099511627776+9",
        "hello": "HELLO, copies please: farm/#",
    }
    read = dissect(tmp_path, multicast([FRAMES[name] for name in expected]))
    assert [dissected.info for dissected in read] == list(expected.values())


def test_frames_are_recognised_on_another_port_and_then_held_to_the_rules(tmp_path: Path) -> None:
    frames = [FRAMES["data"], b"\x09" + FRAMES["data"][1:], b"short"]
    read = dissect(
        tmp_path,
        [Datagram(b"a text of more than thirty-two bytes", 9_000, to=GROUP), *multicast(frames, 9_001)],
    )
    assert [dissected.protocol for dissected in read] == ["UDP", "Hedgerow", "Hedgerow", "Hedgerow"]
    assert read[2].info == "[Malformed: version 9]"
    assert [dissected.is_malformed for dissected in read] == [False, False, True, True]


def test_what_the_capture_cut_off_is_not_the_senders_fault(tmp_path: Path) -> None:
    headers_bytes = 14 + 40 + 8  # Ethernet, IPv6, UDP
    frames = [FRAMES["gone"], FRAMES["gone"][:36]]
    read = dissect(tmp_path, multicast(frames), snap_bytes=headers_bytes + 36)
    assert [dissected.is_malformed for dissected in read] == [False, True]
    assert read[0].info.endswith("[cut short by the capture]")


def test_a_topic_that_is_not_the_crcs_is_shown_as_such(tmp_path: Path) -> None:
    right, wrong = (data_frame(Flags.TOPIC, frame.pack_topic(topic)) for topic in (TOPIC, "farm/well"))
    read = dissect(tmp_path, multicast([right, wrong]))
    assert ["hedgerow.multicast.wrong_crc" in dissected.fields for dissected in read] == [False, True]


def test_what_the_decoder_drops_is_malformed_and_nothing_else(tmp_path: Path) -> None:
    """Every frame cut at every place, and with a byte changed at random places."""
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    frames = [data[:end] for data in FRAMES.values() for end in range(1, len(data) + 1)]
    for data in FRAMES.values():
        for _ in range(40):
            at = chance.randrange(len(data))
            frames.append(data[:at] + bytes((chance.randrange(256),)) + data[at + 1 :])
    frames += [
        data_frame(Flags.QOS_1 | Flags.QOS_2, b""),
        data_frame(Flags.FRAGMENT, frame.pack_fragment(3, 3, b"x")),
        data_frame(Flags.FRAGMENT | Flags.QOS_1 | Flags.QOS_2, frame.pack_fragment(1, 3, b"x")),
        *(data_frame(Flags.BATCH | flag, frame.pack_batch([b"x"])) for flag in Flags if flag & NOT_IN_BATCH),
        data_frame(Flags.FRAGMENT, frame.pack_fragment(0, 1, b"x")),
        data_frame(Flags.TOPIC, frame.pack_topic("farm/#")),
        data_frame(Flags.TOPIC, frame.pack_topic("")),
        data_frame(Flags.TOPIC, b"\x00\x03\xed\xa0\x80"),  # A surrogate is no UTF-8.
        data_frame(Flags.TOPIC, b"\x00\x02\xc0\x80"),  # Nor is a NUL in two bytes.
        data_frame(Flags.TOPIC, frame.pack_topic("𐍈€")),
        control_frame(FrameKind.TOPICS, frame.pack_names(["/".join("a" * 201)])),
        control_frame(FrameKind.TOPICS, frame.pack_names(["/".join("a" * 200)])),
        control_frame(FrameKind.TOPICS, frame.pack_names(["a"] * frame.MAX_NAMES)),
        control_frame(FrameKind.TOPICS, frame.pack_names(["a"] * (frame.MAX_NAMES + 1))),
        control_frame(FrameKind.INTEREST, frame.pack_interest(frame.GroupInterest(False, ["a/#/b"]))),
        control_frame(FrameKind.INTEREST, frame.pack_interest(frame.GroupInterest(False, ["a/b+"]))),
        control_frame(FrameKind.INTEREST, frame.pack_interest(frame.GroupInterest(False, ["+/+", "/", "#"]))),
        control_frame(FrameKind.REPAIR, FRAMES["repair"][32:44] + bytes(10) * (frame.MAX_RANGES + 1), TOPIC),
        control_frame(FrameKind.REPAIR, FRAMES["repair"][32:44], TOPIC),
        data_frame(Flags.PROPERTIES, b"\x02\x01\x02"),  # payload format indicator 2
        data_frame(Flags.PROPERTIES, b"\x04\x01\x00\x01\x00"),  # twice
        data_frame(Flags.PROPERTIES, b"\x03\x23\x00\x01"),  # a topic alias
        data_frame(Flags.PROPERTIES, b"\x80\x00"),  # a length longer than needed
        data_frame(Flags.PROPERTIES, b"\x04\x08\x00\x01#"),  # a response topic with a wildcard
        data_frame(Flags.PROPERTIES, b"\x04\x03\x00\x01\x00"),  # U+0000
        data_frame(Flags.FOREIGN, b"\x41" + b"a" * 65 + bytes(16)),
        data_frame(Flags.FOREIGN, b"\x00" + bytes(16)),
        data_frame(Flags.FOREIGN, b"\x01a" + b"\x40" + bytes(15)),
        data_frame(Flags.FOREIGN, b"\x01a" + bytes(8) + b"\x40" + bytes(7)),
    ]
    # By loopback, where the longest ones are not cut into IP fragments.
    read = dissect(tmp_path, [Datagram(data, MULTICAST_PORT) for data in frames])
    wrong = [
        (data.hex(), dissected.info)
        for data, dissected in zip(frames, read, strict=True)
        if dissected.is_malformed == is_accepted(data)
    ]
    assert not wrong
    accepted = sum(map(is_accepted, frames))
    assert accepted > 100
    assert len(frames) - accepted > 100
