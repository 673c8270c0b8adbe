"""Hot topics as an observer: it counts each publication that had a client to go to, here or elsewhere."""

from __future__ import annotations

from typing import Protocol

from hedgerow.broker.batch import Batch
from hedgerow.broker.observer import Observer


class TopicCounter(Protocol):
    def note(self, topic: str, now: float) -> None: ...

    def note_many(self, topic: str, count: int, now: float) -> None: ...


class HotObserver(Observer):
    name = "hot"

    def __init__(self, monitor: TopicCounter) -> None:
        self._monitor = monitor

    def wants(self, topic: str, has_clients: bool) -> bool:
        return has_clients

    def observe(self, batch: Batch, now: float) -> bool:
        if batch.publisher is None:
            return False  # The broker itself speaks.
        if batch.count == 1:
            self._monitor.note(batch.topic, now)
        else:
            self._monitor.note_many(batch.topic, batch.count, now)
        return False
