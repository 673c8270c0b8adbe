"""Whatever strangers say, a member says nothing wrong, raises nothing and grows no further than it may."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.multicast import frame
from hedgerow.multicast.frame import FrameKind
from hedgerow.multicast.groups import topic_crc
from tests.multicast import frames
from tests.multicast.frames import PACKERS, write, write_message
from tests.multicast.fuzz_checks import STRANGERS, TOPICS, Siege

small = st.integers(0, 6) | st.sampled_from([65_534, 65_536, 2**32, frame.MAX_SEQUENCE, 2**64 - 1])
topics = st.sampled_from(TOPICS)


@st.composite
def said(draw: st.DrawFn) -> tuple[str, bytes, bytes, str | None, bool]:
    """Frames that are right in themselves, about few things and mostly data, so that they meet."""
    topic = draw(topics)
    kind = draw(st.sampled_from(list(FrameKind)) | st.just(FrameKind.DATA))
    to_group = draw(st.booleans())
    header: dict[str, Any] = {
        "topic": topic,
        "stream_sequence": draw(small),
        "message_sequence": draw(st.integers(1, 9) | st.just(frame.MAX_SEQUENCE)),
        "flags": 0 if to_group else frame.TOPIC,
    }
    data = _data(draw, header) if kind == FrameKind.DATA else write(kind, _body(draw, kind), **header)
    return "say", draw(st.sampled_from(STRANGERS)), data, topic if to_group else None, draw(st.booleans())


def _body(draw: st.DrawFn, kind: FrameKind) -> bytes:
    if kind == FrameKind.HEARTBEAT:
        return frame.pack_heartbeat(draw(st.integers(0, 6)))
    return PACKERS[kind](draw(frames.bodies[kind]))


def _data(draw: st.DrawFn, header: dict[str, Any]) -> bytes:
    form = draw(st.sampled_from(["message", "held", "fragment", "batch"]))
    if form in ("message", "held"):
        message = draw(frames.messages)
        message.topic = header.pop("topic")
        header["flags"] |= frame.HELD if form == "held" else 0
        return write_message(message, draw(frames.times), **header)
    header["flags"] |= draw(st.sampled_from([0, frame.QOS_1, frame.QOS_2, frame.QOS_1 | frame.QOS_2]))
    if form == "batch":
        header["flags"] |= frame.BATCH
        return write(
            FrameKind.DATA, frame.pack_batch(draw(st.lists(st.binary(max_size=50), max_size=5))), **header
        )
    header["flags"] |= frame.FRAGMENT
    piece = bytes(draw(st.sampled_from([1, 100, 2_000])))
    return write(
        FrameKind.DATA, frame.pack_fragment(draw(st.integers(0, 3)), draw(st.integers(4, 5)), piece), **header
    )


steps = st.one_of(
    said(),
    said(),
    said(),
    st.tuples(st.just("send"), st.binary(max_size=100), st.none() | topics, st.booleans()),
    st.tuples(st.just("advance"), st.sampled_from([0.001, 0.05, 1.0, 20.0])),
    st.tuples(st.just("publish"), topics, st.sampled_from([0, 10, 1_000])),
)


@pytest.mark.parametrize("has_key", [False, True])
@settings(max_examples=60)
@given(st.lists(steps, max_size=25))
def test_strangers(has_key: bool, todo: list[Any]) -> None:
    siege = Siege(has_key)
    for name, *arguments in todo:
        getattr(siege, name)(*arguments)
        siege.check()
    siege.finish()


def test_what_strangers_say_is_heard() -> None:
    """Else the test above would test nothing."""
    for has_key in (False, True):
        siege = Siege(has_key)
        data = write(FrameKind.DATA, b"x", topic="t", message_sequence=1)
        assert frame.parse_header(data).crc == topic_crc("t")
        siege.say(STRANGERS[0], data, "t")
        assert siege.member.stats.delivered > len(TOPICS)
