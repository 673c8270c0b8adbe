"""Packets out of bytes: what every test's own client, server or transport has to do."""

from __future__ import annotations

from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import MQTT_5, Packet

LONGEST_HEADER = 5  # the first byte, and a remaining length of four


class PacketReader:
    """Takes bytes as they come, gives packets as they are complete."""

    def __init__(self) -> None:
        self._pending = bytearray()

    @property
    def pending(self) -> bytes:
        """What came and was not taken."""
        return bytes(self._pending)

    def feed(self, data: bytes) -> None:
        self._pending += data

    def take(self, version: int = MQTT_5) -> Packet | None:
        """The next packet; None when it has not come, or not the whole of it."""
        data = self.take_raw()
        return None if data is None else read_packet(data, version)

    def take_raw(self) -> bytes | None:
        """The next packet as it came; None when it has not, or not the whole of it."""
        header = codec.read_header(bytes(self._pending[:LONGEST_HEADER]), 0)
        if header is None or header[1] > len(self._pending):
            return None
        return self.take_bytes(header[1])

    def take_bytes(self, count: int | None = None) -> bytes:
        """The next bytes, whatever they are; all of them without a count."""
        data = bytes(self._pending[:count])
        del self._pending[:count]
        return data


def read_packet(data: bytes, version: int = MQTT_5) -> Packet:
    """The one packet that `data` is."""
    (packet,) = read_packets(data, version)
    return packet


def read_packets(data: bytes, version: int = MQTT_5) -> list[Packet]:
    """The packets that `data` is made of, to its last byte."""
    packets, position = [], 0
    while position < len(data):
        header = codec.read_header(data, position)
        assert header is not None, f"half a packet: {data[position:]!r}"
        start, end = header
        assert end <= len(data), f"half a packet: {data[position:]!r}"
        packets.append(codec.decode(data[position], data[start:end], version))
        position = end
    return packets
