"""docs/multicast.md says what the code does, to the byte."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hedgerow.message import Message, MessageId
from hedgerow.multicast import frame, groups, limits
from hedgerow.multicast.frame import HEADER_BYTES, SEAL, TAG_BYTES, Flags, FrameKind
from hedgerow.multicast.groups import CONTROL_GROUP_IPV4, CONTROL_TOPIC
from hedgerow.multicast.keys import REPLAY_WINDOW, Keyring
from hedgerow.multicast.limits import MIB, SCOPES, MulticastLimits
from tests.multicast.frames import read

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "multicast.md").read_text()
TOPIC = "home/vacuum/status"
SENDER = bytes.fromhex("5ae1c07f2b9d4486")


def section(title: str) -> str:
    """From a heading to the next one of any level."""
    return PAGE.partition(f" {title}\n")[2].partition("\n#")[0]


def examples() -> list[bytes]:
    """The blocks of hex, without what stands beside them."""
    blocks = re.findall(r"^```text\n(.*?)^```", section("An example in hex"), re.MULTILINE | re.DOTALL)
    return [
        bytes.fromhex("".join(line.strip().split("  ")[0] for line in block.splitlines())) for block in blocks
    ]


def test_the_example_is_that_frame() -> None:
    clear, _ = examples()
    header = frame.pack_header(
        FrameKind.DATA,
        frame.TOPIC | frame.QOS_1,
        groups.topic_crc(TOPIC),
        SENDER,
        stream_sequence=3,
        message_sequence=7,
    )
    assert clear == header + frame.pack_topic(TOPIC) + b"done"
    found = read(clear)
    assert found.body == Message(TOPIC, b"done", 1, id=MessageId(SENDER.hex(), 0, 7))


def test_the_sealed_example_opens_with_the_key_beside_it() -> None:
    clear, sealed = examples()
    keys = re.search(r"`(\d+ [0-9a-f]{64})`", section("An example in hex"))
    assert keys is not None
    keyring = Keyring.parse(keys[1], "the page")
    assert keyring.open(SENDER, sealed) == (1, clear[HEADER_BYTES:])
    assert keyring.sealer(SENDER).seal(clear[:HEADER_BYTES], clear[HEADER_BYTES:]) == sealed
    assert len(sealed) == len(clear) + SEAL.size + TAG_BYTES


def test_every_flag_is_in_the_table() -> None:
    table = dict(re.findall(r"^\| 0x(\w{4}) \| (\w+) \|", section("Flags"), re.MULTILINE))
    assert table == {f"{flag.value:04x}": flag.name for flag in Flags}


def test_every_kind_has_its_body() -> None:
    listed = re.findall(r"\*\*(\d+) ([A-Z]+)\*\*", PAGE.partition("### Bodies")[2])
    assert {int(number): name for number, name in listed} == {kind.value: kind.name for kind in FrameKind}


@pytest.mark.parametrize(
    "said",
    [
        groups.ipv6_group(TOPIC, SCOPES["link"]),
        groups.ipv6_group(CONTROL_TOPIC, SCOPES["link"]),
        f"{groups.mdns_label(TOPIC)}.local.",
        CONTROL_GROUP_IPV4,
        str(groups.IPV4_GROUPS.network),
        str(groups.ipv6_groups(SCOPES["link"]).network),
    ],
)
def test_the_addresses_are_those(said: str) -> None:
    assert said in section("Addresses")


def test_the_limits_are_those() -> None:
    own = MulticastLimits()
    table = dict(
        re.findall(r"^\| (.+?) \| (.+?) \|$", section("Limits, and what is not promised"), re.MULTILINE)
    )
    said = {
        "payload": f"{own.payload_bytes // 1024} KiB",
        "topic": f"{frame.MAX_TOPIC_BYTES:,} bytes",
        "datagram": f"{own.datagram_bytes:,} bytes",
        "frames kept for repairs": f"{own.history_s:.0f} s, {own.history_bytes // MIB} MiB",
        "frames and fragments that wait for others": f"{own.waiting_bytes // MIB} MiB in all",
        "under way to a receiver": f"{own.window_bytes // MIB} MiB that it has not acknowledged, for "
        f"{own.patience_s:.0f} s",
        "receivers that a sender waits for": f"{limits.MAX_RECEIVERS:,}, and {limits.MAX_PROGRESSES:,} str",
        "retained values": f"{own.retained_bytes // MIB} MiB",
        "groups joined for wildcards": f"{own.groups:,}",
        "senders, streams": f"{limits.MAX_SENDERS:,} and {limits.MAX_STREAMS:,}",
        "topics that a member publishes to": f"{limits.MAX_OUTGOING:,}",
        "peers, peers that get copies": f"{limits.MAX_PEERS} and {limits.MAX_COPIES}",
        "repairs": f"{limits.MAX_REPAIRS} frames for one request, {limits.REPAIRS_PER_S:,.0f} a second",
        "proofs, questions answered": f"{limits.PROOFS_PER_S:.0f} and {limits.INTERESTS_PER_S:.0f} a second",
    }
    assert said.keys() == table.keys() - {"---", ""}
    for name, value in said.items():
        assert table[name].startswith(value), name


def test_the_window_and_the_bounds_of_a_frame_are_those() -> None:
    sizes = [limits.datagram_bytes(1_500), limits.datagram_bytes(0), limits.MAX_DATAGRAM_BYTES]
    assert sizes == [1_352, 1_132, 16_384]
    assert all(f"{size:,}" in section("The frame") for size in sizes)
    assert f"window of {REPLAY_WINDOW:,} below" in PAGE.replace("\n  ", " ")
    assert f"at most {frame.MAX_NAMES}." in section("Bodies").replace("\n", " ")
    assert f"up to {frame.MAX_RANGES} such ranges" in section("Bodies")
    assert frame.MAX_SEQUENCE == 2**62 - 1
    assert frame.MAX_MICROSECONDS == 2**52
    assert f"length (1 to {frame.MAX_ORIGIN_BYTES})" in section("Bodies")
