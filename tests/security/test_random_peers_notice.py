"""Random stories find a guard that is off: each of these is taken away, and must be missed soon."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hedgerow.bridges.roles import FarBridgeRole
from hedgerow.broker import roles
from hedgerow.broker.access import Access
from hedgerow.broker.roles import ClientRole, IdentifiedRole
from hedgerow.federation.federation import Federation
from hedgerow.federation.neighbours import NeighbourRole
from hedgerow.mobility.delegation.distributor import Distributor
from hedgerow.mobility.fixed import FixedNode
from tests.security.test_random_peers import play

STORIES = 300  # Each guard is missed within them.


def always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


# What the guard is for, where it is, and what stands in its place.
GUARDS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "rules for reading": (Access, "may_read", always(True)),
    "rules for writing": (Access, "may_write", always(True)),
    "whose a session is": (ClientRole, "refusal", always(None)),
    "whose ids a client gives": (IdentifiedRole, "origin_of", lambda self, connection, origin: origin),
    "whose ids a bridge gives": (FarBridgeRole, "origin_of", lambda self, connection, origin: origin),
    "who passes on ids of others": (IdentifiedRole, "may_relay", always(True)),
    "topics for nodes alone": (roles, "is_between_nodes", always(False)),
    "the key of a federation": (Federation, "refusal", always(None)),
    "who may delegate": (FixedNode, "refusal", always(None)),
    "what a mobile broker may read": (FixedNode, "may_read", always(True)),
    "what a mobile broker may write": (FixedNode, "_may_write", always(True)),
    "whose clients a mobile broker brings": (FixedNode, "_objection_to_guest", always(None)),
    "whose ids a mobile broker gives": (Distributor, "as_given", lambda self, message, mobile: message),
    "what a neighbour may read": (NeighbourRole, "may_read", always(True)),
    "what a neighbour may write": (NeighbourRole, "may_write", always(True)),
    "topics of mobile brokers alone": (FixedNode, "reserves", always(False)),
}


@pytest.mark.parametrize("guard", GUARDS)
def test_a_guard_that_is_off_is_missed(guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, replacement = GUARDS[guard]
    monkeypatch.setattr(owner, name, replacement)
    with pytest.raises(AssertionError):
        play_all()


def play_all() -> None:
    for seed in range(STORIES):
        play(seed)
