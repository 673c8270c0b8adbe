"""TLS for the listeners: one server context from the files that the configuration names.

An event loop that sees a handshake fail closes the socket, and with it goes the alert that OpenSSL has
written: a client whose certificate is refused would see an end of file, and not why. So the alert is taken
where the handshake fails, with the socket that it is for (`TlsRefusal`), and whoever accepted that sends it.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, NamedTuple

from hedgerow.errors import ConfigError
from hedgerow.node.config import Tls
from hedgerow.node.tls_files import load_certificate, load_client_authorities, load_revocations

ACCEPTED: ContextVar[socket.socket | None] = ContextVar("accepted", default=None)
"""To be set where a handshake is begun: what it is on."""


class TlsRefusal(NamedTuple):
    alert: bytes
    socket: socket.socket
    """Open for as long as it is needed, whatever becomes of the other."""


def refusal_of(error: Exception) -> TlsRefusal | None:
    found = getattr(error, "refusal", None)
    return found if isinstance(found, TlsRefusal) else None


class _Handshake(ssl.SSLObject):
    outgoing: ssl.MemoryBIO
    accepted: socket.socket | None

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            alert = self.outgoing.read()
            if alert and self.accepted is not None:
                with suppress(OSError):  # no descriptor is left
                    error.refusal = TlsRefusal(alert, self.accepted.dup())  # type: ignore[attr-defined]
            raise


class _Context(ssl.SSLContext):
    sslobject_class = _Handshake

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *rest: Any, **more: Any) -> Any:
        made = super().wrap_bio(incoming, outgoing, *rest, **more)
        assert isinstance(made, _Handshake)
        made.outgoing, made.accepted = outgoing, ACCEPTED.get()
        return made


def server_context(tls: Tls, application_protocol: str) -> ssl.SSLContext:
    """TLS 1.2 or newer. Raises ConfigError that names the key and the file.

    `application_protocol` answers clients that negotiate one (ALPN); those that offer none, or only
    others, are served all the same.
    """
    context = _Context(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([application_protocol])
    try:
        load_certificate(context, tls.certificate, tls.key)
    except ConfigError as error:
        raise ConfigError(f"tls.certificate, tls.key: {error}") from None
    if tls.client_ca is not None:
        try:
            load_client_authorities(context, tls.client_ca)
        except ConfigError as error:
            raise ConfigError(f"tls.client_ca: {error}") from None
        if tls.crl_file is not None:
            try:
                load_revocations(context, tls.crl_file)
            except ConfigError as error:
                raise ConfigError(f"tls.crl_file: {error}") from None
        required = tls.require_client_certificate
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context
