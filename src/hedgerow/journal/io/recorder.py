"""A recorder: takes what any broker publishes to some filters into a journal, each QoS 1 and 2 message once.

Guarantees. A message of QoS 1 or 2 is acknowledged when it is durable in the journal, and not before: killed
at any moment, the recorder loses none and writes none twice. While it is away the broker keeps its session,
and what comes for it. While the disk takes nothing, nothing is read from the broker; it goes on by itself.

How. The session is persistent, with a client id made of the journal's own id. A message with an id
(`mqtt/ids.py`) is known again by it: at a node of ours all have one, since the recorder says `hedgerow-node`.
One without gets an id of the recorder's: its name, the time at which it began in microseconds, and a number;
it is known again by its packet identifier, which is stored with it (`redeliveries.py`). The receive maximum
bounds what is in flight.

All happens on the loop, except that the journal's writer tells from its thread what has become durable.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

from hedgerow.client.driver import ClientDriver
from hedgerow.client.options import DriverOptions, TlsOptions
from hedgerow.client.overlaps import overlap
from hedgerow.client.transport import StateChange
from hedgerow.client.urls import BusUrl
from hedgerow.errors import ConfigError, HedgerowError, RefusedError, StoreError
from hedgerow.journal import BufferFullError, Writer
from hedgerow.journal.config import JournalConfig
from hedgerow.journal.io import recorder_state
from hedgerow.journal.io.node_journal import retain_for_ever, segment_bytes_for
from hedgerow.journal.io.recorder_state import RecorderState
from hedgerow.journal.io.writer import BUFFER_BYTES
from hedgerow.journal.redeliveries import WINDOW, Redeliveries
from hedgerow.log.checksum import crc32
from hedgerow.message import MAX_ORIGIN, MessageId, Properties
from hedgerow.mqtt import packets
from hedgerow.mqtt.client.events import (
    Connected,
    ConnectOptions,
    Event,
    MessageReceived,
    Subscribed,
)
from hedgerow.mqtt.dropped_there import DROPPED_TOPIC, DroppedThere, describe_dropped
from hedgerow.mqtt.ids import is_held_deletion, may_bear
from hedgerow.mqtt.reasons import FAILURE, describe
from hedgerow.node.authority import authority
from hedgerow.topics import matches

logger = logging.getLogger(__name__)

QOS = 2  # Of the subscriptions: each message comes at the QoS at which it was published.
# Behind what is in flight Mosquitto keeps 1,000 messages, and drops the rest. All that is in flight must be
# among those that are known again when the broker sends them again, with room for what it sends beyond.
RECEIVE_MAXIMUM = WINDOW // 2
# Messages that may wait for the disk. Beyond them nothing is read: what is to be looked through after a crash
# is bounded too (`redeliveries.MAX_ROWS_BACK`).
MAX_BEHIND = 65_536
CLOSE_TIMEOUT_S = 10.0
_MAX_IDENTIFIER = 268_435_455  # §3.8.2.1.2


@dataclass(slots=True)
class RecorderOptions:
    address: BusUrl
    journal: JournalConfig
    """Its `topics` are the filters to subscribe to."""
    name: str | None = None
    """Of the recorder in the fabric, and in the ids that it gives. None: made of the journal's id."""
    broker_name: str | None = None
    """What the column `broker` says of a broker that tells no name. None: its host and port."""
    client_id: str | None = None
    """None: made of the journal's id."""
    username: str | None = None
    password: bytes | None = None
    version: int | None = None
    """None: MQTT 5, and 3.1.1 with a broker that refuses it."""
    keep_alive_s: int = 60
    session_expiry_s: int = packets.NEVER_EXPIRES
    tls: TlsOptions = field(default_factory=TlsOptions)
    first_delay_s: float = 0.5
    max_delay_s: float = 30.0
    buffer_bytes: int = BUFFER_BYTES
    receive_maximum: int = RECEIVE_MAXIMUM


class Recorder:
    """To be made, and used, on a running loop. `run` is its life."""

    def __init__(self, options: RecorderOptions) -> None:
        """Opens the journal: StoreError, when it cannot be written or another process writes it."""
        if not options.journal.topics:
            raise ConfigError("nothing to record: name at least one topic filter")
        if options.name is not None and not may_bear(options.name):
            raise ConfigError(f"{options.name!r}: a name of 1 to {MAX_ORIGIN} printable characters")
        directory = options.journal.directory
        self.repeated = 0
        """Messages without ids that the broker sent again, and that were in the journal."""
        self.dropped_there = DroppedThere()
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._default_name = options.broker_name or authority(options.address.host, options.address.port)
        self.writer = Writer(
            directory,
            self._default_name,
            on_durable=self._was_written,
            segment_bytes=segment_bytes_for(options.journal),
            buffer_bytes=options.buffer_bytes,
        )
        self.name = options.name or f"recorder-{self.writer.journal_id[:12]}"
        self._first_position = self.writer.next_position
        self._state = recorder_state.load(directory)
        self._filters = _in_order(options.journal.topics, self._state.filters)
        self._identifiers = _identifiers(self._filters)
        self._records_dropped = any(matches(each, DROPPED_TOPIC) for each in self._filters)
        self._redeliveries = Redeliveries(self.writer)
        self._redeliveries.resume_session(self._state.since)
        self._epoch = time.time_ns() // 1000
        self._sequence = 0
        self._unwritten: deque[MessageReceived] = deque()
        self._unacknowledged: deque[tuple[int, MessageReceived]] = deque()  # and where it is durable
        self._asked: set[str] = set()  # what this process subscribed to
        self._granted: set[str] = set()
        self._is_waking = False
        self._is_closed = False
        self._driver = ClientDriver(
            options.address, self._driver_options(), self._handle, self._note_state, self._fail
        )

    def _driver_options(self) -> DriverOptions:
        options = self._options
        connect = ConnectOptions(
            # 23 characters: all that MQTT 3.1.1 asks a broker to take.
            client_id=options.client_id or f"recorder-{self.writer.journal_id[:14]}",
            version=options.version or packets.MQTT_5,
            clean_start=False,
            session_expiry_s=options.session_expiry_s,
            keep_alive_s=options.keep_alive_s,
            username=options.username,
            password=options.password,
            receive_maximum=options.receive_maximum,
            # Mosquitto 2.0.11 sends all that it has queued at QoS 2: left for it, it would do so for ever.
            puts_up_with_more=True,
            manual_acknowledgement=True,
            origin=self.name,
        )
        return DriverOptions(
            connect,
            version_may_fall=options.version is None,
            tls=options.tls,
            keep_trying=True,
            first_delay_s=options.first_delay_s,
            max_delay_s=options.max_delay_s,
        )

    # What people see.

    @property
    def rows(self) -> int:
        """Messages that this process has recorded, durable or not yet."""
        return self.writer.next_position - self._first_position

    @property
    def refused(self) -> int:
        """Messages whose content breaks a rule, which the broker was told and no journal has."""
        return self._driver.refused

    @property
    def behind(self) -> int:
        """Messages that came and are not durable yet."""
        return self.writer.next_position - self.writer.durable_position + len(self._unwritten)

    @property
    def is_recording(self) -> bool:
        """Is there a connection, with all subscriptions made?"""
        return self._driver.client.connected and self._granted.issuperset(self._filters)

    # From begin to end.

    async def run(self) -> None:
        """Record until cancelled; then in order. HedgerowError: what trying again cannot mend."""
        tasks: list[asyncio.Future[None]] = [self._over]
        try:
            await self._driver.open()
            if not self._options.journal.retains_all:
                tasks.append(asyncio.ensure_future(retain_for_ever(self._options.journal)))
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.shield(self.close())

    async def close(self) -> None:
        """Make durable what came, acknowledge it, and leave; the broker keeps the session."""
        if self._is_closed:
            return
        self._is_closed = True
        self._driver.line.set_reading(False)
        with suppress(StoreError):  # What is not durable is not acknowledged, and comes again.
            await asyncio.to_thread(self.writer.flush, CLOSE_TIMEOUT_S)
        self._acknowledge()
        await self._driver.close(Properties())
        try:
            await asyncio.to_thread(self.writer.close)
        except StoreError as error:
            logger.error("the last messages are not in the journal: %s", error)
        if lost := sum(1 for message in self._unwritten if not message.qos):
            logger.error("%d messages of QoS 0 found no room in the journal", lost)

    def _fail(self, error: HedgerowError) -> None:
        if not self._over.done():
            self._over.set_exception(error)

    def _note_state(self, change: StateChange) -> None:
        """The driver has said in the log what there is to say."""

    # What the broker says.

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            if event.__class__ is MessageReceived:
                if self._unwritten or not self._append(event):
                    self._unwritten.append(event)
            elif isinstance(event, Connected):
                self._begin_connection(event)
            elif isinstance(event, Subscribed):
                self._handle_subscribed(event)
        self._acknowledge()
        self._update_reading()

    def _begin_connection(self, event: Connected) -> None:
        client = self._driver.client
        self.writer.broker = client.far_node or self._default_name
        if not event.session_present:
            if self._state.filters:
                text = "%s has no session of this recorder any more: what came while it was away is missing"
                logger.warning(text, self._driver.address)
            self._redeliveries.begin_session()
            self._granted.clear()
            self._state = RecorderState([], self.writer.next_position)
            recorder_state.store(self.writer.directory, self._state)
        held = set(self._state.filters)
        if gone := sorted(held - set(self._filters)):
            client.unsubscribe(gone, self._driver.clock())
            self._state.filters = [each for each in self._state.filters if each not in gone]
            recorder_state.store(self.writer.directory, self._state)
        # One that has no identifier, as it overlapped with none: a copy for both would name the other alone,
        # and be taken for that one's extra copy.
        held -= set(self._identified()) - set(self._state.identified)
        self._granted |= held & set(self._filters)
        # What this process has subscribed to before, the machine subscribes to again by itself.
        for topic_filter in self._filters:
            if topic_filter not in held and topic_filter not in self._asked:
                self._subscribe(topic_filter)
        if client.far_node is None and not self._records_dropped and DROPPED_TOPIC not in self._asked:
            self._asked.add(DROPPED_TOPIC)
            client.subscribe([packets.Subscription(DROPPED_TOPIC, 0)], self._driver.clock())
        self._tell_if_recording()

    def _identified(self) -> list[str]:
        """The filters whose subscriptions are to have identifiers at this broker."""
        identifies = self._driver.client.identifies_subscriptions
        return [each for each in self._filters if each in self._identifiers and identifies]

    def _subscribe(self, topic_filter: str) -> None:
        client = self._driver.client
        properties = Properties()
        if topic_filter in self._identified():
            properties["subscription_identifier"] = (self._identifiers[topic_filter],)
        wanted = packets.Subscription(topic_filter, QOS, retain_as_published=True, retain_handling=1)
        self._asked.add(topic_filter)
        try:
            client.subscribe([wanted], self._driver.clock(), properties)
        except RefusedError as error:  # CONNACK said that it would
            self._fail(RefusedError(f"{self._driver.address} refuses {error}", error.reason_code))

    def _handle_subscribed(self, event: Subscribed) -> None:
        for asked, code in zip(event.subscriptions, event.reason_codes, strict=True):
            if asked.topic_filter not in self._filters:
                continue  # What the broker says of itself: without it nothing is known of what it drops.
            if code >= FAILURE:
                reason = event.reason or describe(code)
                where = self._driver.address
                self._fail(RefusedError(f"{where} refused {asked.topic_filter}: {reason}", code))
                return
            if code < QOS:
                logger.warning("%s gives %s at most QoS %d", self._driver.address, asked.topic_filter, code)
            self._granted.add(asked.topic_filter)
        granted = RecorderState(list(self._filters), self._state.since, self._identified())
        if self._granted.issuperset(self._filters) and self._state != granted:
            self._state = granted
            recorder_state.store(self.writer.directory, self._state)
        self._tell_if_recording()

    def _tell_if_recording(self) -> None:
        if self._granted.issuperset(self._filters):
            logger.info("recording %s from %s", ", ".join(self._filters), self.writer.broker)

    # Into the journal, and back to the broker.

    def _append(self, message: MessageReceived) -> bool:
        """False: there is no room now."""
        if message.topic == DROPPED_TOPIC and self._driver.client.far_node is None:
            if more := self.dropped_there.hear(message.payload):
                logger.warning("%s", describe_dropped(str(self._driver.address), more))
            if not self._records_dropped:
                return True
        if (message.subscription_identifiers and self._is_extra_copy(message)) or (
            message.properties and is_held_deletion(message)
        ):
            self._driver.client.acknowledge(message)
            return True
        packet_id = 0
        is_stranger = message.id is None
        if is_stranger:
            packet_id = message.packet_id
            if message.dup and packet_id and (position := self._redeliveries.find(message)) is not None:
                self.repeated += 1
                self._unacknowledged.append((position, message))
                return True
            message.id = MessageId(self.name, self._epoch, self._sequence + 1)
        try:
            position = self.writer.append(
                message,
                transport=self._options.address.scheme.name,
                received_at=time.time(),
                packet_id=packet_id,
            )
        except BufferFullError:
            if is_stranger:
                message.id = None
            return False
        if is_stranger:
            self._sequence += 1
            if packet_id:
                self._redeliveries.note(message, position)
        if message.qos:
            self._unacknowledged.append((position, message))
        return True

    def _is_extra_copy(self, message: MessageReceived) -> bool:
        """Of filters that overlap a broker may send a copy for each: the first filter's is the one."""
        matching = [each for each in self._filters if matches(each, message.topic)]
        meant = [each for each in matching if self._identifiers.get(each) in message.subscription_identifiers]
        return bool(meant) and meant[0] != matching[0]

    def _was_written(self, position: int) -> None:
        """On the writer's thread."""
        if not self._is_waking:
            self._is_waking = True
            with suppress(RuntimeError):  # The loop is closed: nobody waits any more.
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._is_waking = False
        if self._is_closed:
            return
        self._acknowledge()
        while self._unwritten and self._append(self._unwritten[0]):
            self._unwritten.popleft()
        self._update_reading()

    def _acknowledge(self) -> None:
        waiting = self._unacknowledged
        durable = self.writer.durable_position
        if not waiting or waiting[0][0] > durable:
            return
        client = self._driver.client
        while waiting and waiting[0][0] <= durable:
            client.acknowledge(waiting.popleft()[1])
        self._driver.line.flush()

    def _update_reading(self) -> None:
        self._driver.line.set_reading(not self._unwritten and self.behind <= MAX_BEHIND)


def _in_order(wanted: tuple[str, ...], held: list[str]) -> list[str]:
    """Those that the session has come first: of copies that are under way, theirs is the one to keep."""
    return [*(each for each in held if each in wanted), *(each for each in wanted if each not in held)]


def _identifiers(filters: list[str]) -> dict[str, int]:
    """For filters that overlap with another. By their text alone: they mean the same in the next life."""
    return {
        one: crc32(one.encode()) % _MAX_IDENTIFIER + 1
        for one in filters
        if any(one != other and overlap(one, other) for other in filters)
    }
