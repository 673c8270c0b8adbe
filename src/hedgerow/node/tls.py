"""TLS for the listeners: one server context from the files that the configuration names."""

from __future__ import annotations

import ssl

from hedgerow.errors import ConfigError, reason_of
from hedgerow.node.config import Tls


def server_context(tls: Tls, application_protocol: str) -> ssl.SSLContext:
    """TLS 1.2 or newer. Raises ConfigError that names the key and the file.

    `application_protocol` answers clients that negotiate one (ALPN); those that offer none, or only
    others, are served all the same.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([application_protocol])
    try:
        # An encrypted key would stop the start with a question on the terminal.
        context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        files = f"tls.certificate, tls.key: {tls.certificate}, {tls.key}"
        raise ConfigError(f"{files}: {_why(error)}") from None
    if tls.client_ca is not None:
        try:
            context.load_verify_locations(tls.client_ca)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise ConfigError(f"tls.client_ca: {tls.client_ca}: {_why(error)}") from None
        required = tls.require_client_certificate
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted; write it without a passphrase")


_REASONS = {
    "KEY_VALUES_MISMATCH": "the key does not belong to the certificate",
    "NO_START_LINE": "not a PEM file",
    "PEM_LIB": "not PEM files, or not a certificate and its key",
    "NO_CERTIFICATE_OR_CRL_FOUND": "there is no certificate in the file",
}


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return _REASONS.get(error.reason, error.reason.replace("_", " ").lower())
    return reason_of(error)
