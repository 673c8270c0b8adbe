"""Retained messages of one topic at QoS 1 and 2 leave in the order in which they were published.

A QoS 2 packet waits until the store has it. If one at QoS 1 overtook it, the far node would drop the older
value as outdated, though it had been acknowledged.
"""

from __future__ import annotations

import pytest

from hedgerow.broker.limits import Limits
from tests.bridges.harness import Network, balance
from tests.bridges.test_retained_values import publish, values


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("in_flight", [3, 1_024])
def test_none_is_lost_to_a_newer_one_that_overtakes_it(dies: bool, in_flight: int) -> None:
    network = Network()
    north = network.add("north", limits=Limits(in_flight=in_flight), durable=True)
    south = network.add("south", durable=True)
    south.listen("t")
    north.bridge("# both 2", restart_timeout="1 2")
    network.cut("north", "south")
    sent = [b"%d" % number for number in range(300)]
    for number, payload in enumerate(sent):
        publish(north, "t", payload, 1 + (number % 3 == 0))
        network.advance(0.001)
    network.advance(30)
    if dies:
        north.crash()
    network.mend("north", "south")
    network.advance(30)
    assert south.take_heard() == sent
    assert values(south) == {"t": sent[-1]}
    bridge = north.find()
    assert balance(bridge.ledger, bridge.session.waiting_count) == 0
