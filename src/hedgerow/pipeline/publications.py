"""Rows into publications with ids, and publications to a broker until it has acknowledged them all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from hedgerow.client.bus import Bus
from hedgerow.client.connect import Connecting, connect
from hedgerow.client.transport import StateChange
from hedgerow.client.urls import parse_url
from hedgerow.errors import ConnectError, HedgerowError, RefusedError, TopicError
from hedgerow.message import MessageId
from hedgerow.pipeline.options import WriteOptions
from hedgerow.topics import validate_name

if TYPE_CHECKING:
    from pyarrow import RecordBatch

DEFAULT_QOS = 1
# What a PUBLISH may hold in all, less the largest topic and an id: MQTT 5 §2.1.4.
MAX_PAYLOAD = 268_435_455 - 66_000
MAX_WAITING = 5_000  # publications that are not acknowledged yet
# Of a sequence, from above: what tells batches apart, their content, and rows, which run on into the content.
# A page of the duplicate log holds 2**11 sequences in a row.
_BATCH_BITS, _CONTENT_BITS, _ROW_BITS = 24, 27, 11
# Reason codes that speak of one publication, not of the publisher (MQTT 5 §3.4.2.1).
_TOPIC_NAME_INVALID = 0x90
_PACKET_TOO_LARGE = 0x95
_RECONNECT_DELAYS_S = (0.1, 2.0)


class Publication(NamedTuple):
    topic: str
    payload: bytes
    qos: int
    retain: bool
    row: int
    """Its number in the partition."""


def read_rows(
    batch: RecordBatch, first_row: int, publications: list[Publication], refusals: list[str]
) -> None:
    """Add to `publications` what can be published, and to `refusals` which row cannot, and why."""
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    nothing = [None] * batch.num_rows
    rows = zip(
        columns["topic"],
        columns["payload"],
        columns.get("qos", nothing),
        columns.get("retain", nothing),
        strict=True,
    )
    for number, (topic, payload, qos, retain) in enumerate(rows, first_row):
        data = payload.encode() if isinstance(payload, str) else payload
        asked_qos = DEFAULT_QOS if qos is None else qos
        if fault := _fault(topic, data, asked_qos):
            refusals.append(f"Row {number}: {fault}")
        else:
            publications.append(Publication(topic, data, asked_qos, bool(retain), number))


def _fault(topic: str | None, payload: bytes | None, qos: int) -> str | None:
    if topic is None or payload is None:
        return f"{'topic' if topic is None else 'payload'} is null"
    try:
        validate_name(topic)
    except TopicError as error:
        return str(error)
    if qos not in (0, 1, 2):
        return f"QoS is {qos}, and there are 0, 1 and 2"
    if len(payload) > MAX_PAYLOAD:
        return f"the payload has {len(payload)} bytes, and MQTT carries {MAX_PAYLOAD}"
    return None


def identities(
    origin: str, run: str, batch: int, publications: Sequence[Publication], salt: str = ""
) -> list[MessageId]:
    """The ids of the rows of one partition in one batch; `run` names the query's checkpoint, `salt` a try
    that has none.

    The same rows get the same ids in whatever order they come, as behind a shuffle the order of rows changes
    from one try to the next. Other rows get others: the sequences begin at a number with a digest of them all
    beside the number of the batch. Were it the batch and the row's number alone, then where a batch is not
    the same again (a query with `rand`) a row that nobody has seen would have the id of one that was
    published, and be dropped.

    The epoch is that of the checkpoint, so that all batches of a partition are one life of its origin: a
    broker's memory for duplicates holds a bounded number of lives, and those of others would have to go.
    """
    order = sorted(range(len(publications)), key=lambda at: publications[at][:4])
    digest = blake2b(f"{run} {batch} {salt} ".encode(), digest_size=8)
    ids = [MessageId("", 0, 0)] * len(order)
    for at in order:
        topic, payload, qos, retain, _ = publications[at]
        name = topic.encode()
        digest.update(b"%d %d %d %d " % (len(name), len(payload), qos, retain))
        digest.update(name + payload)
    content = int.from_bytes(digest.digest(), "big") % 2**_CONTENT_BITS
    first = (batch % 2**_BATCH_BITS << _CONTENT_BITS | content) << _ROW_BITS
    epoch = int.from_bytes(blake2b(run.encode(), digest_size=8).digest(), "big") % 2**62
    for row, at in enumerate(order):
        ids[at] = MessageId(origin, epoch, first + row)
    return ids


def publish(
    options: WriteOptions, origin: str, publications: Sequence[Publication], ids: Sequence[MessageId]
) -> list[str]:
    """Return when the broker has acknowledged them, with the refusals of those that it does not take.

    HedgerowError: it takes none for `timeout_s`, refuses the publisher, or, unless these are skipped, a row.
    """
    return asyncio.run(_Publisher(options, origin).run(publications, ids))


class _Publisher:
    def __init__(self, options: WriteOptions, origin: str) -> None:
        self._options = options
        self._origin = origin
        self._url = str(parse_url(options.broker))
        self._state = ""
        self._refusals: list[str] = []
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def run(self, publications: Sequence[Publication], ids: Sequence[MessageId]) -> list[str]:
        timeout_s = self._options.timeout_s
        try:
            async with asyncio.timeout(timeout_s) as self._patience, self._connect() as bus:
                for publication, message_id in zip(publications, ids, strict=True):
                    await self._send(bus, publication, message_id)
                while self._waiting:
                    await self._settle_first()
        except TimeoutError:
            why = f" ({self._state})" if self._state else ""
            raise HedgerowError(
                f"{self._url} has taken nothing for {timeout_s:g} s{why}. The batch is not committed, and is "
                "sent again when the query is started again; the option timeout says how long to wait"
            ) from None
        except ConnectError as error:
            raise HedgerowError(f"cannot publish at {self._url}: {error}") from error
        finally:
            for _, result in self._waiting:
                result.cancel()
        return self._refusals

    def _connect(self) -> Connecting:
        options = self._options
        return connect(
            options.broker,
            origin=self._origin,
            username=options.username,
            password=options.password,
            ca_file=options.ca_file,
            cert_file=options.cert_file,
            key_file=options.key_file,
            insecure=options.is_insecure,
            keep_trying=True,
            reconnect_delay=_RECONNECT_DELAYS_S,
            on_state=self._note_state,
        )

    def _note_state(self, change: StateChange) -> None:
        self._state = change.reason

    async def _send(self, bus: Bus, publication: Publication, message_id: MessageId) -> None:
        topic, payload, qos, retain, row = publication
        if len(self._waiting) >= MAX_WAITING:
            await self._settle_first()
        try:
            if qos == 0:
                await bus.publish(topic, payload, retain=retain, id=message_id)
            else:
                result = bus.publish_nowait(topic, payload, qos=qos, retain=retain, id=message_id)
                self._waiting.append((row, result))
        except RefusedError as error:
            self._refuse(row, error)

    async def _settle_first(self) -> None:
        row, result = self._waiting.popleft()
        try:
            await result
        except RefusedError as error:
            self._refuse(row, error)
        self._patience.reschedule(asyncio.get_running_loop().time() + self._options.timeout_s)

    def _refuse(self, row: int, error: RefusedError) -> None:
        is_of_row = error.reason_code in (_TOPIC_NAME_INVALID, _PACKET_TOO_LARGE)
        if not (self._options.skips_invalid and is_of_row):
            hint = ". Mend the query, or set the option invalid to skip" if is_of_row else ""
            raise HedgerowError(f"Row {row}: {self._url} does not take it: {error}{hint}") from error
        self._refusals.append(f"Row {row}: {error}")
