"""How other brokers are dialled: a host's addresses one after the other, and why it failed, in words."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from functools import cache, partial
from pathlib import Path

from hedgerow.client.link import explain
from hedgerow.errors import ConfigError, ConnectError
from hedgerow.node.lookups import Lookups

DIAL_TIMEOUT_S = 5.0

DIAL_ERRORS = (OSError, ssl.CertificateError, UnicodeError, ConfigError, ConnectError)
"""What `dial` raises; a TimeoutError is an OSError too."""


async def dial(
    lookups: Lookups,
    host: str,
    open_to: Callable[[str], Awaitable[object]],
    timeout_s: float = DIAL_TIMEOUT_S,
) -> None:
    """Open a link to the first address of the host that answers. Raises the last error, if none does."""
    failure: OSError = ConnectionError("no address")
    async with asyncio.timeout(timeout_s):
        addresses = await lookups.find(host)
    for address in addresses:
        try:
            # A name may have an address to which nothing gets through beside one that works.
            async with asyncio.timeout(timeout_s / len(addresses)):
                await open_to(address)
            return
        except OSError as error:
            failure = error
    raise failure


def explain_dial(error: BaseException, timeout_s: float = DIAL_TIMEOUT_S) -> str:
    """One of `DIAL_ERRORS`, for people."""
    if isinstance(error, TimeoutError):
        return f"no answer in {timeout_s:g} s"
    if isinstance(error, ConfigError | ConnectError):
        return str(error)
    return explain(error)


def tls_context(
    cafile: Path | None, certfile: Path | None, keyfile: Path | None, whose: str
) -> ssl.SSLContext:
    """For links to others, with the system's authorities unless given. Raises ConfigError."""
    try:
        context = ssl.create_default_context(cafile=cafile)
        if certfile is not None:
            context.load_cert_chain(certfile, keyfile)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the TLS files of {whose} cannot be used: {explain(error)}") from None
    return context


def make_tls_context(
    cafile: Path | None, certfile: Path | None, keyfile: Path | None, whose: str
) -> Callable[[], ssl.SSLContext]:
    """What makes it once. Files that are given are read now, and ConfigError is raised if they are wrong; the
    system's authorities, which take 50 ms, when the first link needs them."""
    make = cache(partial(tls_context, cafile, certfile, keyfile, whose))
    if cafile is not None or certfile is not None:
        make()
    return make
