"""From a frame to datagrams: to whom they go, and that no nonce is used twice."""

from __future__ import annotations

from hedgerow.multicast import frame
from hedgerow.multicast.frame import HEADER_BYTES, FrameKind
from hedgerow.multicast.groups import CONTROL_TOPIC
from hedgerow.multicast.outgoing import OutgoingTopic
from hedgerow.multicast.stats import MulticastStats
from hedgerow.multicast.transmitter import Transmitter
from tests.multicast.frames import SENDER, read
from tests.multicast.scene import KEY, OTHER_KEY, ring

NEW_UNTIL = 10.0


def transmitter(*copies: str) -> Transmitter:
    return Transmitter(SENDER, MulticastStats(), lambda topic: copies)


def send(sender: Transmitter, now: float, topic: str = "t") -> None:
    outgoing = OutgoingTopic(topic, 1_000, 0, NEW_UNTIL, 0.0)
    sender.send_to_topic(outgoing, FrameKind.DATA, 0, 0, 1, b"payload", now)


def nonces(sender: Transmitter) -> list[bytes]:
    """Key id and counter of each datagram."""
    datagrams = [data for _, data in (*sender.to_groups, *sender.to_peers)]
    return [data[HEADER_BYTES : HEADER_BYTES + 12] for data in datagrams]


def test_a_key_that_comes_back_does_not_count_from_one_again() -> None:
    sender = transmitter()
    for keys in (ring(), ring(OTHER_KEY.replace("1 ", "2 ", 1)), ring(), None, ring(), ring(f"{KEY}\n")):
        sender.set_keys(keys)
        if keys is not None:
            for _ in range(3):
                sender.send_presence()
    sent = nonces(sender)
    assert len(set(sent)) == len(sent) == 15


def test_each_copy_is_sealed_by_itself() -> None:
    sender = transmitter("one", "another")
    sender.set_keys(ring())
    send(sender, 0.0)
    sent = nonces(sender)
    assert len(set(sent)) == len(sent) == 4


def test_the_control_group_hears_of_a_topic_while_it_is_new() -> None:
    sender = transmitter()
    send(sender, NEW_UNTIL - 1)
    send(sender, NEW_UNTIL)
    assert [topic for topic, _ in sender.to_groups] == ["t", CONTROL_TOPIC, "t"]
    told = [read(data).topic for _, data in sender.to_groups]
    assert told == [None, "t", None], "in its own group a topic need not be said"


def test_peers_get_copies_that_say_their_topic() -> None:
    sender = transmitter("one", "another")
    send(sender, NEW_UNTIL)
    assert [(peer, read(data).topic) for peer, data in sender.to_peers] == [("one", "t"), ("another", "t")]
    assert [topic for topic, _ in sender.to_groups] == ["t"]


def test_what_is_for_all_goes_to_peers_too() -> None:
    sender = transmitter("one")
    sender.send_to_all(FrameKind.TOPICS, frame.pack_names(["t"]))
    assert [topic for topic, _ in sender.to_groups] == [CONTROL_TOPIC]
    assert sender.to_peers == [("one", sender.to_groups[0][1])]


def test_the_stale_counter_is_that_of_the_presence_before_the_last() -> None:
    sender = transmitter()
    sender.set_keys(ring())
    stale = []
    for _ in range(4):
        sender.send_presence()
        sender.send_to_all(FrameKind.LEAVE)
        stale.append(sender.stale_counter)
    assert stale == [0, 0, 2, 4]
