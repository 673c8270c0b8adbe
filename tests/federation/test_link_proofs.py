"""With a key, a link is for whoever has it: nobody else gets, takes away or brings anything, by any name.

`tests/security/test_keyed_handshake.py` has those who come with recordings, reflections and relays.
"""

from __future__ import annotations

from typing import Any

import pytest

from hedgerow.federation.events import LinkNotOpen
from hedgerow.federation.key_proof import WRONG_KEY
from hedgerow.federation.neighbours import KEY_HERE, METHOD
from hedgerow.federation.overlay.events import PeerRefused
from hedgerow.mqtt.ids import NODE_PROPERTY
from hedgerow.mqtt.packets import Auth, Connack
from hedgerow.mqtt.reasons import Reason
from tests.federation.clients import Inbox
from tests.federation.fabric_of_nodes import Fabric

KEY, OTHER_KEY = b"k" * 32, b"o" * 32


@pytest.fixture
def fabric() -> Fabric:
    """A and B are linked, and B has a reader."""
    fabric = Fabric()
    fabric.line("a", "b", durable=True, federation={"key": KEY})
    fabric.settle_links()
    fabric["b"].subscribe("t/#", client_id="reader")
    fabric.advance(1)
    return fabric


def pretend(fabric: Fabric, proof: bytes | None) -> Inbox:
    """Somebody connects to A as B, from its address, and says that proof, if any."""
    properties: dict[str, Any] = {"user_property": ((NODE_PROPERTY, "b"),)}
    if proof is not None:
        properties |= {"authentication_method": METHOD, "authentication_data": b"n" * 32 + b"b"}
    thief = Inbox(fabric["a"], "hedgerow-federation-b", kept=True, properties=properties, address="b")
    if proof is not None:
        answer = {"authentication_method": METHOD, "authentication_data": proof}
        thief.send(Auth(Reason.CONTINUE_AUTHENTICATION, answer))  # type: ignore[arg-type]
    fabric.advance(0.5)
    return thief


def refusal(thief: Inbox) -> int:
    assert isinstance(thief.answers[-1], Connack), thief.answers
    return thief.answers[-1].reason_code


@pytest.mark.parametrize("proof", [None, b"", b"\0" * 32, b"\xff" * 64])
def test_what_waits_for_a_neighbour_waits_for_it_alone(fabric: Fabric, proof: bytes | None) -> None:
    fabric["b"].kill()
    fabric["a"].publish("t/x", b"secret")
    thief = pretend(fabric, proof)
    assert refusal(thief) == Reason.NOT_AUTHORIZED
    assert thief.payloads == []
    assert PeerRefused("b", KEY_HERE if proof is None else WRONG_KEY) in fabric["a"].told(PeerRefused)
    fabric["b"].start()
    inbox = fabric["b"].subscribe(client_id="reader")
    fabric.advance(15)
    assert inbox.payloads == [b"secret"]


@pytest.mark.parametrize("proof", [None, b"\0" * 32])
def test_a_link_is_not_taken_over(fabric: Fabric, proof: bytes | None) -> None:
    link = fabric["a"].session_of("b").connection
    assert refusal(pretend(fabric, proof)) == Reason.NOT_AUTHORIZED
    assert fabric["a"].session_of("b").connection is link


def test_who_answers_has_to_have_the_key_too(fabric: Fabric) -> None:
    """Somebody took B's address."""
    fabric["b"].kill()
    fabric["a"].publish("t/x", b"secret")
    fabric.add("pretender", node_id="b", federation={"key": OTHER_KEY})
    spy = fabric["pretender"].subscribe("t/#")
    fabric["a"].link_to("pretender")
    fabric.advance(20)
    assert spy.payloads == []
    assert fabric["a"].session_of("b").waiting_count == 1
    assert WRONG_KEY in {event.reason for event in fabric["a"].told(LinkNotOpen)}


def test_links_with_a_key_are_sealed(fabric: Fabric) -> None:
    (pipe,) = fabric.between("a", "b")
    assert all(side.seal is not None for side in pipe.sides)
