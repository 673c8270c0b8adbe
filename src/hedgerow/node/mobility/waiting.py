"""What waits in a session, taken out of it: its client is at another broker, which is to deliver it."""

from __future__ import annotations

from hedgerow.mqtt.broker.broker import Broker
from hedgerow.mqtt.broker.session import Session
from hedgerow.mqtt.outbox import Delivery, Stage


def take_waiting(broker: Broker, session: Session) -> list[Delivery]:
    """In order. What the client has received at QoS 2 and only has yet to forget is not among them."""
    outbox = session.outbox
    if outbox is None:
        return []
    waiting = [*outbox.in_flight.values(), *outbox.queue]
    outbox.remove(set(waiting))
    for delivery in waiting:
        broker.durability.finish_delivery(session, delivery)
        broker.identify_late(delivery.message)
    return [delivery for delivery in waiting if delivery.stage != Stage.RELEASED]
