"""Whatever strangers send, in whatever order: the exchange drops it, counts it, or does what it says."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sensors.fuzz_checks import HOSTS, TOPICS, Strangers, check_packet

headers = st.builds(
    lambda port, role, topic: b"%05d%d%02d" % (port, role, topic),
    st.sampled_from((0, 1, 12345, 12346, 65_535, 65_536, 99_999)),
    st.integers(0, 2),
    st.sampled_from((0, 1, 2, 99)),
)
packets = st.builds(lambda header, payload: header + payload, headers, st.binary(max_size=20))
datagrams = st.one_of(packets, st.binary(max_size=16))
steps = st.one_of(
    st.tuples(st.just("receive"), datagrams, st.sampled_from(HOSTS)),
    st.tuples(st.just("send"), st.sampled_from(list(TOPICS.values())), st.binary(max_size=20)),
    st.tuples(st.just("advance"), st.floats(0, 700)),
)


@settings(max_examples=1_000)
@given(datagrams)
def test_any_bytes_are_a_packet_or_a_reason(data: bytes) -> None:
    check_packet(data)


@settings(max_examples=300)
@given(
    st.lists(steps, max_size=40),
    st.sampled_from((0.0, 0.5)),
    st.sampled_from((600.0, float("inf"))),
)
def test_any_conversation(
    conversation: list[tuple[object, ...]], packets_per_s: float, subscription_expiry_s: float
) -> None:
    strangers = Strangers(packets_per_s, subscription_expiry_s)
    for step, *arguments in conversation:
        getattr(strangers, str(step))(*arguments)
