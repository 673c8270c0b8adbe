"""Facts that the broker reports to whoever keeps the log, in the past tense."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

from hedgerow.mqtt.reasons import describe

MAX_NAME = 200  # Client ids, user names and topics may have 65,535 bytes; a line is for people.


def _brief(text: str) -> str:
    return text if len(text) <= MAX_NAME else f"{text[:MAX_NAME]}… ({len(text)} characters)"


@dataclass(slots=True)
class ClientConnected:
    level: ClassVar[int] = logging.INFO
    address: str
    client_id: str
    username: str | None
    protocol_version: int
    transport: str
    session_present: bool

    def __str__(self) -> str:
        user = f" user {_brief(self.username)}" if self.username is not None else ""
        resumed = ", session resumed" if self.session_present else ""
        version = "3.1.1, extended" if self.protocol_version < 0 else f"version {self.protocol_version}"
        return (
            f"client {_brief(self.client_id)} connected from {self.address}{user} "
            f"(MQTT {version}, {self.transport}{resumed})"
        )


@dataclass(slots=True)
class ClientDisconnected:
    level: ClassVar[int] = logging.INFO
    address: str
    client_id: str
    reason: str

    def __str__(self) -> str:
        return f"client {_brief(self.client_id)} disconnected from {self.address}: {_brief(self.reason)}"


@dataclass(slots=True)
class ConnectionRefused:
    level: ClassVar[int] = logging.WARNING
    address: str
    client_id: str | None
    reason_code: int
    reason: str

    def __str__(self) -> str:
        who = f"client {_brief(self.client_id)}" if self.client_id else "a connection"
        return f"{who} from {self.address} refused ({describe(self.reason_code)}): {_brief(self.reason)}"


@dataclass(slots=True)
class ProtocolBroken:
    """A connected client broke a rule and was disconnected; `reason` ends with the clause."""

    level: ClassVar[int] = logging.WARNING
    address: str
    client_id: str
    reason_code: int
    reason: str

    def __str__(self) -> str:
        why = describe(self.reason_code)
        return f"client {_brief(self.client_id)} from {self.address} closed ({why}): {_brief(self.reason)}"


@dataclass(slots=True)
class ConnectionFailed:
    """A mistake of ours came to light while this peer was served: its connection alone was closed.

    Whoever finds bytes that do it could fill the disk with tracebacks, so each error has one line a minute.
    """

    level: ClassVar[int] = logging.ERROR
    lines_a_minute: ClassVar[int] = 3
    address: str
    client_id: str
    reason: str
    error: Exception

    def __str__(self) -> str:
        who = f"client {_brief(self.client_id)} from" if self.client_id else "a connection from"
        return f"{who} {self.address} closed after an error in Hedgerow: {_brief(self.reason)}"


@dataclass(slots=True)
class DeliveriesDropped:
    """A session's queue was full: told at its first dropped delivery since it last had room."""

    level: ClassVar[int] = logging.WARNING
    client_id: str
    queued: int

    def __str__(self) -> str:
        who = f"client {_brief(self.client_id)}"
        return f"{who} does not keep up: dropping what does not fit ({self.queued} wait)"


@dataclass(slots=True)
class ShareExceeded:
    """The log is full, more waits for the sessions of an owner than its share, and others would have to wait
    for that: told when it begins."""

    level: ClassVar[int] = logging.WARNING
    owner: str
    share: int
    """In bytes."""

    def __str__(self) -> str:
        return (
            f"the log is full, and more waits for the sessions of {_brief(self.owner)} than its share of "
            f"{self.share} bytes: dropping the oldest of that, so that others can publish"
        )


@dataclass(slots=True)
class MessageSetAside:
    """A link cannot carry a message, or its far end refuses it: what is behind it goes on."""

    level: ClassVar[int] = logging.WARNING
    address: str
    """The client identifier of the link's session: so many lines a minute are for each link."""
    topic: str
    reason: str

    def __str__(self) -> str:
        return (
            f"message to {_brief(self.topic)!r} set aside for {_brief(self.address)}: {_brief(self.reason)}"
        )


@dataclass(slots=True)
class PublicationRefused:
    level: ClassVar[int] = logging.WARNING
    address: str
    client_id: str
    topic: str
    reason: str

    def __str__(self) -> str:
        who = f"client {_brief(self.client_id)} from {self.address}"
        return f"publication of {who} to {_brief(self.topic)!r} refused: {_brief(self.reason)}"


Event = (
    ClientConnected
    | ClientDisconnected
    | ConnectionRefused
    | ProtocolBroken
    | ConnectionFailed
    | DeliveriesDropped
    | ShareExceeded
    | MessageSetAside
    | PublicationRefused
)
