"""The tunnels of one connection: opened, answered again, replaced, refused, given up, closed at once."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from hedgerow.federation.tunnel import frames, tunnels
from hedgerow.federation.tunnel.frames import Seal, TunnelFrame, TunnelFrameKind
from hedgerow.federation.tunnel.tunnels import (
    OPEN_AGAIN_S,
    OPEN_S,
    Closed,
    DiallerRefused,
    Opened,
    TunnelReceived,
    Tunnels,
)
from tests.federation.tunnel.carrier import DIALLER, FEDERATOR, KEY, Carrier

DIFFERS = "the federator at this broker has another key, or only one of us has one"


@pytest.mark.parametrize("key", [None, KEY])
def test_a_tunnel_opens_and_each_end_knows_the_other(key: bytes | None) -> None:
    carrier = Carrier(key)
    near, far = carrier.dial()
    assert (near.id, near.peer) == (7, FEDERATOR)
    assert (far.id, far.peer) == (7, DIALLER)
    assert carrier.events == {DIALLER: [Opened(near)], FEDERATOR: [Opened(far)]}
    assert carrier.dialler.deadline == carrier.federator.deadline == float("inf")


def test_what_was_written_before_opens_the_tunnel_with_its_first_frame() -> None:
    carrier = Carrier(KEY)
    tunnel = carrier.dialler.open(7, carrier.now)
    tunnel.write(b"connect")
    carrier.carry(FEDERATOR)
    carrier.carry(DIALLER)
    assert carrier.kinds(FEDERATOR) == ["DATA"]
    carrier.settle()
    opened, received = carrier.events[FEDERATOR]
    assert isinstance(opened, Opened)
    assert received == TunnelReceived(opened.tunnel, b"connect")


def test_open_is_repeated_until_a_federator_is_there() -> None:
    carrier = Carrier()
    tunnel = carrier.dialler.open(7, carrier.now)
    assert carrier.lose(FEDERATOR)
    assert carrier.dialler.deadline == carrier.now + OPEN_AGAIN_S
    carrier.advance(OPEN_AGAIN_S)
    assert tunnel.is_open
    assert carrier.dialler.deadline == float("inf")


def test_a_lost_answer_is_given_again_and_leads_to_the_same_tunnel() -> None:
    carrier = Carrier(KEY)
    tunnel = carrier.dialler.open(7, carrier.now)
    carrier.carry(FEDERATOR)
    assert carrier.lose(DIALLER)
    carrier.advance(OPEN_AGAIN_S)
    assert tunnel.is_open
    assert len(carrier.events[FEDERATOR]) == 1
    tunnel.write(b"here")
    carrier.settle()
    assert carrier.arrived[FEDERATOR, 7] == b"here"


def test_an_open_that_comes_again_when_the_tunnel_lives_is_answered_and_changes_nothing() -> None:
    carrier = Carrier(KEY)
    near, _ = carrier.dial()
    opening = carrier.carried[0][1]
    carrier.federator.receive(opening, carrier.now)
    assert carrier.kinds(DIALLER) == ["OPENED"]
    near.write(b"still here")
    carrier.settle()
    assert carrier.arrived[FEDERATOR, 7] == b"still here"
    assert carrier.dialler.ignored == {"unknown tunnel": 1}


def test_a_broker_without_a_federator_is_given_up() -> None:
    carrier = Carrier()
    tunnel = carrier.dialler.open(7, carrier.now)
    node = carrier.dialler
    now = carrier.now
    opens = 0
    while node.deadline < float("inf"):
        opens += sum(frames.decode(payload).kind is TunnelFrameKind.OPEN for _, payload in node.take_frames())
        now = max(now, node.deadline)
        node.handle_timer(now)
        if tunnel.closed_because is not None:
            (payload,) = (payload for _, payload in node.take_frames())
            assert frames.decode(payload).kind is TunnelFrameKind.CLOSE
    assert now == carrier.now + OPEN_S
    assert opens == OPEN_S / OPEN_AGAIN_S
    assert node.take_events() == [
        Closed(tunnel, "no federator answers at this broker: start `hedgerow federate` beside it")
    ]


@pytest.mark.parametrize(("mine", "theirs"), [(KEY, None), (None, KEY), (KEY, KEY[::-1])])
def test_a_node_with_another_key_is_refused_and_named_and_is_told_why(
    mine: bytes | None, theirs: bytes | None
) -> None:
    carrier = Carrier(theirs)
    carrier.add(DIALLER, mine)
    tunnel = carrier.dialler.open(7, carrier.now)
    carrier.advance(OPEN_S)
    assert carrier.events[DIALLER] == [Closed(tunnel, DIFFERS)]
    refusals = carrier.events[FEDERATOR]
    assert set(refusals) == {DiallerRefused(DIALLER, "it has another key, or only one of us has one")}
    assert carrier.federator.ignored["proof"] >= len(refusals)


def test_a_dialler_with_the_federators_own_node_id_is_refused() -> None:
    federator = Tunnels("same", is_federator=True, random_bytes=Random(1).randbytes)
    dialler = Tunnels("same", is_federator=False, random_bytes=Random(2).randbytes)
    tunnel = dialler.open(7, 0.0)
    for _, payload in dialler.take_frames():
        federator.receive(payload, 0.0)
    reason = "it has the node id of this federator, same"
    assert federator.take_events() == [DiallerRefused("same", reason)]
    ((destination, payload),) = federator.take_frames()
    dialler.receive(payload, 0.0)
    assert destination == "same"
    assert dialler.take_events() == [Closed(tunnel, reason)]
    assert dialler.deadline == float("inf")


def test_a_new_tunnel_of_the_same_dialler_replaces_the_older_one() -> None:
    carrier = Carrier(KEY)
    _, old = carrier.dial(1)
    carrier.add(DIALLER, KEY)  # started anew
    carrier.events.clear()
    near, new = carrier.dial(2)
    assert carrier.events[FEDERATOR] == [Closed(old, "its dialler has opened another one"), Opened(new)]
    near.write(b"second life")
    carrier.settle()
    assert carrier.arrived[FEDERATOR, 2] == b"second life"
    assert carrier.closed(DIALLER) == []


def test_a_recorded_open_does_not_replace_the_tunnel_that_lives() -> None:
    carrier = Carrier(KEY)
    carrier.dial(1)
    recorded = [payload for receiver, payload in carrier.carried if receiver == FEDERATOR]
    carrier.restart()
    near, _ = carrier.dial(2)
    carrier.events.clear()
    for payload in recorded:
        carrier.federator.receive(payload, carrier.now)
    near.write(b"undisturbed")
    carrier.advance(2 * OPEN_S)
    assert carrier.arrived[FEDERATOR, 2] == b"undisturbed"
    assert carrier.closed(FEDERATOR) == carrier.closed(DIALLER) == []
    assert carrier.federator.deadline == float("inf")  # The half open tunnel is forgotten.


def test_frames_of_an_earlier_tunnel_do_not_count_in_a_later_one_even_with_the_same_id() -> None:
    carrier = Carrier(KEY)
    near, _ = carrier.dial(1)
    near.write(b"transfer 100")
    carrier.settle()
    recorded = [payload for receiver, payload in carrier.carried if receiver == FEDERATOR]
    carrier.restart()
    carrier.arrived.clear()
    near, _ = carrier.dial(1)
    for payload in recorded:
        carrier.federator.receive(payload, carrier.now)
    near.write(b"hello")
    carrier.settle()
    assert carrier.arrived[FEDERATOR, 1] == b"hello"
    assert near.closed_because is None


def test_what_a_federator_wrote_does_not_count_when_it_is_sent_back() -> None:
    for key in (None, KEY):
        carrier = Carrier(key)
        near, far = carrier.dial()
        far.write(b"echo")
        carrier.settle()
        for receiver, payload in list(carrier.carried):
            carrier.nodes[FEDERATOR if receiver == DIALLER else DIALLER].receive(payload, carrier.now)
        carrier.settle()
        assert carrier.arrived[FEDERATOR, 7] == b""
        assert near.closed_because is far.closed_because is None
        assert carrier.federator.ignored["direction"] == 2


def test_a_second_federator_at_the_same_broker_disturbs_nothing() -> None:
    for key in (None, KEY):
        carrier = Carrier(key)
        other = Tunnels("other", is_federator=True, random_bytes=Random(9).randbytes, key=key)
        near = carrier.dialler.open(7, carrier.now)
        near.write(b"connect")
        for _ in range(10):
            carrier.collect()
            for payload in carrier.queues[FEDERATOR]:
                other.receive(payload, carrier.now)
            carrier.carry(FEDERATOR)
            carrier.queues[DIALLER].extend(payload for _, payload in other.take_frames())
            carrier.carry(DIALLER)
        assert near.peer == FEDERATOR
        assert near.closed_because is None
        assert carrier.arrived[FEDERATOR, 7] == b"connect"
        assert other.take_events() == []


def test_a_federator_that_was_started_anew_says_that_it_does_not_know_the_tunnel() -> None:
    for key in (None, KEY):
        carrier = Carrier(key)
        near, _ = carrier.dial()
        carrier.add(FEDERATOR, key)
        near.write(b"are you there?")
        carrier.settle()
        assert carrier.closed(DIALLER) == ["there is no such tunnel"]
        assert carrier.federator.ignored == {"unknown tunnel": 1}


def test_a_dialler_says_it_too() -> None:
    carrier = Carrier(KEY)
    _, far = carrier.dial()
    carrier.dialler.close_all("its connection was lost for a moment")
    far.write(b"are you there?")
    carrier.settle()
    assert carrier.closed(FEDERATOR) == ["there is no such tunnel"]


def test_answers_to_strangers_have_a_rate() -> None:
    federator = Tunnels("federator", is_federator=True, random_bytes=Random(1).randbytes, key=KEY)
    for number in range(1_000):
        for kind in (TunnelFrameKind.ACK, TunnelFrameKind.OPEN):
            frame = TunnelFrame(
                kind, False, number, "stranger", data=bytes(16) if kind is TunnelFrameKind.OPEN else b""
            )
            federator.receive(frames.encode(frame, Seal(None)), 10.0)
    assert len(federator.take_frames()) <= 2 * (1 + tunnels.ANSWERS_PER_S * tunnels.ANSWERS_BURST_S)
    assert len(federator.take_events()) <= 1 + tunnels.ANSWERS_PER_S * tunnels.ANSWERS_BURST_S
    assert federator.ignored == {"unknown tunnel": 1_000, "proof": 1_000}


def test_half_open_tunnels_are_bounded_and_do_not_keep_a_dialler_out() -> None:
    carrier = Carrier()
    for number in range(3 * tunnels.MAX_HALF_OPEN):
        frame = TunnelFrame(TunnelFrameKind.OPEN, False, number, f"invented{number}", data=bytes(16))
        carrier.federator.receive(frames.encode(frame, Seal(None)), carrier.now)
    assert carrier.federator.half_open == carrier.federator.session_count == tunnels.MAX_HALF_OPEN
    _, far = carrier.dial()
    assert carrier.events[FEDERATOR] == [Opened(far)]
    assert far.peer == DIALLER
    carrier.advance(OPEN_S)
    assert carrier.federator.half_open == 0
    assert carrier.federator.session_count == 1


def test_a_full_federator_refuses_a_newcomer_but_not_one_that_comes_back() -> None:
    carrier = Carrier(KEY, "a", "b", "c", max_tunnels=2)
    carrier.dial(1, "a")
    carrier.dial(2, "b")
    refused = carrier.nodes["c"].open(3, carrier.now)
    carrier.settle()
    assert carrier.events["c"] == [Closed(refused, "this federator has 2 tunnels already")]
    assert carrier.events[FEDERATOR][-1] == DiallerRefused("c", "this federator has 2 tunnels already")
    carrier.add("b", KEY)
    carrier.dial(4, "b")


def test_two_that_take_the_last_place_at_once() -> None:
    carrier = Carrier(KEY, "a", "b", max_tunnels=1)
    for name in ("a", "b"):
        carrier.nodes[name].open(1, carrier.now)
    carrier.settle()
    assert sum(isinstance(event, Opened) for event in carrier.events[FEDERATOR]) == 1
    assert carrier.closed("a") + carrier.closed("b") == ["this federator has 1 tunnels already"]


def test_the_will_of_a_dialler_closes_its_tunnel_and_no_later_one() -> None:
    carrier = Carrier(KEY)
    carrier.dial(1)
    will = carrier.dialler.encode_will(1)
    carrier.federator.receive(will, carrier.now)
    carrier.collect()
    assert carrier.closed(FEDERATOR) == ["its connection to the broker was lost"]
    carrier.add(DIALLER, KEY)
    near, _ = carrier.dial(2)
    carrier.federator.receive(will, carrier.now)
    assert carrier.federator.ignored == {"unknown tunnel": 1}
    near.write(b"here")
    carrier.settle()
    assert carrier.arrived[FEDERATOR, 2] == b"here"


@pytest.mark.parametrize("name", [DIALLER, FEDERATOR])
def test_a_peer_that_is_gone_has_no_tunnel(name: str) -> None:
    carrier = Carrier()
    carrier.dial()
    other = FEDERATOR if name == DIALLER else DIALLER
    carrier.nodes[other].peer_gone("somebody else")
    carrier.nodes[other].peer_gone(name)
    carrier.nodes[other].peer_gone(name)
    carrier.collect()
    assert carrier.closed(other) == ["it is no longer at the broker"]
    assert not carrier.nodes[other].take_frames()


def test_a_lost_connection_closes_all_at_once_and_another_begins_anew() -> None:
    carrier = Carrier(KEY, "a", "b")
    carrier.dial(1, "a")
    _, far = carrier.dial(2, "b")
    far.write(b"never sent")
    carrier.federator.close_all("reset by peer")
    assert carrier.federator.take_frames() == []
    carrier.collect()
    assert carrier.closed(FEDERATOR) == ["reset by peer"] * 2
    assert carrier.federator.deadline == float("inf")
    carrier.nodes["a"].close_all("reset by peer")
    carrier.dial(3, "a")


def test_a_tunnel_that_is_being_opened_is_closed_with_the_connection() -> None:
    carrier = Carrier()
    tunnel = carrier.dialler.open(7, carrier.now)
    carrier.dialler.close_all("reset by peer")
    carrier.collect()
    assert carrier.events[DIALLER] == [Closed(tunnel, "reset by peer")]
    assert carrier.dialler.deadline == float("inf")


def test_a_dialler_that_changes_its_mind_leaves_nothing_behind() -> None:
    carrier = Carrier(KEY)
    tunnel = carrier.dialler.open(7, carrier.now)
    carrier.carry(FEDERATOR)
    tunnel.close("not needed")
    carrier.settle()
    assert carrier.federator.deadline == carrier.dialler.deadline == float("inf")
    assert carrier.events == {}


def test_misuse_raises() -> None:
    carrier = Carrier()
    with pytest.raises(ValueError, match="does not dial"):
        carrier.federator.open(1, 0.0)
    carrier.dialler.open(1, 0.0)
    with pytest.raises(ValueError, match="already"):
        carrier.dialler.open(1, 0.0)
    for key in (bytes(15), bytes(65)):
        with pytest.raises(ValueError, match="16 to 64 bytes"):
            carrier.add("n", key)
    with pytest.raises(ValueError, match="cannot carry"):
        Tunnels("n", is_federator=False, random_bytes=Random(1).randbytes, max_frame_bytes=100)
    with pytest.raises(ValueError, match="is no node id"):
        carrier.add("", None)


FORGERIES = {
    "DATA4": partial(TunnelFrame, TunnelFrameKind.DATA, False, sequence=4, data=b"forged"),
    "DATA1000": partial(TunnelFrame, TunnelFrameKind.DATA, False, sequence=1_000, data=b"a gap"),
    "ACK4": partial(TunnelFrame, TunnelFrameKind.ACK, False, sequence=4, acknowledged=4),
    "CLOSE0": partial(TunnelFrame, TunnelFrameKind.CLOSE, False, reason="go away"),
}
OF_ANOTHER_SESSION = FORGERIES["DATA4"](number=0, sender=DIALLER)


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
@pytest.mark.parametrize(
    "seal", [Seal(None), Seal(KEY), Seal(KEY[::-1]), frames.agree(KEY, *[OF_ANOTHER_SESSION] * 2).seal]
)
def test_with_a_key_a_forged_frame_changes_nothing(forge: partial[TunnelFrame], seal: Seal) -> None:
    carrier = Carrier(KEY)
    near, far = carrier.dial()
    near.write(b"one ")
    far.write(b"seen")
    carrier.carry(FEDERATOR)
    carrier.federator.receive(frames.encode(forge(number=far.number, sender=DIALLER), seal), carrier.now)
    assert carrier.federator.ignored == {"proof": 1}
    assert far.unacknowledged_bytes == 4
    near.write(b"two")
    carrier.settle()
    assert carrier.arrived[FEDERATOR, 7] == b"one two"
    assert near.closed_because is far.closed_because is None


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_without_a_key_a_frame_that_names_another_sender_does_not_count(forge: partial[TunnelFrame]) -> None:
    carrier = Carrier()
    near, far = carrier.dial()
    near.write(b"one ")
    carrier.carry(FEDERATOR)
    stray = forge(number=far.number, sender="somebody else")
    carrier.federator.receive(frames.encode(stray, Seal(None)), carrier.now)
    assert carrier.federator.ignored == {"sender": 1}
    near.write(b"two")
    carrier.settle()
    assert carrier.arrived[FEDERATOR, 7] == b"one two"


def test_only_the_answer_to_this_very_open_opens_a_tunnel() -> None:
    carrier = Carrier(KEY)
    carrier.dialler.open(7, carrier.now)
    carrier.carry(FEDERATOR)
    recorded = carrier.queues[DIALLER].popleft()
    carrier.restart()
    tunnel = carrier.dialler.open(7, carrier.now)
    answer = TunnelFrame(TunnelFrameKind.OPENED, True, 7, "impostor", data=bytes(16))
    for payload in (
        recorded,
        frames.encode(answer, Seal(None)),
        frames.encode(answer, frames.opening_seal(KEY[::-1])),
        frames.encode(answer, frames.opening_seal(KEY)),
    ):
        carrier.dialler.receive(payload, carrier.now)
        assert not tunnel.is_open
    assert carrier.dialler.ignored == {"proof": 4}
    carrier.settle()
    assert tunnel.is_open


def test_an_answer_in_the_diallers_own_name_does_not_open_a_tunnel() -> None:
    carrier = Carrier()
    tunnel = carrier.dialler.open(7, carrier.now)
    answer = TunnelFrame(TunnelFrameKind.OPENED, True, 7, DIALLER, data=bytes(16))
    carrier.dialler.receive(frames.encode(answer, Seal(None)), carrier.now)
    assert not tunnel.is_open
    assert carrier.dialler.ignored == {"sender": 1}


def test_an_open_with_the_id_of_a_tunnel_that_lives_and_another_nonce_is_ignored() -> None:
    carrier = Carrier()
    carrier.dial()
    frame = TunnelFrame(TunnelFrameKind.OPEN, False, 7, DIALLER, data=bytes(16))
    carrier.federator.receive(frames.encode(frame, Seal(None)), carrier.now)
    assert carrier.federator.ignored == {"duplicate": 1}
    assert carrier.kinds(DIALLER) == []
