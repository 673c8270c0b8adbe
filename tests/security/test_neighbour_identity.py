"""One who says that it is another's neighbour node, and would have its queue, or end its link.

`x` is the node under attack, `y` its neighbour, `mallory` a neighbour's user as well. Whatever mallory says,
what waits for y comes to y, and nothing of it to mallory.
"""

from __future__ import annotations

import pytest

from hedgerow.broker.access import Access, Acl
from hedgerow.broker.log_reading import waiting
from hedgerow.broker.owners import filter_bytes
from hedgerow.federation.overlay.wire import Peer
from hedgerow.mqtt.ids import NODE_PROPERTY
from hedgerow.mqtt.reasons import Reason
from tests.federation.clients import Inbox
from tests.federation.fabric_of_nodes import Fabric

RULES = """
user mallory
topic readwrite $hedgerow/bridge
topic readwrite #
user farm
topic readwrite $hedgerow/bridge
topic readwrite #
"""
Y_IS_FARM = RULES + "topic write $hedgerow/node/y\n"


def dialled_by_y(user: str = "farm", **options: object) -> Fabric:
    fabric = Fabric()
    fabric.add("x", **options)
    fabric.add("y", "x", username=user, federation=options.get("federation"))
    fabric.settle_links()
    return fabric


def dialled_by_x(user: str = "farm", **options: object) -> Fabric:
    fabric = Fabric()
    fabric.add("x", "y", **options)
    fabric.add("y", username=user)
    fabric.settle_links()
    return fabric


def claim(fabric: Fabric, username: str | None, node_id: str = "y", **options: str) -> Inbox:
    """A client of x that says it is that node."""
    pairs = ((NODE_PROPERTY, node_id),)
    client_id = f"hedgerow-federation-{node_id}"
    return Inbox(
        fabric["x"], client_id, kept=True, properties={"user_property": pairs}, username=username, **options
    )


def is_refused(inbox: Inbox) -> bool:
    return inbox.connack.reason_code == Reason.NOT_AUTHORIZED


def queue_for_y(fabric: Fabric) -> Inbox:
    """y is away, and a message waits for it."""
    inbox: Inbox = fabric["y"].subscribe("t", client_id="reader")
    fabric.advance(1)
    fabric.cut("x", "y")
    fabric.wait_for(lambda: not fabric["x"].linked, 5)
    fabric["x"].publish("t", b"for y")
    return inbox


def check_that_it_came(fabric: Fabric, inbox: Inbox) -> None:
    fabric.mend("x", "y")
    fabric.wait_for(lambda: inbox.payloads == [b"for y"], 10)


def test_another_user_does_not_get_the_queue() -> None:
    fabric = dialled_by_y()
    inbox = queue_for_y(fabric)
    thief = claim(fabric, "mallory")
    assert is_refused(thief)
    assert "belongs to another user" in thief.connack.properties["reason_string"]
    assert not thief.messages
    check_that_it_came(fabric, inbox)


@pytest.mark.parametrize("username", ["mallory", None])
def test_another_user_does_not_end_the_link(username: str | None) -> None:
    fabric = dialled_by_y()
    link = fabric["x"].session_of("y").connection
    assert is_refused(claim(fabric, username))
    fabric.advance(5)
    assert fabric["x"].session_of("y").connection is link


def test_it_is_the_same_after_a_restart() -> None:
    fabric = dialled_by_y(durable=True)
    inbox = queue_for_y(fabric)
    fabric["x"].crash()
    assert is_refused(claim(fabric, "mallory"))
    check_that_it_came(fabric, inbox)


def test_no_user_gets_the_queue_of_a_neighbour_that_was_dialled() -> None:
    fabric = dialled_by_x()
    inbox = queue_for_y(fabric)
    thief = claim(fabric, "mallory")
    assert is_refused(thief)
    assert "$hedgerow/node/y" in thief.connack.properties["reason_string"]
    check_that_it_came(fabric, inbox)


@pytest.mark.parametrize(("username", "rules"), [("y", None), ("farm", Y_IS_FARM)], ids=["name", "right"])
def test_a_user_that_is_the_node_gets_the_queue(username: str, rules: str | None) -> None:
    access = Access(Acl.parse(rules, "acl")) if rules else Access(None)
    fabric = dialled_by_x(access=access)
    queue_for_y(fabric)
    true_one = claim(fabric, username)
    assert true_one.connack.reason_code == Reason.SUCCESS
    assert b"for y" in true_one.payloads


@pytest.mark.parametrize(("right", "is_let_in"), [("write", False), ("readwrite", True)])
def test_a_user_that_may_only_give_ids_of_its_own_is_no_neighbour(right: str, is_let_in: bool) -> None:
    """Otherwise a publisher with ids could give those of y, and messages of y would be dropped."""
    fabric = Fabric()
    rules = f"user meter\ntopic {right} $hedgerow/bridge\ntopic readwrite #\n"
    fabric.add("x", access=Access(Acl.parse(rules, "acl")))
    meter = claim(fabric, "meter", "meter")
    assert is_refused(meter) is not is_let_in
    if not is_let_in:
        assert "$hedgerow/bridge" in meter.connack.properties["reason_string"]


def test_with_the_key_a_neighbour_need_not_be_granted_to_relay() -> None:
    rules = "user farm\ntopic write $hedgerow/bridge\ntopic readwrite #\n"
    fabric = dialled_by_y(access=Access(Acl.parse(rules, "acl")), federation={"key": b"k" * 32})
    assert fabric["x"].linked == {"y"}


def test_one_who_came_first_makes_way_for_the_user_that_is_the_node() -> None:
    fabric = Fabric()
    fabric.add("x", access=Access(Acl.parse(Y_IS_FARM, "acl")))
    squatter = claim(fabric, "mallory")
    assert not is_refused(squatter)
    fabric.add("y", "x", username="farm")
    fabric.settle_links()
    assert fabric["x"].linked == {"y"}
    assert fabric["x"].session_of("y").username == "farm"
    assert is_refused(claim(fabric, "mallory"))


def test_without_users_a_link_that_lives_is_not_taken_from_another_site() -> None:
    fabric = dialled_by_y(user=None)  # type: ignore[arg-type]
    link = fabric["x"].session_of("y").connection
    thief = claim(fabric, None)
    assert is_refused(thief)
    assert "from another address" in thief.connack.properties["reason_string"]
    assert fabric["x"].session_of("y").connection is link


def test_without_users_the_same_site_takes_its_link_over() -> None:
    """A node that was killed and started again is not to wait until its old link is found dead."""
    fabric = dialled_by_y(user=None)  # type: ignore[arg-type]
    assert not is_refused(claim(fabric, None, address="y"))


@pytest.mark.parametrize("is_linked", [True, False])
def test_whoever_answers_a_dial_is_not_believed_to_be_another(is_linked: bool) -> None:
    """A member passes on an address of its own as that of y, and answers there as y."""
    fabric = dialled_by_y()
    inbox = fabric["y"].subscribe("t", client_id="reader")
    fabric.advance(1)
    if not is_linked:
        fabric.cut("x", "y")
        fabric.wait_for(lambda: not fabric["x"].linked, 5)
        fabric["x"].publish("t", b"for y")
    fabric.add("fake", node_id="y")
    stolen = fabric["fake"].subscribe("t")
    link = fabric["x"].session_of("y").connection
    fabric.dial(fabric["x"], Peer("y", ("mqtt://fake",)))
    fabric.advance(0.5)
    if is_linked:
        assert fabric["x"].session_of("y").connection is link
        fabric["x"].publish("t", b"for y")
        fabric.advance(1)
    assert not stolen.messages
    check_that_it_came(fabric, inbox)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_configured_neighbour_that_changes_its_name_to_anothers(restarts: bool) -> None:
    fabric = Fabric()
    fabric.add("x", "z", durable=True)
    fabric.add("y", "x", username="farm")
    fabric.add("z")
    fabric.settle_links()
    fabric["y"].subscribe("t", client_id="reader")
    fabric.advance(1)
    fabric["y"].kill()
    fabric["z"].kill()
    fabric.wait_for(lambda: not fabric["x"].linked, 5)
    fabric["x"].publish("t", b"for y")
    fabric.add("z", node_id="y")
    stolen = fabric["z"].subscribe("t")
    if restarts:
        fabric["x"].crash()
    fabric.advance(10)
    assert not stolen.messages
    assert "y" not in fabric["x"].linked
    assert b"for y" in {
        each.message.payload for each in waiting(fabric["x"].broker, fabric["x"].session_of("y"))
    }


def test_a_neighbour_that_both_dials_and_is_dialled_finds_back() -> None:
    """The link may be either's each time, whoever's id is the smaller."""
    for first, second in (("a", "b"), ("b", "a")):
        fabric = Fabric()
        fabric.add(first, second, durable=True, username=first)
        fabric.add(second, first, durable=True, username=second)
        fabric.settle_links()
        inbox = fabric["b"].subscribe("t", client_id="reader")
        for number in range(4):
            fabric["ab"[number % 2]].crash(0.2)
            fabric.settle_links()
        fabric["a"].publish("t", b"1")
        inbox = fabric["b"].subscribe("t", client_id="reader")
        fabric.wait_for(lambda inbox=inbox: b"1" in inbox.payloads, 5)  # type: ignore[misc]


def test_what_a_neighbour_is_subscribed_to_counts_for_its_owner() -> None:
    """As after a restart, when the store tells of it."""
    fabric = dialled_by_y()
    fabric["y"].subscribe("t/#", client_id="reader")
    fabric.advance(1)
    session = fabric["x"].broker.sessions["hedgerow-federation-y"]
    assert session.subscriptions
    assert session.subscription_bytes == sum(map(filter_bytes, session.subscriptions))
