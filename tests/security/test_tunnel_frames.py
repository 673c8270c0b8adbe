"""Frames of a tunnel that the other side has no business to send."""

from __future__ import annotations

import pytest

from hedgerow.federation.tunnel import frames
from hedgerow.federation.tunnel.frames import NONCE_BYTES, TunnelFrame, TunnelFrameKind
from tests.federation.tunnel.carrier import DIALLER, FEDERATOR, KEY, Carrier


@pytest.mark.parametrize("key", [None, KEY])
def test_nobody_opens_a_tunnel_to_a_dialler(key: bytes | None) -> None:
    """It would have a timer that is always due, and so all of the processor's time."""
    carrier = Carrier(key)
    opening = TunnelFrame(TunnelFrameKind.OPEN, True, 5, FEDERATOR, data=bytes(NONCE_BYTES))
    carrier.dialler.receive(frames.encode(opening, frames.opening_seal(key)), carrier.now)
    assert carrier.dialler.ignored == {"direction": 1}
    assert (carrier.dialler.half_open, carrier.dialler.session_count) == (0, 0)
    assert carrier.dialler.deadline == float("inf")
    assert carrier.dialler.take_frames() == []


def test_nobody_answers_a_federator() -> None:
    carrier = Carrier()
    answer = TunnelFrame(TunnelFrameKind.OPENED, False, 5, DIALLER, data=bytes(NONCE_BYTES))
    carrier.federator.receive(frames.encode(answer, frames.opening_seal(None)), carrier.now)
    assert carrier.federator.ignored == {"direction": 1}
