"""Multicast DNS, through the `zeroconf` library: names of topics, where they have any, and other members.

Each member is announced as a service `_hedgerow-mc._udp.local.` with its own port, and those found are
told to `add_peer`: where the network lets mDNS pass and filters other multicast, they can still be sent
copies. The names of topics are asked for, announced and taken back as `NamedGroups` says.

The library is slow to import, and is started in the background: a command that sends one message and
ends does not wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hedgerow.errors import ConfigError, reason_of
from hedgerow.multicast.io.interfaces import Choice
from hedgerow.multicast.io.peer_names import numeric_address
from hedgerow.multicast.peers import PeerAddress
from hedgerow.multicast.topic_groups import NamedGroups

if TYPE_CHECKING:
    from zeroconf import ServiceInfo, Zeroconf
    from zeroconf.asyncio import AsyncServiceBrowser, AsyncZeroconf

logger = logging.getLogger(__name__)

MEMBER_SERVICE = "_hedgerow-mc._udp.local."
TOPIC_SERVICE = "_hedgerow-topic._udp.local."
MDNS_PORT = 5353
_CLASS_IN = 1  # RFC 1035 §3.2
_ADDRESS_TYPES = {4: 1, 6: 28}  # A, and AAAA (RFC 3596)
_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}

# Topics have to be resolved soon. Peers are a fallback, and nothing to one-shot commands.
START_TOPICS_S = 0.02
START_PEERS_S = 1.0

MAX_ANNOUNCING = 128  # topics at the same time, each three times within half a second
LOOKUP_MS = 3_000
MAX_LOOKUPS = 32  # Anyone can announce members; each is looked up.


def check_port(ip: int) -> None:
    """Raises ConfigError when another program keeps multicast DNS to itself."""
    with socket.socket(_FAMILIES[ip], socket.SOCK_DGRAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            probe.bind(("", MDNS_PORT))
        except OSError as error:
            raise ConfigError(
                f"IPv{ip} multicast needs multicast DNS here, and UDP port {MDNS_PORT} cannot be shared with "
                f"the program that has it ({reason_of(error)}); `ss -ulpn 'sport = :{MDNS_PORT}'` names it. "
                "IPv6 multicast with computed groups (ip=6) works without."
            ) from None


class MulticastDns:
    """`topics` are the names to follow, if topics have any. `on_regrouped` is told the topics whose groups
    are others now."""

    def __init__(
        self,
        choice: Choice,
        port: int,
        own_port: int,
        sender: bytes,
        clock: Callable[[], float],
        add_peer: Callable[[PeerAddress, bytes], None],
        topics: NamedGroups | None = None,
        on_regrouped: Callable[[list[str]], None] = lambda topics: None,
    ) -> None:
        self.announced: dict[str, ServiceInfo] = {}
        """The topics' groups, by name."""
        self._choice = choice
        self._port = port
        self._own_port = own_port
        self._sender = sender.hex()
        self._clock = clock
        self._add_peer = add_peer
        self._topics = topics
        self._on_regrouped = on_regrouped
        self._loop = asyncio.get_running_loop()
        self._zeroconf: AsyncZeroconf | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._member: ServiceInfo | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._announcing = asyncio.Semaphore(MAX_ANNOUNCING)
        self._lookups = 0
        self._stopped = False
        self._start(self._run())

    @property
    def is_open(self) -> bool:
        return self._zeroconf is not None

    @property
    def is_browsing(self) -> bool:
        """Whether other members are looked for."""
        return self._browser is not None

    def _start(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Take back what was announced, and end."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._close()

    async def _close(self) -> None:
        zeroconf, self._zeroconf = self._zeroconf, None
        if zeroconf is None:
            return
        if self._browser is not None:
            await self._browser.async_cancel()
            self._browser = None
        await zeroconf.async_close()

    # Starting.

    async def _run(self) -> None:
        await asyncio.sleep(START_PEERS_S if self._topics is None else START_TOPICS_S)
        try:
            await self._open()
            if self._topics is not None:
                await asyncio.sleep(START_PEERS_S)
            await self._announce_member()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # The library raises whatever the system gave it.
            what = "other members are not found by name" if self._topics is None else "no topic is found"
            logger.warning("multicast DNS does not work here, so %s: %s", what, reason_of(error))
            await self._close()

    async def _open(self) -> None:
        from zeroconf import IPVersion
        from zeroconf.asyncio import AsyncZeroconf

        library = logging.getLogger("zeroconf")
        if library.level in (logging.NOTSET, logging.WARNING):  # as it was left, or sets itself
            # It logs a traceback for each datagram while an interface is down, of which we know.
            library.setLevel(logging.CRITICAL)
        version = IPVersion.V4Only if self._choice.ip == 4 else IPVersion.V6Only
        self._zeroconf = AsyncZeroconf(interfaces=self._interfaces, ip_version=version)
        await self._zeroconf.zeroconf.async_wait_for_start()
        if self._topics is not None:
            self._zeroconf.zeroconf.async_add_listener(
                _make_listener(self._family, self.receive_address), None
            )
            self._topics.ready(self._clock())
            self.flush()

    @property
    def _family(self) -> socket.AddressFamily:
        return _FAMILIES[self._choice.ip]

    @property
    def _interfaces(self) -> list[Any]:
        ip, interfaces = self._choice
        return [each.address if ip == 4 else each.index for each in interfaces]

    def set_choice(self, choice: Choice) -> None:
        """The interfaces have changed, though not the IP version."""
        self._choice = choice
        if self._zeroconf is not None:
            self._start(self._update_interfaces())

    async def _update_interfaces(self) -> None:
        assert self._zeroconf is not None
        try:
            await self._zeroconf.async_update_interfaces(self._interfaces)
            if self._member is not None:
                self._member.addresses = self._own_addresses
                await self._zeroconf.async_update_service(self._member)
        except (OSError, RuntimeError) as error:
            logger.warning("multicast DNS does not follow the interfaces: %s", reason_of(error))
        if self._topics is not None:
            self._topics.ready(self._clock())
            self.flush()

    # The names of topics.

    def flush(self) -> None:
        """Do what `topics` wants done. To be called after whatever was asked of it."""
        topics = self._topics
        if topics is None or self._stopped:
            return
        topics.handle_timer(self._clock())
        changed = topics.take_changed()
        if changed:
            self._on_regrouped(changed)
        if self._zeroconf is None:
            return
        questions = topics.take_questions()
        if questions:
            # What was announced before anyone here wanted to know is not said again within a second (RFC 6762
            # §6), and a publisher would have chosen another group by then.
            for name in questions:
                for address in () if topics.knows(name) else self.heard(name):
                    self._loop.call_soon(self.receive_address, name, address, False)
            self._ask(self._zeroconf.zeroconf, questions)
        for name, group in topics.take_announcements():
            self._start(self._announce(name, group))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if topics.deadline < float("inf"):
            self._timer = self._loop.call_later(max(0.0, topics.deadline - self._clock()), self.flush)

    def receive_address(self, name: str, address: str, is_farewell: bool) -> None:
        assert self._topics is not None
        if self._topics.follows(name):
            self._topics.receive_address(name, address, is_farewell, self._clock())
            self.flush()

    def heard(self, name: str) -> list[str]:
        """The groups of a name that have been announced and not taken back, whether it is followed or not."""
        from zeroconf import DNSAddress, current_time_millis  # type: ignore[attr-defined]

        if self._zeroconf is None:
            return []
        cache, now = self._zeroconf.zeroconf.cache, current_time_millis()
        return [
            socket.inet_ntop(self._family, record.address)
            for record in cache.get_all_by_details(name, _ADDRESS_TYPES[self._choice.ip], _CLASS_IN)
            if isinstance(record, DNSAddress) and not record.is_expired(now)
        ]

    def _ask(self, zeroconf: Zeroconf, names: list[str]) -> None:
        from zeroconf import DNSOutgoing, DNSQuestion  # type: ignore[attr-defined]

        question = DNSOutgoing(0)
        for name in names:
            question.add_question(DNSQuestion(name, _ADDRESS_TYPES[self._choice.ip], _CLASS_IN))
        zeroconf.async_send(question)

    async def _announce(self, name: str, group: str | None) -> None:
        """The library announces services. That of a topic has the topic's name as its server, and so
        the group as its address."""
        from zeroconf import Error

        async with self._announcing:
            try:
                await self._send_announcement(name, group)
            except (Error, OSError) as error:
                logger.warning("multicast DNS could not announce a topic's group: %s", reason_of(error))

    async def _send_announcement(self, name: str, group: str | None) -> None:
        from zeroconf import ServiceInfo

        if self._zeroconf is None:
            return
        info = self.announced.get(name)
        sending: Awaitable[Any] | None = None
        if group is None:
            if self.announced.pop(name, None) is not None and info is not None:
                sending = await self._zeroconf.async_unregister_service(info)
        elif info is None:
            instance = f"{self._sender}-{name.removesuffix('.local.')[-32:]}"
            addresses = [socket.inet_pton(self._family, group)]
            info = ServiceInfo(
                TOPIC_SERVICE, f"{instance}.{TOPIC_SERVICE}", self._port, server=name, addresses=addresses
            )
            self.announced[name] = info
            # "Cooperating": others announce the same name, which is the point.
            sending = await self._zeroconf.async_register_service(
                info, cooperating_responders=True, strict=False
            )
        else:
            info.addresses = [socket.inet_pton(self._family, group)]
            sending = await self._zeroconf.async_update_service(info)
        if sending is not None:
            await sending

    # Other members.

    @property
    def _own_addresses(self) -> list[bytes]:
        return [socket.inet_pton(self._family, each.address) for each in self._choice.interfaces]

    async def _announce_member(self) -> None:
        from zeroconf import ServiceInfo
        from zeroconf.asyncio import AsyncServiceBrowser

        assert self._zeroconf is not None
        self._member = ServiceInfo(
            MEMBER_SERVICE,
            f"{self._sender}.{MEMBER_SERVICE}",
            self._own_port,
            server=f"hedgerow-{self._sender}.local.",
            addresses=self._own_addresses,
            properties={"port": str(self._port)},
        )
        # The name is made of a random number: nobody else can have it.
        sending = await self._zeroconf.async_register_service(
            self._member, cooperating_responders=True, strict=False
        )
        self._browser = AsyncServiceBrowser(
            self._zeroconf.zeroconf, MEMBER_SERVICE, handlers=[self._member_changed]
        )
        await sending

    def _member_changed(self, zeroconf: Zeroconf, service_type: str, name: str, state_change: Any) -> None:
        from zeroconf import ServiceStateChange

        if state_change is ServiceStateChange.Removed or name.startswith(self._sender) or self._stopped:
            return
        if self._lookups < MAX_LOOKUPS:
            self._lookups += 1
            self._start(self._look_up(zeroconf, name))

    async def _look_up(self, zeroconf: Zeroconf, name: str) -> None:
        from zeroconf import Error
        from zeroconf.asyncio import AsyncServiceInfo

        try:
            info = AsyncServiceInfo(MEMBER_SERVICE, name)
            with suppress(Error):
                if await info.async_request(zeroconf, LOOKUP_MS):
                    self._add_member(info)
        finally:
            self._lookups -= 1

    def _add_member(self, info: ServiceInfo) -> None:
        # Members with another port are of another fabric, which happens to be on the same network.
        if info.properties.get(b"port") != str(self._port).encode() or not info.port:
            return
        try:
            sender = bytes.fromhex(info.name.partition(".")[0])
        except ValueError:
            return
        for address in info.parsed_scoped_addresses():
            peer_address = numeric_address(address, info.port, self._choice)
            if peer_address is not None:
                self._add_peer(peer_address, sender)
                return


def _make_listener(family: socket.AddressFamily, receive_address: Callable[[str, str, bool], None]) -> Any:
    """Hears every address of this IP version that arrives; the class can only be written once the library is
    imported."""
    from zeroconf import DNSAddress, RecordUpdate, RecordUpdateListener  # type: ignore[attr-defined]

    size = 4 if family == socket.AF_INET else 16

    class MdnsListener(RecordUpdateListener):
        def async_update_records(self, zc: Zeroconf, now: float, records: list[RecordUpdate]) -> None:
            for update in records:
                record = update.new
                if isinstance(record, DNSAddress) and len(record.address) == size:
                    address = socket.inet_ntop(family, record.address)
                    receive_address(record.name, address, record.is_expired(now))

    return MdnsListener()
