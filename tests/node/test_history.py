"""The events of the last hour."""

from __future__ import annotations

import pytest

from hedgerow.broker.events import ClientConnected, ClientDisconnected, ConnectionRefused
from hedgerow.federation.overlay.events import NeighbourGained, NeighbourLost, PeerRefused
from hedgerow.mobility.delegation import events as delegation
from hedgerow.mobility.io.relay import RelayFailed
from hedgerow.multicast.io.endpoint import MemberNotHeard
from hedgerow.node.events import Event
from hedgerow.node.history import KEPT_S, MAX_OF_KIND, MAX_TEXT, History
from hedgerow.sensors.exchange import SensorPacketDropped


def test_a_link_that_comes_back_has_healed() -> None:
    history = History()
    history.add(NeighbourGained("barn", 0.001), 1.0)
    history.add(NeighbourLost("barn", "it is silent"), 2.0)
    history.add(NeighbourGained("house", 0.001), 3.0)
    history.add(PeerRefused("barn", "wrong key"), 4.0)
    history.add(NeighbourGained("barn", 0.001), 5.0)
    found = [(past.number, past.kind, past.text.split()[0]) for past in history.newest(6.0, 10)]
    assert found == [
        (5, "healed", "barn"),
        (4, "refused", "'barn'"),
        (3, "joined", "house"),
        (2, "lost", "barn"),
        (1, "joined", "barn"),
    ]


def test_a_flood_of_one_kind_pushes_out_no_other() -> None:
    history = History()
    history.add(NeighbourLost("barn", "it is silent"), 1.0)
    for number in range(3 * MAX_OF_KIND):
        history.add(ConnectionRefused("10.0.0.9", f"c{number}", 135, "no"), 2.0)
    found = history.newest(3.0, 10_000)
    assert len(found) == MAX_OF_KIND + 1
    assert found[-1].kind == "lost"
    assert found[0].number == 3 * MAX_OF_KIND + 1


def test_what_is_about_clients_is_for_administrators() -> None:
    history = History()
    history.add(PeerRefused("mill", "wrong key"), 1.0)
    history.add(ConnectionRefused("10.0.0.9", "c", 135, "no"), 2.0)
    assert [past.text for past in history.newest(3.0, 10, with_clients=False)] == [
        "'mill' is refused: wrong key"
    ]
    assert len(history.newest(3.0, 10)) == 2


@pytest.mark.parametrize(
    "event",
    [
        delegation.ClientMoved("anna-phone", True),
        delegation.TurnedAway("anna-phone"),
        delegation.CalledBack("anna-phone"),
        delegation.GuestUnsubscribed("anna-phone", "home/anna/#"),
        delegation.Registered("tractor", "home/anna/#"),
        delegation.DelegationRefused("tractor", "mobile/farm", "no right to publish to 'home/anna/door'"),
        RelayFailed("192.0.2.9", "no answer"),
        SensorPacketDropped("192.0.2.9", "no topic"),
        MemberNotHeard("192.0.2.9", "wrong key"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_clients_are_named_to_administrators_alone_whoever_speaks_of_them(event: Event) -> None:
    history = History()
    history.add(event, 1.0)
    assert history.newest(2.0, 10, with_clients=False) == []
    assert len(history.newest(2.0, 10)) == 1


def test_what_is_older_than_an_hour_is_gone() -> None:
    history = History()
    history.add(NeighbourLost("barn", "it is silent"), 1.0)
    history.add(NeighbourGained("barn", 0.001), KEPT_S)
    assert [past.kind for past in history.newest(KEPT_S + 2, 10)] == ["healed"]
    assert history.newest(3 * KEPT_S, 10) == []


@pytest.mark.parametrize("size", [1, 60_000])
def test_what_clients_say_of_themselves_is_kept_in_little_room(size: int) -> None:
    history = History()
    came, went = [
        ClientConnected("10.0.0.9", "c" * size, "u", 5, "tcp", session_present=False),
        ClientDisconnected("10.0.0.9", "c" * size, "by the client"),
    ]
    texts = [str(went)[:MAX_TEXT], str(came)[:MAX_TEXT]]
    history.add(came, 1.0)
    history.add(went, 2.0)
    found = history.newest(3.0, 10)
    assert [past.text for past in found] == texts
    assert [past.event for past in found] == ([went, came] if size == 1 else texts)
