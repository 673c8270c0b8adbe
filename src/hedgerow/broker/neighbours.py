"""What a broker that is part of a federation asks of it, about its neighbours.

A neighbour is another node that connected here, or that this node dialled. Either way its session at this
broker has the client id `hedgerow-federation-NODE`, is durable, and is not subscribed to by the other side:
which filters it has is decided here (`federation/federation.py`). On its connection, publications under
`$hedgerow/federation/` are from federation to federation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from hedgerow.message import Properties

if TYPE_CHECKING:
    from hedgerow.broker.connection import Connection

NEIGHBOUR_PREFIX = "hedgerow-federation-"  # of the client ids of their sessions
CONTROL_PREFIX = "$hedgerow/federation/"
PROOF_PROPERTY = "hedgerow-proof"  # a user property of CONNECT and CONNACK: who says it has the key
ALREADY_LINKED = "there is a link already"  # Both dialled. No reason to complain.
SIDECAR_SUFFIX = "-home"  # of the client id with which a sidecar connects to the broker that it stands beside
NO_SIDECAR = "a federator beside a node, which federates itself"


def proof_of(properties: Properties) -> str:
    pairs = properties.get("user_property", ())
    return next((value for name, value in pairs if name == PROOF_PROPERTY), "")


def with_proof(pairs: tuple[tuple[str, str], ...], proof: str) -> tuple[tuple[str, str], ...]:
    return (*pairs, (PROOF_PROPERTY, proof)) if proof else pairs


class Neighbourhood(Protocol):
    def refusal(self, node_id: str, proof: str) -> str | None:
        """Why this node, which says that proof, may not connect now; None: it may."""

    def answer(self, node_id: str, proof: str) -> str:
        """What it is told in return."""

    def accepted(self, connection: Connection) -> None:
        """It is connected, and has been told so."""

    def ended(self, connection: Connection) -> None:
        """A connection of a neighbour's session is over, whoever dialled."""

    def receive_control(self, connection: Connection, topic: str, payload: bytes) -> None:
        """Something that its federation says to this one."""
