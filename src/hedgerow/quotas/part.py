"""Quotas at a running node: each client's connection has a meter, and goes on when that has room again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from hedgerow.broker.connection import Connection
from hedgerow.broker.metered import go_on, meter_publications
from hedgerow.broker.owners import owner_of
from hedgerow.node.part import NEVER, NodeContext, Part
from hedgerow.quotas.buckets import Account, Accounts, ConnectionMeter
from hedgerow.quotas.config import QuotasConfig

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from hedgerow.node.config import Config

CALLS_AT_ONCE = 100  # The others are next, when sockets have had their turn.


class QuotasPart(Part):
    def __init__(self, node: NodeContext) -> None:
        super().__init__(node)
        settings = node.config.of(QuotasConfig)
        self.clients = Accounts(settings.client_messages, settings.client_bytes)
        self.users = Accounts(settings.user_messages, settings.user_bytes)
        self.listeners = Accounts(settings.listener_messages, settings.listener_bytes)
        self.exceeded = 0
        """How often a publication found no room."""
        self._numbers = count()
        self._paused: list[tuple[float, int, Connection]] = []  # and when each goes on
        self._waiting: set[Connection] = set()  # the same

    async def start(self) -> None:
        self._watch()

    def _watch(self) -> None:
        """Whoever nobody bounds has no meter, and costs nothing."""
        broker = self.node.broker
        broker.on_established = self._established if self._are_bounded else None
        for connection in list(broker.connections):
            if isinstance(connection, Connection):
                self._established(connection)

    @property
    def _are_bounded(self) -> bool:
        return any(each.are_bounded for each in (self.clients, self.users, self.listeners))

    def _established(self, connection: Connection) -> None:
        session = connection.session
        # Links carry what many clients have published, each of whom had a quota where it did.
        if session is None or session.role.is_link or not connection.is_connected:
            return
        if not self._are_bounded:
            meter_publications(connection, None)
            return
        accounts = self._accounts_of(
            session.client_id, session.username, connection.address, connection.transport
        )
        refused = partial(self._refused, connection)
        meter_publications(connection, ConnectionMeter(accounts, self._now, refused))

    def _accounts_of(
        self, client_id: str | None, username: str | None, address: str, listener: str
    ) -> list[Account]:
        now, owner = self._now(), owner_of(username, address)
        named = (
            (self.clients, None if client_id is None else (owner, client_id)),
            (self.users, owner),
            (self.listeners, listener),
        )
        return [each.get(name, now) for each, name in named if each.are_bounded and name is not None]

    def _now(self) -> float:
        return self.node.clock()

    def _refused(self, connection: Connection, until: float) -> None:
        self.exceeded += 1
        if connection not in self._waiting:
            self._waiting.add(connection)
            heappush(self._paused, (until, next(self._numbers), connection))
            self.node.wake_at(until)

    @property
    def deadline(self) -> float:
        return self._paused[0][0] if self._paused else NEVER

    def handle_timer(self, now: float) -> None:
        self.node.broker.now = now
        for _ in range(CALLS_AT_ONCE):
            if not self._paused or self._paused[0][0] > now:
                return
            _, _, connection = heappop(self._paused)
            self._waiting.discard(connection)
            if connection.is_connected:
                go_on(connection)

    def publication_wait_s(self, username: str | None, address: str, size: int) -> float:
        now, accounts = self._now(), self._accounts_of(None, username, address, "http")
        if all(account.room(now) for account in accounts):
            for account in accounts:
                account.charge(1, size, now)
            return 0.0
        self.exceeded += 1
        return max(0.001, *(account.ready_at() - now for account in accounts))

    def reload(self, config: Config) -> Callable[[], None]:
        return partial(self._set, config.of(QuotasConfig))

    def _set(self, settings: QuotasConfig) -> None:
        self.clients.set_rates(settings.client_messages, settings.client_bytes)
        self.users.set_rates(settings.user_messages, settings.user_bytes)
        self.listeners.set_rates(settings.listener_messages, settings.listener_bytes)
        self._watch()
        paused, self._paused = self._paused, []
        self._waiting.clear()
        self.node.broker.now = self._now()
        for _, _, connection in paused:
            if connection.is_connected:
                go_on(connection)  # It asks anew.
        self.node.flush()

    def metrics(self) -> Iterable[Metric]:
        from hedgerow.quotas.metrics import quota_metrics

        return quota_metrics(self.exceeded)
