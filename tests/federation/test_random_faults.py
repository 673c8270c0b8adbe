"""Random topologies and faults: once all is well again, every subscriber has every message once.

QoS 1 and 2, nodes with stores, and clients whose sessions are kept.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.federation.fabric_of_nodes import Fabric

NODES = "abcdef"
FAULTS = ("publish", "publish", "publish", "cut", "mend", "close", "stop", "go on", "crash")


@st.composite
def topologies(draw: st.DrawFn) -> list[tuple[str, str]]:
    """Connected: a tree, and some links more."""
    names = NODES[: draw(st.integers(2, len(NODES)))]
    edges = {(names[draw(st.integers(0, index - 1))], names[index]) for index in range(1, len(names))}
    pairs = [(one, other) for one in names for other in names if one < other]
    return sorted(edges | set(draw(st.lists(st.sampled_from(pairs), max_size=4))))


@settings(max_examples=40, deadline=None)
@given(
    topologies(),
    st.lists(
        st.tuples(
            st.sampled_from(FAULTS), st.integers(0, 99), st.sampled_from([0.001, 0.05, 0.7, 3.0, 20.0])
        ),
        max_size=25,
    ),
    st.sets(st.integers(0, 5), min_size=1, max_size=3),
    st.integers(0, 9),
)
def test_every_message_arrives_once(
    edges: list[tuple[str, str]], steps: list[tuple[str, int, float]], readers: set[int], seed: int
) -> None:
    fabric = Fabric(seed)
    fabric.build(edges, durable=True)
    nodes = fabric.nodes
    fabric.settle_links()
    chosen = {nodes[index % len(nodes)].name for index in readers}
    opened = {name: fabric[name].subscribe("t/#", client_id="reader") for name in sorted(chosen)}
    fabric.advance(2)
    sent: list[bytes] = []
    for what, which, wait_s in steps:
        node, edge = nodes[which % len(nodes)], edges[which % len(edges)]
        if what == "publish" and not node.is_frozen:
            sent.append(b"%d" % len(sent))
            node.publish("t/x", sent[-1], qos=1 + which % 2)
        elif what == "cut":
            fabric.cut(*edge)
        elif what == "mend":
            fabric.mend(*edge)
        elif what == "close":
            fabric.close(*edge)
        elif what == "stop":
            node.is_frozen = True
        elif what == "go on":
            node.thaw()
        elif what == "crash":
            node.is_frozen = False
            node.crash()
            if node.name in opened:
                before = opened[node.name].messages
                opened[node.name] = node.subscribe(client_id="reader")
                opened[node.name].messages[:0] = before
        fabric.advance(wait_s)
    for node in nodes:
        node.thaw()
    fabric.heal()
    fabric.settle_links(30)
    fabric.advance(15)
    for name, inbox in opened.items():
        assert sorted(inbox.payloads, key=int) == sent, name
