"""Hot topics of a node that delegates none: counted, ranked, and shown under `$SYS/broker/hot/`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hedgerow.hot.hot_topics import HotTopics
from hedgerow.hot.observer import HotObserver
from hedgerow.mobility.hot_state import HotState
from hedgerow.node.deadline import DeadlineTimer

if TYPE_CHECKING:
    from hedgerow.node.server import Server


class Monitoring:
    """`start` needs the server's broker."""

    monitor: HotTopics
    state: HotState

    def __init__(self, server: Server) -> None:
        self._server = server
        self._timer = DeadlineTimer(server.clock, self._handle_timer)
        self._is_armed = True

    def start(self) -> None:
        settings, broker = self._server.config.mobility.settings, self._server.broker
        self.monitor = HotTopics(settings.x_s, settings.y_s, settings.share, settings.capacity)
        self.state = HotState(broker, self.monitor, self._server.clock())
        broker.observe(HotObserver(self.monitor))
        self._is_armed = False

    def stop(self) -> None:
        self._timer.cancel()
        self._is_armed = True

    @property
    def has_work(self) -> bool:
        """An event has come after a silence, in which nothing was due. This is asked at each flush, and the
        monitor only while no timer runs."""
        return not self._is_armed and self._deadline != float("inf")

    @property
    def _deadline(self) -> float:
        return min(self.monitor.deadline, self.state.deadline)

    def serve(self) -> None:
        self._timer.set(self._deadline)
        self._is_armed = True

    def _handle_timer(self) -> None:
        now = self._server.clock()
        self.monitor.handle_timer(now)
        self.monitor.take_changes()
        self.state.look(now)
        if self.state.deadline <= now:
            self.state.handle_timer(now)
        self._is_armed = False
        self._server.flush()
