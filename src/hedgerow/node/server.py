"""A node: a broker and a list of parts, between them and the event loop.

Bytes come in through a `Link`, which gives them to its machine; then its `Poller` calls `flush`, or the link
`flush_soon`. So what comes of the bytes that one turn of the event loop read from all sockets is flushed
together. A flush writes what every touched connection has to say, each with one write, and lets every part
that has work do it, until there is nothing left; then the log gets its events, and the one timer is set to
the next deadline. There is no task, future or timer per connection or per message.

A `Server` lives in whichever process and event loop starts it: `hedgerow up` runs one, the demo and the tests
run theirs beside their clients. `hedgerow.parts` has the table of parts that it is made with.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from hedgerow.broker.access import UserGroups
from hedgerow.broker.broker import Broker
from hedgerow.broker.events import ConnectionRefused
from hedgerow.broker.owners import owner_of
from hedgerow.errors import ConfigError
from hedgerow.node.clock import SteadyClock
from hedgerow.node.config import Config, load_access
from hedgerow.node.eventlog import EventLog
from hedgerow.node.failures import Failures
from hedgerow.node.lateness import Lateness
from hedgerow.node.open_sockets import OpenSockets
from hedgerow.node.part import NEVER, AnyPart, Part, PartEntry
from hedgerow.node.reloading import changed_files, find_changes, merge, prints_of, settle_rooms
from hedgerow.node.version import VERSION

if TYPE_CHECKING:
    from hedgerow.node.handlers import Handler, Tree
    from hedgerow.node.passwords import Passwords

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

SHUT_DOWN_S = 2.0
STALL_S = 0.05  # a timer that comes later than this tells that the process did not run
HEARING_S = 0.005  # one turn of the loop, in which it reads from every socket
AGAIN_S = 0.001  # a part whose deadline has not moved must not take the loop for itself
# What may be handled of a turn of the loop before its output leaves, in units of the broker's work (some 150
# messages), and in bytes received: nobody waits for much of what others brought, and a slow reader's output
# does not pile up. With 60 units 500 devices at QoS 1 took the processor for 11 % longer, 40 % where ten
# subscribers share what they send; without a bound it was 2 % less.
FLUSH_WORK = 1_000
FLUSH_BYTES = 64 * 1024
BROKER_RESTS_S = 1.0  # A timer of the broker that fails each time must not take it either.


class Server:
    """`start` returns when it takes connections, `stop` when all is stored and closed."""

    broker: Broker
    node_id: str

    def __init__(
        self, config: Config, table: Sequence[PartEntry], *, shut_down_s: float = SHUT_DOWN_S
    ) -> None:
        self.config = config
        self.shut_down_s = shut_down_s
        self.clock = SteadyClock()
        self.started_at = self.clock()
        self.sockets = OpenSockets(config, self.clock, self.wake_at, self._refused)
        self.event_log = EventLog(logging.getLogger("hedgerow.broker"))
        self.lateness = Lateness()  # of the timer, which tells how late everyone's turn is
        self.passwords: Passwords | None = None
        self.memberships = UserGroups()
        self.routes: dict[str, Handler] = {}
        self.actions: dict[str, Handler] = {}
        self.trees: dict[str, Tree] = {}
        self.stopping = False
        self.on_hopeless: Callable[[ConfigError], None] = _log_hopeless
        """What `give_up` comes to."""
        self.read_again: Callable[[], Config] = lambda: config
        """The configuration, as its file is now; raises ConfigError."""
        self.on_reloaded: Callable[[Config], None] = lambda config: None
        self.parts: list[Part] = []
        self._prints = prints_of(config)
        self._table = table
        # Only those that can have any are asked, at each flush, whether they have work.
        self._workers: list[Part] = []
        self.failures = Failures()
        self._broker_rests_until = 0.0
        self._flushing = False
        self._will_flush = False  # at the end of this turn of the loop
        self._flush_at_work = self._flush_at_bytes = 0  # the broker's counts that it does not go beyond
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self._stalled = False

    @property
    def urls(self) -> list[str]:
        """What was made last is nearest to clients."""
        return [url for part in reversed(self.parts) for url in part.urls]

    @property
    def listening(self) -> list[tuple[str, int]]:
        return [place for part in self.parts for place in part.listening]

    @property
    def open_sockets(self) -> int:
        return self.sockets.open

    @property
    def problem(self) -> str | None:
        if self.stopping:
            return "stopping"
        problems = (self.ask(part, lambda part: part.problem, None) for part in self.parts)
        return next((problem for problem in problems if problem is not None), None)

    def find(self, kind: type[AnyPart]) -> AnyPart | None:
        return next((part for part in self.parts if isinstance(part, kind)), None)

    def ask(self, part: Part, read: Callable[[Part], Answer], otherwise: Answer) -> Answer:
        try:
            return read(part)
        except Exception as error:
            self.failures.note(type(part).__name__, error)
            return otherwise

    def give_up(self, error: ConfigError) -> None:
        self.on_hopeless(error)

    # Start and stop

    async def start(self) -> None:
        """Raises ConfigError, or StoreError, and then leaves nothing behind."""
        self._loop = asyncio.get_running_loop()
        try:
            for entry in self._table:
                if entry.is_wanted(self.config):
                    self._add(entry.load()(self))
            await self._make_broker()
            for part in self.parts:
                await part.start()
                part.is_running = True
                if type(part).has_work is not Part.has_work:
                    self._workers.append(part)
        except BaseException:
            await self._stop_parts()
            await self._close_parts()
            raise
        self._set_timer(self.clock())
        self.flush()

    def _add(self, part: Part) -> None:
        self.parts.append(part)
        self.routes |= part.routes()
        self.actions |= part.actions()
        self.trees |= part.trees()

    async def _make_broker(self) -> None:
        config = self.config
        access = load_access(config, self.memberships)
        default_id = f"{_host_name()}-{os.urandom(3).hex()}"
        store, log_bounds = None, None
        for part in self.parts:
            if store is None:
                store, log_bounds = await part.open_store(), part.log_bounds
        if store is None:
            self.node_id, snapshot = config.id or default_id, None
            # As a new store counts: no life of this name repeats another's, nor one that begins in the same
            # second the ids of the one before.
            seconds, fraction = divmod(time.time(), 1.0)
            epoch, begun_at = int(seconds), fraction
        else:
            self.node_id, snapshot = store.node_id(default_id, config.id), store.load()
            epoch, begun_at = store.epoch, 0.0
        self.broker = Broker(
            self.node_id,
            epoch,
            self.clock(),
            config.limits,
            access,
            durable=store is not None,
            snapshot=snapshot,
            log=store.log if store is not None else None,
            log_bounds=log_bounds,
            verifies_passwords=config.has_users,
            sys_interval_s=config.sys_interval_s,
            version=VERSION,
            administrators=config.administrators,
            begun_at=begun_at,
        )
        self.broker.takes_empty_client_ids = config.empty_client_ids
        self.broker.offer(config.maximum_qos, config.retain_available)
        connections = self.broker.owners.connections
        self.sockets.connections_of = lambda address: connections.of(owner_of(None, address))

    def reload(self) -> None:
        """Read the configuration and its files again. What is wrong leaves all of the old in force."""
        old = self.config
        try:
            new = self.read_again()
            changes = find_changes(old, new, self._table)
            merged = merge(old, new, changes)
            prints = prints_of(merged)
            access = load_access(merged, self.memberships)
            put_in_force = [(part, part.reload(merged)) for part in self.parts]
        except ConfigError as error:
            logger.error("nothing reloaded: %s", error)
            return
        except Exception as error:
            self.failures.note("reloading", error, "nothing is reloaded")
            return
        self.config = settle_rooms(old, merged, changes, self._table)
        self.broker.set_limits(self.config.limits)
        self.broker.administrators = self.config.administrators
        self.broker.takes_empty_client_ids = self.config.empty_client_ids
        self.broker.set_access(access)
        self.sockets.set_limits(self.config)
        for part, put in put_in_force:
            try:
                put()
            except Exception as error:  # The others' are in force already.
                self.failures.note(type(part).__name__, error, "restart the node to have its files in force")
        self.on_reloaded(self.config)
        changed = [*changes.now, *changed_files(self._prints, prints, changes)]
        self._prints = prints
        what = f"changed: {', '.join(map(str, changed))}" if changed else "nothing has changed"
        logger.info("configuration and files reloaded; %s", what)
        for name in changes.at_restart:
            logger.warning("%s: changed, takes effect after a restart", name)

    async def stop(self) -> None:
        if self.stopping:
            return
        self.stopping = True
        await self._stop_parts()
        self.broker.shut_down(self.clock())
        self.flush()
        await self._close_parts()
        self.event_log.close()

    async def _stop_parts(self) -> None:
        for part in reversed(self.parts):
            if part.is_running:
                part.is_running = False
                try:
                    await part.stop()
                except Exception:
                    logger.exception("%s did not stop in order", type(part).__name__)

    async def _close_parts(self) -> None:
        for part in reversed(self.parts):
            try:
                await part.close()
            except Exception:
                logger.exception("%s did not close in order", type(part).__name__)
        self._workers = []
        if self._timer is not None:
            self._timer.cancel()

    # The machines' output

    def flush_soon(self) -> None:
        broker = self.broker
        if broker.work > self._flush_at_work or broker.stats.bytes_received > self._flush_at_bytes:
            self.flush()
        elif not self._will_flush:
            self._will_flush = True
            # Both event loops call this when they have read from every socket that was ready: uvloop before
            # it looks at its sockets again, asyncio just after it has.
            self._loop.call_soon(self._flush_turn)

    def _flush_turn(self) -> None:
        self._will_flush = False
        self.flush()

    def flush(self) -> None:
        if self._flushing:  # a write called back; the loop below will come to it
            return
        self._flushing = True
        try:
            self._flush()
        finally:
            self._flushing = False
        broker = self.broker
        self._flush_at_work = broker.work + FLUSH_WORK
        self._flush_at_bytes = broker.stats.bytes_received + FLUSH_BYTES
        if broker.events:
            now = self.clock()
            for event in broker.take_events():
                self.event_log.write(event, now)
        if broker.deadline < self._timer_at:
            self.wake_at(max(broker.deadline, self._broker_rests_until))

    def _flush(self) -> None:
        broker = self.broker
        while broker.dirty or self._serve_parts():  # first what somebody waits for
            for connection in broker.take_dirty():
                link = connection.link
                if link is not None:
                    try:
                        link.transmit()
                    except Exception:  # a mistake of ours in one link must not silence the others
                        logger.exception("writing to %s failed", connection.address)
                        link.transport.abort()

    def _serve_parts(self) -> bool:
        """Had any of them something to do?"""
        has_served, left_alone = False, self.failures.left_alone
        for part in self._workers:
            try:
                if part not in left_alone and part.has_work:
                    has_served = True
                    part.serve()
                    if part.deadline < self._timer_at:
                        self.wake_at(part.deadline)
            except Exception as error:
                self._leave_alone(part, error)
        return has_served

    def _leave_alone(self, part: Part, error: Exception) -> None:
        self.wake_at(self.failures.leave_alone(part, type(part).__name__, error, self.clock()))

    def wake_at(self, at: float) -> None:
        if at >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_later(max(at - self.clock(), 0), self._handle_timer)

    def _handle_timer(self) -> None:
        now = self.clock()
        late_s, self._timer_at = now - self._timer_at, NEVER
        self.lateness.note(late_s, now)
        self._stalled = late_s > STALL_S and not self._stalled
        if self._stalled:
            # The process did not run: it was stopped, or the machine slept. What clients sent meanwhile
            # is heard before anyone's time is over.
            self.wake_at(now + HEARING_S)
            return
        self.failures.handle_timer(now)
        try:
            self.broker.handle_timer(now)
        except Exception as error:
            self.failures.note("the broker", error)
            self._broker_rests_until = now + BROKER_RESTS_S
        self.event_log.handle_timer(now)
        self.sockets.handle_timer(now)
        for part in self.parts:
            if part.is_running and not self.failures.is_left_alone(part):
                try:
                    if part.deadline <= now:
                        part.handle_timer(now)
                except Exception as error:
                    self._leave_alone(part, error)
        self.flush()
        self._set_timer(now)

    def _set_timer(self, now: float) -> None:
        if self.event_log.deadline is not None:
            self.wake_at(self.event_log.deadline)
        for part in self.parts:
            deadline = self._deadline_of(part) if part.is_running else NEVER
            if deadline < self._timer_at:
                self.wake_at(max(deadline, now + AGAIN_S))

    def _deadline_of(self, part: Part) -> float:
        again_at = self.failures.again_at(part)
        if again_at is not None:
            return again_at
        try:
            return part.deadline
        except Exception as error:
            self._leave_alone(part, error)
            return NEVER

    def _refused(self, refused: ConnectionRefused) -> None:
        self.broker.stats.connections_refused += 1
        self.event_log.write(refused, self.clock())


def _log_hopeless(error: ConfigError) -> None:
    logger.error("%s", error)


def _host_name() -> str:
    """The host's name as far as a node id may contain it."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", socket.gethostname().partition(".")[0])[:32] or "node"
