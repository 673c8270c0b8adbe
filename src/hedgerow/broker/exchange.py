"""Enhanced authentication (MQTT 5 §4.12): a peer proves itself by AUTH packets, before it gets a session.

A role says how (`Role.authenticator`); the end that dials brings its own. What follows the exchange travels
in the authenticator's seal, so that whoever carried the exchange between two honest ends can neither read nor
write it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hedgerow.errors import ProtocolError
from hedgerow.message import Properties
from hedgerow.mqtt.packets import Auth, Connect, Packet
from hedgerow.mqtt.reasons import Reason

MAX_ROUNDS = 8  # A peer that never proves itself has us compute no more than that.


class AuthenticationError(Exception):
    """The peer has not proved itself; the text says why."""


class ConnectionSeal(Protocol):
    """What the bytes of one connection travel in."""

    def close(self, data: bytes) -> bytes:
        """What is written to the transport instead of `data`."""

    def open(self, chunk: bytes) -> bytes:
        """What has come whole; ProtocolError if the peer did not write the chunk."""


class Authenticator(Protocol):
    """One end of one exchange."""

    @property
    def method(self) -> str: ...

    @property
    def peer(self) -> str:
        """The name of the other end, which is proven once there is a seal."""

    @property
    def seal(self) -> ConnectionSeal | None:
        """None until the peer has proved itself."""

    def step(self, data: bytes) -> bytes:
        """The answer to the peer's authentication data; raises AuthenticationError."""


class Authentication:
    """At the end that accepts `connect` waits for the proof, and `not_proven` is told why there is none."""

    __slots__ = ("_rounds", "authenticator", "connect", "not_proven")

    def __init__(
        self,
        authenticator: Authenticator,
        connect: Connect | None = None,
        not_proven: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self.authenticator = authenticator
        self.connect = connect
        self.not_proven = not_proven
        self._rounds = 0

    @property
    def proven_name(self) -> str | None:
        return self.authenticator.peer if self.authenticator.seal is not None else None

    def read(self, packet: Packet) -> bytes:
        """The data of an AUTH that may come now."""
        assert isinstance(packet, Auth)
        self._rounds += 1
        is_expected = packet.reason_code == Reason.CONTINUE_AUTHENTICATION and self._rounds <= MAX_ROUNDS
        if not is_expected or self.authenticator.seal is not None:
            raise ProtocolError(Reason.PROTOCOL_ERROR, "AUTH at a wrong time", "§4.12")
        if packet.properties.get("authentication_method") != self.authenticator.method:
            raise ProtocolError(Reason.PROTOCOL_ERROR, "AUTH of another method", "MQTT-4.12.0-5")
        return packet.properties.get("authentication_data", b"")

    def write(self, data: bytes) -> Auth:
        properties: Properties = {"authentication_method": self.authenticator.method}
        if data:
            properties["authentication_data"] = data
        return Auth(Reason.CONTINUE_AUTHENTICATION, properties)
