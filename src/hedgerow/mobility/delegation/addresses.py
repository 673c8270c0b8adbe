"""Callback addresses: how subscribers are named between a mobile and a fixed broker.

The document's callback is a network address; what is not one, only the mobile broker can reach. Three forms:

    192.0.2.7:1883, [2001:db8::7]:1883      reachable: a client of its own address
    CLIENT@BROKER                           a client (percent-encoded id) that belongs to this mobile broker
    @BROKER                                 the mobile broker itself: it matches this topic on its own

A name is never a place to connect to. A fixed broker delivers to clients that came to it and to the mobile
broker, so an invented address gets nothing, whatever stands in it.

A list is written as the document has it, `{first"second}`: no callback contains these three characters.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import quote, unquote

from hedgerow.mobility.delegation.limits import MAX_BROKER_ID_BYTES, MAX_CALLBACK_BYTES

_RESERVED = frozenset('{"}')


class CallbackError(ValueError):
    """A text that is no callback address, or no list of them."""


def of_client(client_id: str, broker_id: str) -> str:
    return f"{quote(client_id, safe='')}@{broker_id}"


def is_nameable(client_id: str, broker_id: str) -> bool:
    """Is its callback one?"""
    try:
        return bool(client_id) and bool(validate(of_client(client_id, broker_id)))
    except CallbackError:
        return False


def of_broker(broker_id: str) -> str:
    return f"@{broker_id}"


def client_id_of(callback: str) -> str | None:
    """The client's id, of a callback that `of_client` made."""
    name, at, _ = callback.rpartition("@")
    return unquote(name) if at and name else None


def owner_of(callback: str) -> str | None:
    """The mobile broker that it belongs to; None for a network address."""
    _, at, broker_id = callback.rpartition("@")
    return broker_id if at else None


@lru_cache(maxsize=16_384)  # The same ones stand in every notification, and took more than half of its time.
def validate(callback: str) -> str:
    """The callback, or CallbackError."""
    if not 0 < len(callback) <= MAX_CALLBACK_BYTES or not callback.isprintable():
        raise CallbackError("a callback that is empty, too long or not printable")
    if not _RESERVED.isdisjoint(callback) or len(callback.encode()) > MAX_CALLBACK_BYTES:
        raise CallbackError("a callback that could not stand in a list")
    name, at, broker_id = callback.rpartition("@")
    if at:
        validate_broker_id(broker_id)
        if quote(unquote(name), safe="") != name:  # One client has one name.
            raise CallbackError(f"{callback!r} is not in the one form that it has")
        return callback
    host, _, port = callback.rpartition(":")
    try:
        address = ip_address(host[1:-1] if host[:1] == "[" and host[-1:] == "]" else host)
    except ValueError:
        raise CallbackError(f"{callback!r} is no address") from None
    if (address.version == 6) != (host[:1] == "[") or not _is_port(port):
        raise CallbackError(f"{callback!r} is no address with a port")
    return callback


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65_536


def validate_broker_id(broker_id: str) -> str:
    if not 0 < len(broker_id.encode(errors="surrogatepass")) <= MAX_BROKER_ID_BYTES:
        raise CallbackError(f"a broker id of 1 to {MAX_BROKER_ID_BYTES} bytes is needed")
    if not broker_id.isprintable() or any(character in '/+#@{"}' for character in broker_id):
        raise CallbackError(f"{broker_id!r} cannot be a broker id: it is one level of a topic")
    return broker_id


def encode_list(callbacks: Iterable[str]) -> str:
    return "{" + '"'.join(callbacks) + "}"


def decode_list(text: str) -> tuple[str, ...]:
    if text[:1] != "{" or text[-1:] != "}" or len(text) < 2:
        raise CallbackError("a list of callbacks without its braces")
    return tuple(map(validate, text[1:-1].split('"'))) if text != "{}" else ()
