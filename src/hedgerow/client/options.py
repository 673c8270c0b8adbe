"""What `connect` was asked for, as every transport is given it, and the refusal of what one of them lacks."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hedgerow.client.socks import Proxy
from hedgerow.client.transport import StateChange
from hedgerow.errors import ConfigError
from hedgerow.mqtt.client.events import ConnectOptions
from hedgerow.node.tls_files import client_context, load_certificate

# What is in flight at a server that is left gets this long to be finished; then it is sent to the next.
LEAVE_TIMEOUT_S = 5.0


@dataclass(slots=True, frozen=True)
class TlsOptions:
    ca_file: str | None = None
    """Trust these authorities, and not the system's."""
    cert_file: str | None = None
    key_file: str | None = None
    insecure: bool = False
    """Do not check that the certificate is that of the host; without `ca_file` check nothing at all."""
    context: ssl.SSLContext | None = None
    """Used as it is, in the place of all others."""
    ca_path: str | None = None
    """A folder of authorities, by the names that `openssl rehash` gives them."""
    ciphers: str | None = None
    """Of TLS 1.2, as OpenSSL names them."""
    alpn: str | None = None

    @property
    def needs_tls(self) -> bool:
        """Would it be a mistake to connect without TLS?"""
        return self != TlsOptions(insecure=self.insecure)

    def make_context(self) -> ssl.SSLContext:
        if self.context is not None:
            return self.context
        try:
            context = client_context(self.ca_file, self.ca_path)
        except ConfigError as error:
            raise ConfigError(f"CA file {error}") from None
        if self.insecure:
            context.check_hostname = False
            if self.ca_file is None and self.ca_path is None:
                context.verify_mode = ssl.CERT_NONE
        if self.cert_file is not None:
            try:
                load_certificate(context, self.cert_file, self.key_file)
            except ConfigError as error:
                raise ConfigError(f"client certificate {error}") from None
        elif self.key_file is not None:
            raise ConfigError(f"client key {self.key_file} is of no use without its certificate")
        if self.ciphers is not None:
            try:
                context.set_ciphers(self.ciphers)
            except ssl.SSLError:
                raise ConfigError(f"ciphers {self.ciphers}: OpenSSL knows none of them") from None
        if self.alpn is not None:
            context.set_alpn_protocols([self.alpn])
        return context


@dataclass(slots=True, frozen=True)
class ServerRoute:
    """By what way a server is reached."""

    local_address: str | None = None
    """The address of this machine to connect from."""
    proxy: Proxy | None = None
    unix_path: str | None = None
    """A socket in the file system, in the place of host and port."""


@dataclass(slots=True)
class DriverOptions:
    """How to reach an MQTT server, and how to stay connected."""

    connect: ConnectOptions
    version_may_fall: bool = True
    """Speak MQTT 3.1.1 with a server that refuses MQTT 5."""
    tls: TlsOptions = field(default_factory=TlsOptions)
    route: ServerRoute = field(default_factory=ServerRoute)
    reconnect: bool = True
    keep_trying: bool = False
    """Wait for the first connection too, as for those after it."""
    first_delay_s: float = 0.5
    max_delay_s: float = 60.0
    dial_timeout_s: float = 10.0
    follow: bool = False
    """Go where servers send us."""
    follow_to: tuple[tuple[str, int | None], ...] = ()
    """Other hosts where a password may be shown without a certificate that is checked (`following.py`)."""
    renewals: bool = False
    """Offer the extension first, and other versions to those who do not know it."""
    leave_timeout_s: float = LEAVE_TIMEOUT_S


@dataclass(slots=True)
class BusOptions:
    """What `connect` was asked for, beside the address."""

    driver: DriverOptions
    session_is_implied: bool = True
    """The session ends with the bus, though it outlives a lost link."""
    on_state: Callable[[StateChange], None] | None = None

    def refuse(self, lacking: Mapping[str, str], beginning: str) -> None:
        """Raise ConfigError for what a transport lacks. `lacking` has the words for it, which end the
        sentence."""
        connect = self.driver.connect
        asked = {
            "name": connect.username is not None or connect.password is not None,
            "will": connect.will is not None,
            "session": not connect.clean_start or not self.session_is_implied,
            "tls": self.driver.tls != TlsOptions(),
            "properties": bool(connect.properties),
            "origin": connect.origin is not None,
            "route": self.driver.route != ServerRoute(),
        }
        for what, is_asked_for in asked.items():
            if is_asked_for:
                raise ConfigError(f"{beginning} {lacking[what]}")
