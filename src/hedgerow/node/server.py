"""A node's shell: everything between sockets and the `Broker` machine.

Bytes come in through a `Link`, which gives them to its machine and then calls `flush`. A flush writes
what every touched connection has to say, each with one write, and after it the log gets its events,
logins go to their threads, the store gets its next batch, and the one timer is set to the machine's
next deadline. There is no task, future or timer per connection or per message.

A `Server` lives in whichever process and event loop starts it: `hedgerow up` runs one, the demo and
the tests run theirs beside their clients.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from hedgerow.broker.broker import Broker
from hedgerow.broker.limits import Limits
from hedgerow.errors import ConfigError, StoreError
from hedgerow.federation.neighbours import NeighbourRole
from hedgerow.mobility.roles import MobileBrokerRole
from hedgerow.mqtt.reasons import Reason
from hedgerow.node.clock import SteadyClock
from hedgerow.node.committer import CommitStats, Committer
from hedgerow.node.config import Config, load_access
from hedgerow.node.eventlog import EventLog
from hedgerow.node.lateness import Lateness
from hedgerow.node.logins import Logins
from hedgerow.node.passwords import Passwords
from hedgerow.node.sockets import Sockets
from hedgerow.node.status import StatusTeller
from hedgerow.node.version import VERSION

if TYPE_CHECKING:
    from pathlib import Path

    from hedgerow.bridges.part import Bridges
    from hedgerow.federation.part import FederationPart
    from hedgerow.home_assistant.part import HomeAssistant
    from hedgerow.journal.part import NodeJournal
    from hedgerow.mobility.io.monitoring import Monitoring
    from hedgerow.mobility.part import MobilityPart
    from hedgerow.multicast.part import MulticastGateway
    from hedgerow.node.http import Handler
    from hedgerow.node.mdns_services import MdnsServices
    from hedgerow.node.store import Store
    from hedgerow.sensors.part import Sensors

logger = logging.getLogger(__name__)

SHUT_DOWN_S = 2.0  # for clients to take their last bytes, and again for the store
STALL_S = 0.05  # a timer that comes later than this tells that the process did not run
HEARING_S = 0.005  # one turn of the loop, in which it reads from every socket


class Server:
    """One node. `start` returns when it takes connections, `stop` when all is stored and closed."""

    config: Config
    limits: Limits
    broker: Broker
    node_id: str
    sockets: Sockets

    def __init__(self, config: Config) -> None:
        self.config = config
        self.limits = config.limits
        self.clock = SteadyClock()
        self.started_at = self.clock()
        self.sockets = Sockets(self)
        self.event_log = EventLog(logging.getLogger("hedgerow.broker"))
        self.lateness = Lateness()  # of the timer, which tells how late everyone's turn is
        self.routes: dict[str, Handler] = {}  # of the HTTP port, by path
        self.actions: dict[str, Handler] = {}  # and those for POST
        self.stopping = False
        self.on_hopeless: Callable[[ConfigError], None] = _log_hopeless
        """What was asked for turned out to be wrong while the node ran, and no time makes it right."""
        self.sensors: Sensors | None = None
        self.multicast: MulticastGateway | None = None
        self.bridges: Bridges | None = None
        self.federation: FederationPart | None = None
        self.mobility: MobilityPart | None = None
        self.monitoring: Monitoring | None = None
        self.journal: NodeJournal | None = None
        self.home_assistant: HomeAssistant | None = None
        self._status = StatusTeller(self)
        # What dials or has deadlines of its own, and is to be served when it has work.
        self._parts: list[Bridges | FederationPart | MobilityPart | Monitoring] = []
        self._mdns: MdnsServices | None = None
        self._logins: Logins | None = None
        self._committer: Committer | None = None
        self._flushing = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._stalled = False

    @property
    def urls(self) -> list[str]:
        urls = self.sockets.urls
        urls += self.sensors.urls if self.sensors is not None else []
        return urls + (self.multicast.urls if self.multicast is not None else [])

    @property
    def listening(self) -> list[tuple[str, int]]:
        """Hosts and ports at which clients of MQTT may connect."""
        return self.sockets.listening

    @property
    def open_sockets(self) -> int:
        return self.sockets.open

    @property
    def problem(self) -> str | None:
        """Why the node cannot do all of its work at present; None when it can."""
        if self.stopping:
            return "stopping"
        return self._committer.failure if self._committer is not None else None

    @property
    def commits(self) -> CommitStats | None:
        """Of a node that has a store or a journal."""
        return self._committer.stats if self._committer is not None else None

    @property
    def passwords(self) -> Passwords | None:
        """Those in force; None before they are read, and where there are none."""
        return self._logins.passwords if self._logins is not None else None

    # Start and stop

    async def start(self) -> None:
        """Raises ConfigError, or StoreError, and then leaves nothing behind."""
        self._loop = asyncio.get_running_loop()
        try:
            self._bind()
            await self._load()
            await self._start_parts()
        except BaseException:
            await self._undo_start()
            raise
        self._begin_to_serve()
        self.flush()

    async def _start_parts(self) -> None:
        from hedgerow.bridges.part import Bridges

        self.bridges = Bridges(self)
        self.bridges.start()
        self._parts.append(self.bridges)
        if self.config.federation.is_enabled or self.config.federation.home is not None:
            from hedgerow.federation.part import FederationPart

            self.federation = FederationPart(self)
            self.federation.start()
            self._parts.append(self.federation)
        self._start_mobility()
        if self.config.multicast.topics:
            from hedgerow.multicast.part import MulticastGateway

            self.multicast = MulticastGateway(self)
            await self.multicast.start()

    async def _undo_start(self) -> None:
        await self.sockets.stop_listening()
        if self.sensors is not None:
            self.sensors.stop()
        if self.multicast is not None:
            await self.multicast.stop()
        await self._stop_mobility()
        if self.federation is not None:
            await self.federation.stop()
        if self.bridges is not None:
            await self.bridges.stop()
        await self._close_files()

    def _begin_to_serve(self) -> None:
        self.sockets.listen()
        if self.sensors is not None:
            self.sensors.start()
        if self.config.mdns:
            from hedgerow.node.mdns_services import MdnsServices

            self._mdns = MdnsServices(self.node_id, self.urls)
            self._mdns.start()
        self._status.start()
        if self.config.home_assistant is not None:
            from hedgerow.home_assistant.part import HomeAssistant

            self.home_assistant = HomeAssistant(self, self.config.home_assistant)
            self.home_assistant.start()

    def _start_mobility(self) -> None:
        config = self.config.mobility
        if config.role is not None:
            from hedgerow.mobility.part import MobilityPart

            self.mobility = MobilityPart(self)
            self.mobility.start()
            self._parts.append(self.mobility)
        if config.monitors and not config.is_mobile:  # a mobile broker's own monitor shows what it decides
            from hedgerow.mobility.io.monitoring import Monitoring

            self.monitoring = Monitoring(self)
            self.monitoring.start()
            self._parts.append(self.monitoring)

    async def _stop_mobility(self) -> None:
        if self.mobility is not None:
            await self.mobility.stop()
        if self.monitoring is not None:
            self.monitoring.stop()

    def _bind(self) -> None:
        if self.config.udp:
            from hedgerow.sensors.part import Sensors

            self.sensors = Sensors(self)
        self.sockets.bind()

    async def _load(self) -> None:
        """Take up what the files hold: passwords, access rules, the store and the journal."""
        config = self.config
        if config.passwords is not None:
            self._logins = Logins(self, Passwords.load(config.passwords))
        access = load_access(config)
        default_id = f"{_host_name()}-{secrets.token_hex(3)}"
        if config.data is None:
            self.node_id, snapshot = config.id or default_id, None
            # As a new store counts: no life of this name repeats another's, nor one that begins in the same
            # second the ids of the one before.
            seconds, fraction = divmod(time.time(), 1.0)
            epoch, begun_at = int(seconds), fraction
        else:
            store = await _open_store(config.data)
            self._committer = Committer(self, store)
            self.node_id, snapshot = store.node_id(default_id, config.id), store.load()
            epoch, begun_at = store.epoch, 0.0
        self.broker = Broker(
            self.node_id,
            epoch,
            self.clock(),
            self.limits,
            access,
            durable=config.data is not None,
            snapshot=snapshot,
            verifies_passwords=self._logins is not None,
            sys_interval_s=config.sys_interval_s,
            version=VERSION,
            administrators=config.administrators,
            begun_at=begun_at,
        )
        self.broker.register(NeighbourRole(self.broker))
        self.broker.register(MobileBrokerRole(self.broker))
        if config.journal.topics:
            await self._open_journal()

    async def _open_journal(self) -> None:
        from hedgerow.journal.observer import JournalObserver
        from hedgerow.journal.part import NodeJournal

        config = self.config.journal
        self.journal = await NodeJournal.open(config, self.node_id)
        if self._committer is None:
            self._committer = Committer(self, None)
        self._committer.add_journal(self.journal)
        self.broker.observe(JournalObserver(self.journal, config.topics))
        logger.info("recording %s in the journal in %s", ", ".join(config.topics), config.directory)

    def reload(self) -> None:
        """Read passwords, access rules, neighbours, fixed brokers and multicast keys again. What is wrong
        leaves the old in force."""
        try:
            passwords = Passwords.load(self.config.passwords) if self.config.passwords else None
            access = load_access(self.config)
            neighbours = self.config.federation.read_neighbours()
            fixed = self.config.mobility.read_fixed()
            if self.multicast is not None:
                self.multicast.reload_keys()  # last: it takes effect at once
        except ConfigError as error:
            logger.error("nothing reloaded: %s", error)
            return
        self.broker.set_access(access)
        if self.sensors is not None:
            self.sensors.set_access(access)
        if self._logins is not None and passwords is not None:
            self._logins.passwords = passwords
            self._disconnect_users_not_in(passwords)
        if self.federation is not None:
            self.federation.set_neighbours(neighbours)
        if self.mobility is not None:
            self.mobility.set_fixed(fixed)
        logger.info("passwords, access rules, keys, neighbours and fixed brokers reloaded")

    def _disconnect_users_not_in(self, passwords: Passwords) -> None:
        self.broker.now = self.clock()
        for connection in list(self.broker.connections):
            if connection.session is None or connection.certificate_name is not None:
                continue
            username = connection.session.username
            if username is not None and username not in passwords:
                connection.disconnect(Reason.NOT_AUTHORIZED, "the user is gone")
        self.flush()

    async def stop(self) -> None:
        if self.stopping:
            return
        self.stopping = True
        self._status.stop()
        if self.home_assistant is not None:
            self.home_assistant.stop()  # first, while there are neighbours to hear it
        if self._mdns is not None:
            await self._mdns.stop()
        await self.sockets.stop_listening()
        if self.sensors is not None:
            self.sensors.stop()
        await self._stop_mobility()
        if self.federation is not None:
            await self.federation.stop()
        if self.bridges is not None:
            await self.bridges.stop()
        if self._committer is not None:
            await self._committer.drain(SHUT_DOWN_S)  # acknowledgements leave before the connections do
        self.broker.shut_down(self.clock())
        self.flush()
        await self.sockets.close(SHUT_DOWN_S)
        if self.multicast is not None:
            await self.multicast.stop()  # behind the clients: their wills flow too
        if self._committer is not None and not await self._committer.drain(SHUT_DOWN_S):
            logger.error("the last changes are not stored: %s", self._committer.failure or "too slow")
        await self._close_files()
        self.event_log.close()
        if self._timer is not None:
            self._timer.cancel()

    async def _close_files(self) -> None:
        if self._logins is not None:
            self._logins.close()
        if self._committer is not None:
            await self._committer.close()
        if self.journal is not None:
            await self.journal.close()

    # The machine's output

    def flush(self) -> None:
        if self._flushing:  # a write called back; the loop below will come to it
            return
        self._flushing = True
        broker, parts = self.broker, self._parts
        while broker.dirty or any(each.has_work for each in parts):
            for each in parts:
                if each.has_work:
                    each.serve()
            for connection in broker.take_dirty():
                link = connection.link
                if link is not None:
                    try:
                        link.transmit()
                    except Exception:  # a mistake of ours in one link must not silence the others
                        logger.exception("writing to %s failed", connection.address)
                        link.transport.abort()
        self._flushing = False
        if broker.events:
            now = self.clock()
            for event in broker.take_events():
                self.event_log.write(event, now)
        if self._logins is not None:
            for login in broker.take_logins():
                self._logins.add(login)
        if self._committer is not None:
            self._committer.poll()
        if broker.deadline < self._timer_at:
            self.wake_at(broker.deadline)
        if self.multicast is not None:
            self.multicast.flush()

    def wake_at(self, at: float) -> None:
        if at >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_later(max(at - self.clock(), 0), self._handle_timer)

    def _handle_timer(self) -> None:
        now = self.clock()
        late_s, self._timer_at = now - self._timer_at, float("inf")
        self.lateness.note(late_s, now)
        self._stalled = late_s > STALL_S and not self._stalled
        if self._stalled:
            # The process did not run: it was stopped, or the machine slept. What clients sent meanwhile
            # is heard before anyone's time is over.
            self.wake_at(now + HEARING_S)
            return
        self.broker.handle_timer(now)
        self.event_log.handle_timer(now)
        self.sockets.handle_timer(now)
        if self.event_log.deadline is not None:
            self.wake_at(self.event_log.deadline)
        self.flush()


def _log_hopeless(error: ConfigError) -> None:
    logger.error("%s", error)


async def _open_store(directory: Path) -> Store:
    """In a thread: it waits for the disk, and other nodes may live in this loop."""
    from hedgerow.node.store import Store

    opening = asyncio.ensure_future(asyncio.to_thread(Store.open, directory))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        # The thread goes on, and what it opens stays locked until it is closed.
        with suppress(StoreError):
            (await opening).close()
        raise


def _host_name() -> str:
    """The host's name as far as a node id may contain it."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", socket.gethostname().partition(".")[0])[:32] or "node"
