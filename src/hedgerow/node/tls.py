"""TLS for the listeners: one server context from the files that the configuration names."""

from __future__ import annotations

import ssl

from hedgerow.errors import ConfigError
from hedgerow.node.config import Tls
from hedgerow.node.tls_files import load_certificate, load_client_authorities


def server_context(tls: Tls, application_protocol: str) -> ssl.SSLContext:
    """TLS 1.2 or newer. Raises ConfigError that names the key and the file.

    `application_protocol` answers clients that negotiate one (ALPN); those that offer none, or only
    others, are served all the same.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
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
        required = tls.require_client_certificate
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context
