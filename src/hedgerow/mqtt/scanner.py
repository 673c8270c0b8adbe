"""Where packets begin and end, in bytes that came together."""

from __future__ import annotations


def packet_at(data: bytes, position: int, first: int, limit: int) -> tuple[int, int] | None:
    """Where the body of the packet at `position` begins and ends, if the packet has this first byte.

    None: it begins with another, its length is not there yet or takes more than two bytes, or it is larger
    than `limit`. Whoever reads packet by packet finds out which. The end may be beyond that of `data`.
    """
    if len(data) - position < 3 or data[position] != first:
        return None
    length = data[position + 1]
    body = position + 2
    if length >= 0x80:
        high = data[body]
        if not 0 < high < 0x80:
            return None  # three bytes, or more than needed (MQTT-1.5.5-1)
        length = length & 0x7F | high << 7
        body += 1
    stop = body + length
    return None if stop - position > limit else (body, stop)
