"""With a key, a link is for who has it: nobody else gets, takes away or brings anything, by whatever name."""

from __future__ import annotations

import pytest

from hedgerow.federation.events import LinkNotOpen
from hedgerow.federation.neighbours import with_proof
from hedgerow.federation.overlay.events import PeerRefused
from hedgerow.federation.overlay.link_proofs import NO_KEY, NO_PROOF, REPLAYED, LinkProofs
from hedgerow.mqtt.ids import NODE_PROPERTY
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


def pretend(fabric: Fabric, proof: str) -> Inbox:
    """Somebody connects to A as B."""
    properties = {"user_property": with_proof(((NODE_PROPERTY, "b"),), proof)}
    thief = Inbox(fabric["a"], "hedgerow-federation-b", kept=True, properties=properties)
    fabric.advance(0.5)
    return thief


@pytest.mark.parametrize("proof", ["", "1", "/", "-1/0", "9" * 30 + "/0", f"{2**63}/{'0' * 32}", "é/é"])
def test_what_waits_for_a_neighbour_waits_for_it_alone(fabric: Fabric, proof: str) -> None:
    fabric["b"].kill()
    fabric["a"].publish("t/x", b"secret")
    thief = pretend(fabric, proof)
    assert thief.connack.reason_code == Reason.NOT_AUTHORIZED
    assert thief.payloads == []
    assert PeerRefused("b", NO_PROOF) in fabric["a"].told(PeerRefused)
    fabric["b"].start()
    inbox = fabric["b"].subscribe(client_id="reader")
    fabric.advance(15)
    assert inbox.payloads == [b"secret"]


def test_a_link_is_not_taken_over(fabric: Fabric) -> None:
    link = fabric["a"].session_of("b").connection
    assert pretend(fabric, "").connack.reason_code == Reason.NOT_AUTHORIZED
    assert fabric["a"].session_of("b").connection is link


def test_a_recorded_connect_does_not_count_again(fabric: Fabric) -> None:
    recorded = LinkProofs("b", KEY, lambda: 2**63).make()
    assert pretend(fabric, recorded).connack.reason_code in (Reason.SUCCESS, Reason.USE_ANOTHER_SERVER)
    fabric["b"].kill()
    fabric.advance(3)
    thief = pretend(fabric, recorded)
    assert thief.connack.reason_code == Reason.NOT_AUTHORIZED
    assert PeerRefused("b", REPLAYED) in fabric["a"].told(PeerRefused)


class Credulous(LinkProofs):
    def refusal(self, dialler: str, said: str) -> str | None:
        return None


def test_who_answers_has_to_have_the_key_too(fabric: Fabric) -> None:
    """Somebody took B's address, and lets in whoever comes."""
    fabric["b"].kill()
    fabric["a"].publish("t/x", b"secret")
    pretender = fabric.add("pretender", node_id="b", federation={"key": OTHER_KEY}).federation
    pretender.proofs = Credulous("b", OTHER_KEY, pretender.overlay.take_sequence)
    spy = fabric["pretender"].subscribe("t/#")
    fabric["a"].link_to("pretender")
    fabric.advance(20)
    assert spy.payloads == []
    assert len(fabric["a"].session_of("b").outbox) == 1
    assert NO_PROOF in {event.reason for event in fabric["a"].told(LinkNotOpen)}


def test_only_one_has_a_key() -> None:
    keyed, keyless = LinkProofs("a", KEY, lambda: 1), LinkProofs("b", None, lambda: 1)
    assert keyless.refusal("a", keyed.make()) == NO_KEY
    assert keyed.refusal("b", keyless.make()) == NO_PROOF
    assert not keyed.accepts("b", keyed.make(), keyless.answer("a", ""))
