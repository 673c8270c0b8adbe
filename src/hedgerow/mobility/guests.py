"""The clients of mobile brokers that a fixed broker serves, and what of it they have.

An event of a mobile broker is settled when every guest has acknowledged it: until then the mobile broker
keeps it, and if this broker dies, notifies them itself. Nothing tells when one is acknowledged, which would
cost every delivery of every client; so it is looked at every few milliseconds while something is unsettled.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from hedgerow.broker.broker import Broker
from hedgerow.broker.publishing import deliver_to
from hedgerow.broker.session import Session
from hedgerow.mobility.delegation import addresses
from hedgerow.mobility.delegation.events import Notification
from hedgerow.mobility.delegation.fixed import FixedSide
from hedgerow.mobility.kept_for_mobiles import KeptForMobiles
from hedgerow.mobility.sessions import is_finished, take_waiting
from hedgerow.mqtt.outbox import Delivery

CALL_S = 3.0
MAX_CALLS = 5
LOOK_S = 0.01
PATIENCE_S = 5.0  # A guest that does not acknowledge for so long holds up nobody else.


class _Unsettled(NamedTuple):
    receipt: tuple[str, int]
    deliveries: list[tuple[Session, Delivery]]
    until: float


class GuestSessions:
    def __init__(self, broker: Broker, machine: FixedSide, kept: KeptForMobiles) -> None:
        self._broker = broker
        self._machine = machine
        self._kept = kept
        self._sessions: dict[str, Session] = {}  # by callback
        self._callbacks: dict[str, str] = {}  # by client id
        self._called: dict[str, tuple[float, int]] = {}  # when they are told again to go home, and how often
        self._unsettled: deque[_Unsettled] = deque()
        self._open: list[tuple[Session, Delivery]] = []
        self._look_at = float("inf")

    @property
    def deadline(self) -> float:
        called_at = min((at for at, _ in self._called.values()), default=float("inf"))
        return min(self._look_at, called_at)

    def arrived(self, callback: str, session: Session) -> None:
        # After a crash it is no client of this broker's: its mobile one has what it did not get, or is given
        # it (`KeptForMobiles`).
        self._broker.durability.discard_session(session)
        self._sessions[callback] = session
        self._callbacks[session.client_id] = callback
        self._called.pop(callback, None)

    def session_of(self, callback: str) -> Session | None:
        return self._sessions.get(callback)

    def callback_of(self, session: Session) -> str | None:
        callback = self._callbacks.get(session.client_id)
        return callback if callback is not None and self._sessions.get(callback) is session else None

    def owner_of(self, callback: str) -> str:
        return addresses.owner_of(callback) or ""

    def count_of(self, mobile_id: str) -> int:
        return sum(addresses.owner_of(callback) == mobile_id for callback in self._sessions)

    def called_back(self, callback: str) -> None:
        """It is told to go home. One that could not, as it had not finished, is told again for a while."""
        times = self._called.get(callback, (0.0, 0))[1] + 1
        self._called[callback] = self._broker.now + CALL_S, times

    def take_lingering(self, now: float) -> list[str]:
        """Those who are to be told again."""
        due = [callback for callback, (at, _) in self._called.items() if at <= now]
        for callback in due:
            session = self._sessions.get(callback)
            if session is None or self._called[callback][1] >= MAX_CALLS:
                del self._called[callback]
        return [callback for callback in due if callback in self._called]

    def leave(self, callback: str) -> list[Delivery]:
        """What it did not acknowledge."""
        session = self._sessions.pop(callback)
        self._callbacks.pop(session.client_id, None)
        self._called.pop(callback, None)
        return take_waiting(self._broker, session)

    # Deliveries

    def deliver(self, callback: str, notification: Notification, qos: int) -> None:
        session = self._sessions.get(callback)
        if session is None:
            return
        receipt = notification.receipt
        delivery = deliver_to(
            self._broker, session, notification.message, None, qos, notification.is_again, is_followed=True
        )
        if delivery is None:
            return
        if receipt is not None:
            self._open.append((session, delivery))
        if receipt is None or receipt[0] != self.owner_of(callback):
            self._kept.delivered(callback, session, delivery)

    def settle_if_done(self, notification: Notification) -> None:
        """All of its guests have been served: now, or when they have acknowledged."""
        deliveries, self._open = self._open, []
        receipt = notification.receipt
        if receipt is None:
            return
        if deliveries:
            now = self._broker.now
            self._unsettled.append(_Unsettled(receipt, deliveries, now + PATIENCE_S))
            self._look_at = min(self._look_at, now + LOOK_S)
        else:
            self._machine.settle(*receipt)

    def handle_timer(self, now: float) -> None:
        if now < self._look_at:
            return
        unsettled = self._unsettled
        while unsettled and (unsettled[0].until <= now or _is_done(unsettled[0])):
            first = unsettled.popleft()
            self._keep(first)
            self._machine.settle(*first.receipt)
        self._look_at = now + LOOK_S if unsettled else float("inf")

    def _keep(self, unsettled: _Unsettled) -> None:
        """What a guest still has to acknowledge: its mobile broker, who kept it, does so no more."""
        for session, delivery in unsettled.deliveries:
            callback = self.callback_of(session)
            if callback is None or is_finished(session, delivery):
                continue
            if self.owner_of(callback) == unsettled.receipt[0]:
                self._kept.delivered(callback, session, delivery)


def _is_done(unsettled: _Unsettled) -> bool:
    return all(is_finished(session, delivery) for session, delivery in unsettled.deliveries)
