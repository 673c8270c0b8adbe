"""A port that is told where else a publication goes, and who published it."""

from __future__ import annotations

from collections.abc import Callable

from hedgerow.broker.broker import Broker
from hedgerow.broker.port import Port
from hedgerow.broker.routes import Route
from hedgerow.broker.session import Publisher
from hedgerow.message import Message

Published = Callable[[Message, Route, Publisher | None], None]


class RoutedPort(Port):
    def __init__(self, broker: Broker, name: str, published: Published) -> None:
        super().__init__(broker, name, lambda message: None, "mobile")
        self._published = published

    def take(self, message: Message, route: Route, publisher: Publisher | None) -> None:
        self._published(message, route, publisher)
