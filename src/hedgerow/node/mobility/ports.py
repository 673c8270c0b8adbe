"""A port that is told where else a publication goes, and who published it."""

from __future__ import annotations

from collections.abc import Callable

from hedgerow.message import Message
from hedgerow.mqtt.broker.broker import Broker
from hedgerow.mqtt.broker.port import Port
from hedgerow.mqtt.broker.routes import Route
from hedgerow.mqtt.broker.session import Session

Published = Callable[[Message, Route, Session | Port | None], None]


class RoutedPort(Port):
    def __init__(self, broker: Broker, name: str, published: Published) -> None:
        super().__init__(broker, name, lambda message: None)
        self._published = published

    def take(self, message: Message, route: Route, publisher: Session | Port | None) -> None:
        self._published(message, route, publisher)
