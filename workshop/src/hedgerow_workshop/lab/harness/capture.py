"""Frames on the network of an experiment: a capture that Wireshark opens, and how many bytes of it are what.

`python -m hedgerow_workshop.lab.harness.capture FILE` runs beside the switch, where every frame that a host
sends passes once, and writes them to FILE (pcap) until SIGTERM. Standard output says `capturing` when it has
begun, and at the end how many frames the system dropped because this program was too slow.
"""

from __future__ import annotations

import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from hedgerow_workshop.lab.harness.hosts import SWITCH, Network
from hedgerow_workshop.lab.harness.programs import LabError, LabProgram

SNAP_BYTES = 65_535
BUFFER_BYTES = 8 * 1024 * 1024

# <linux/if_ether.h>, <linux/if_packet.h>
_ETH_P_ALL = 3
_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, _PACKET_STATISTICS = 263, 1, 6
_PACKET_MR_PROMISC = 1

# https://www.ietf.org/archive/id/draft-gharris-opsawg-pcap-01.html: microseconds, Ethernet
_FILE_HEADER = struct.Struct("<IHHiIII")
_FRAME_HEADER = struct.Struct("<IIII")
_MAGIC, _ETHERNET = 0xA1B2C3D4, 1

_IPV4, _ARP, _IPV6 = 0x0800, 0x0806, 0x86DD
_IGMP, _TCP, _UDP, _ICMPV6 = 2, 6, 17, 58
_HOP_BY_HOP = 0
_MLD = (130, 131, 132, 143)  # types of ICMPv6
MDNS_PORT = 5353


class Capture(LabProgram):
    """Of everything that the hosts of a network say."""

    def __init__(self, net: Network, file: Path, directory: Path) -> None:
        super().__init__("the capture", directory)
        self.file = file
        self._net = net

    async def start(self) -> None:
        words = [sys.executable, "-m", __name__, str(self.file)]
        self.launch([*self._net.switch, *words])
        await self.wait_until(lambda: b"capturing" in self.output.read_bytes(), "capture")

    def finish(self) -> int:
        """The frames that it missed."""
        self.end()
        words = self.output.read_text().split()
        if "dropped" not in words:
            raise LabError(f"{self.name} did not end in order: {self.last_words()}")
        return int(words[words.index("dropped") + 1])


class Frame(NamedTuple):
    at: float
    """By the calendar's clock."""
    size: int
    data: bytes


def read_frames(file: Path) -> Iterator[Frame]:
    """Those of a file that this module wrote."""
    data = file.read_bytes()
    offset = _FILE_HEADER.size
    while offset < len(data):
        seconds, micros, kept, size = _FRAME_HEADER.unpack_from(data, offset)
        offset += _FRAME_HEADER.size
        yield Frame(seconds + micros / 1e6, size, data[offset : offset + kept])
        offset += kept


def kind_of(data: bytes) -> str:
    """What a frame is for."""
    ether_type = int.from_bytes(data[12:14])
    if ether_type == _IPV4:
        header_bytes = 4 * (data[14] & 15)
        return _kind_of_packet(data[23], data[14 + header_bytes : 14 + int.from_bytes(data[16:18])])
    if ether_type == _IPV6:
        protocol, rest = data[20], data[54 : 54 + int.from_bytes(data[18:20])]
        if protocol == _HOP_BY_HOP:
            protocol, rest = rest[0], rest[8 * (rest[1] + 1) :]
        return _kind_of_packet(protocol, rest)
    return "neighbours" if ether_type == _ARP else "other"


def _kind_of_packet(protocol: int, rest: bytes) -> str:
    if protocol == _UDP:
        return "mDNS" if MDNS_PORT in struct.unpack_from("!HH", rest) else "UDP"
    if protocol == _TCP:
        return "TCP with data" if len(rest) > 4 * (rest[12] >> 4) else "TCP without data"
    if protocol == _IGMP or (protocol == _ICMPV6 and rest[0] in _MLD):
        return "group membership"
    return "neighbours" if protocol == _ICMPV6 else "other"


def main(file: Path) -> None:
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGTERM, stop)
    heard = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    with heard, file.open("wb") as out:
        heard.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        heard.bind((SWITCH, _ETH_P_ALL))
        # A switch gives its own interface what it passes on only when that hears everything.
        promiscuous = struct.pack("@iHH8s", socket.if_nametoindex(SWITCH), _PACKET_MR_PROMISC, 0, b"")
        heard.setsockopt(_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, promiscuous)
        heard.settimeout(0.05)
        out.write(_FILE_HEADER.pack(_MAGIC, 2, 4, 0, 0, SNAP_BYTES, _ETHERNET))
        print("capturing", flush=True)
        while _take_frame(heard, out) or not stopped:
            pass
        _, dropped = struct.unpack("@II", heard.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))
    print(f"dropped {dropped}", flush=True)


def _take_frame(heard: socket.socket, out: IO[bytes]) -> bool:
    try:
        data = heard.recv(SNAP_BYTES)
    except TimeoutError:
        return False
    at = time.time()
    out.write(_FRAME_HEADER.pack(int(at), int(at % 1 * 1e6), len(data), len(data)) + data)
    return True


if __name__ == "__main__":
    main(Path(sys.argv[1]))
