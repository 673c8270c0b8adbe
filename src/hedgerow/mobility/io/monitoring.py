"""Hot topics of a node that delegates none: counted, ranked, and shown under `$SYS/broker/hot/`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hedgerow.hot.hot_topics import HotTopics
from hedgerow.hot.observer import HotObserver
from hedgerow.mobility.config import MobilityConfig
from hedgerow.mobility.hot_state import HotState
from hedgerow.mobility.monitoring import make_hot_topics
from hedgerow.mobility.status import describe_hot
from hedgerow.node.part import NEVER, NodeContext, Part

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class Monitoring(Part):
    monitor: HotTopics
    state: HotState

    def __init__(self, node: NodeContext) -> None:
        super().__init__(node)
        self._is_armed = False

    async def start(self) -> None:
        settings, broker = self.node.config.of(MobilityConfig).settings, self.node.broker
        self.monitor = make_hot_topics(settings)
        self.state = HotState(broker, self.monitor, self.node.clock())
        broker.observe(HotObserver(self.monitor))

    @property
    def has_work(self) -> bool:
        """An event has come after a silence, in which nothing was due. This is asked at each flush, and the
        monitor only while no timer runs."""
        return self.is_running and not self._is_armed and self.deadline != NEVER

    def serve(self) -> None:
        self._is_armed = True

    @property
    def deadline(self) -> float:
        return min(self.monitor.deadline, self.state.deadline)

    def handle_timer(self, now: float) -> None:
        self.monitor.handle_timer(now)
        self.monitor.take_changes()
        self.state.look(now)
        if self.state.deadline <= now:
            self.state.handle_timer(now)
        self._is_armed = False

    def status(self) -> Mapping[str, Any]:
        return {"hot": describe_hot(self.monitor)}

    def metrics(self) -> Iterable[Metric]:
        from hedgerow.mobility.metrics import hot_metrics

        return hot_metrics(self.monitor)
