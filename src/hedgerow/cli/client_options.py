"""What commands share that are clients of a broker: where and how to connect, and standard streams.

The short flags are those of mosquitto_pub and mosquitto_sub, `-h` for the host included, so help is
`--help` alone. A URL, as the first word or with `-L`, says the same in one word.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import uvloop

from hedgerow.cli.option_values import topic_name, url, whole
from hedgerow.client.socks import parse_proxy
from hedgerow.client.urls import SCHEMES, BusUrl, parse_url, read_host
from hedgerow.errors import ConfigError, escape_controls
from hedgerow.message import MAX_ORIGIN, Message, Properties
from hedgerow.mqtt import properties as mqtt_properties
from hedgerow.mqtt.ids import may_bear
from hedgerow.mqtt.packets import CONNECT, NEVER_EXPIRES, PUBLISH, SUBSCRIBE
from hedgerow.node.authority import authority

T = TypeVar("T")

VERSIONS = {
    **dict.fromkeys(("mqttv5", "5", "5.0"), 5),
    **dict.fromkeys(("mqttv311", "311", "3.1.1", "4"), 4),
    **dict.fromkeys(("mqttv31", "31", "3.1", "3"), 3),
}

# `-D COMMAND …`: the packets whose properties a user may set.
_PROPERTY_COMMANDS = {
    "connect": CONNECT,
    "publish": PUBLISH,
    "subscribe": SUBSCRIBE,
    "will": mqtt_properties.WILL,
}
# Properties of CONNECT that `hedgerow.connect` has an argument for.
_CONNECT_ARGUMENTS = {
    "session_expiry_interval": "session_expiry",
    "receive_maximum": "receive_maximum",
    "maximum_packet_size": "maximum_packet_size",
    "topic_alias_maximum": "topic_alias_maximum",
}


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str, width: int | None = None) -> None:
        super().__init__(prog, max_help_position=36, width=width)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """To be called after the command has added its own, which its help shows first."""
    parser.formatter_class = _HelpFormatter
    parser.conflict_handler = "resolve"  # -h is the host, as people's fingers know it
    add = parser.add_argument_group("server").add_argument
    add(
        "-L",
        "--url",
        type=url,
        help="mqtt(s)://[USER[:PASSWORD]@]HOST[:PORT][/TOPIC], or ws(s)://…[/PATH], udp://HOST[/TOPIC] or "
        "multicast://[/TOPIC]",
    )
    add("-h", "--host", help="host name or address (localhost)")
    add("-p", "--port", type=whole(1, 65_535), help="port (1883, with TLS 8883)")
    add_login_arguments(add)
    add("--tls-use-os-certs", action="store_true", help="TLS with the system's authorities")
    add("--capath", metavar="DIR", help="trust these authorities; switches TLS on")
    add("--ciphers", metavar="LIST", help="of TLS 1.2, as OpenSSL names them; switches TLS on")
    add("--tls-alpn", metavar="PROTOCOL", help="ask the server for this protocol; switches TLS on")
    add("-A", "--bind", metavar="ADDRESS", help="connect from this address of this machine")
    add("--proxy", type=_read_proxy, metavar="URL", help="socks5h://[USER[:PASSWORD]@]HOST[:PORT]")
    add("--unix", metavar="PATH", help="connect to a socket in the file system")
    add = parser.add_argument_group("multicast (multicast://, which needs no server)").add_argument
    # The long names are those of `hedgerow up`.
    add(
        "--interface",
        "--multicast-interface",
        action="append",
        metavar="NAME",
        help="use this network interface; may be repeated",
    )
    add(
        "--scope",
        "--multicast-scope",
        type=_read_scope,
        help="how far IPv6 groups reach: interface, link (the default) or site",
    )
    add(
        "--ip",
        "--multicast-ip",
        type=int,
        choices=(4, 6),
        metavar="VERSION",
        help="4 or 6 (6 where the interfaces can)",
    )
    add(
        "--naming",
        "--multicast-naming",
        choices=("computed", "mdns"),
        metavar="HOW",
        help="how topics' groups are found: computed, or by multicast DNS: mdns (IPv6: computed, IPv4: mdns)",
    )
    add(
        "--peer",
        action="append",
        type=_read_peer,
        metavar="HOST[:PORT]",
        help="a member that multicast may not reach",
    )
    add("--multicast-key", metavar="FILE", help="file of keys: encrypt, and hear only those who have them")
    add = parser.add_argument_group("session").add_argument
    add("-i", "--id", help="client id (a random one)")
    add("-I", "--id-prefix", metavar="PREFIX", help="client id: this and the process id")
    add(
        "-k", "--keepalive", type=whole(0, 65_535), default=60, metavar="S", help="keep-alive in seconds (60)"
    )
    add("-c", "--disable-clean-session", action="store_true", help="take up a session, and leave it")
    add(
        "-x",
        "--session-expiry-interval",
        type=read_expiry,
        metavar="S",
        help="seconds to keep the session; -1: for ever",
    )
    add(
        "-V",
        "--protocol-version",
        type=read_version,
        metavar="VERSION",
        help="5, 311 or 31 (5, or 311 if that is refused)",
    )
    add(
        "--follow",
        action=argparse.BooleanOptionalAction,
        help="go to other servers when the server says so: by MQTT 5 (the default), and by the extension too",
    )
    add(
        "--follow-to",
        action="append",
        type=_read_host,
        default=[],
        metavar="HOST[:PORT]",
        help="a host where a password may be shown when the server sends us there; may be repeated. Without "
        "it: the same host, or TLS whose certificate is checked",
    )
    add(
        "--origin",
        type=_read_origin,
        metavar="NAME",
        help="our name in the fabric: messages have ids, ours under this name",
    )
    add("--will-topic", type=topic_name, metavar="TOPIC", help="topic of the will")
    add("--will-payload", metavar="TEXT", default="", help="payload of the will (empty)")
    add("--will-qos", type=int, choices=(0, 1, 2), default=0, help="QoS of the will (0)")
    add("--will-retain", action="store_true", help="the will is retained")
    add(
        "-D",
        "--property",
        nargs="+",
        action="append",
        default=[],
        metavar=("COMMAND PROPERTY", "VALUE"),
        help="an MQTT 5 property, such as: -D publish user-property NAME VALUE",
    )
    add = parser.add_argument_group("about this program").add_argument
    add("-d", "--debug", action="store_true", help="say what happens to the connection")
    add("--quiet", action="store_true", help="no warnings")
    add("--nodelay", action="store_true", help="send at once; always so")


def add_login_arguments(add: Callable[..., object]) -> None:
    """Who we are, and whom to trust."""
    add("-u", "--username", metavar="USER", help="user name")
    add("-P", "--pw", dest="password", metavar="PASSWORD", help="password")
    add("--cafile", metavar="FILE", help="trust these authorities; switches TLS on")
    add("--cert", metavar="FILE", help="client certificate; switches TLS on")
    add("--key", metavar="FILE", help="the client certificate's private key")
    add("--insecure", action="store_true", help="do not check the server's host name")


class Target:
    """Where to connect, with `arguments` for `hedgerow.connect`, the topic of the URL, and properties."""

    def __init__(self, arguments: argparse.Namespace, url: str | None) -> None:
        address, self.topic = _read_address(arguments, url)
        self.url = _with_multicast_options(arguments, address)
        self._properties = _read_properties(arguments.property)
        self.arguments = _connect_arguments(arguments, address)
        connect_properties = dict(self.properties("connect"))
        for name, argument in _CONNECT_ARGUMENTS.items():
            if name in connect_properties:
                self.arguments[argument] = connect_properties.pop(name)
        self.arguments["properties"] = connect_properties
        if arguments.will_topic is not None:
            self.arguments["will"] = Message(
                arguments.will_topic,
                os.fsencode(arguments.will_payload),
                arguments.will_qos,
                arguments.will_retain,
                self.properties("will"),
            )
        set_up_logging(arguments)

    def properties(self, command: str) -> Properties:
        return self._properties.get(command, {})


def take_url(words: list[str]) -> str | None:
    """The URL that the first word may be. Raises ConfigError for what is almost one."""
    if not words:
        return None
    if "://" in words[0]:
        return words.pop(0)
    scheme, colon, rest = words[0].partition(":")
    if colon and scheme.lower() in SCHEMES and rest[:1] in ("", "/"):
        raise ConfigError(f'"{words[0]}" looks like a URL: {scheme}://{rest.lstrip("/")}')
    return None


def _asks_for_tls(arguments: argparse.Namespace) -> bool:
    return any((arguments.cafile, arguments.capath, arguments.cert, arguments.ciphers, arguments.tls_alpn))


def _read_address(arguments: argparse.Namespace, url: str | None) -> tuple[BusUrl, str | None]:
    """The address, without the topic that mosquitto's URLs may have as their path."""
    if url is not None and arguments.url is not None:
        raise ConfigError(f"two URLs: {url} and -L")
    url = url or arguments.url
    if url is None:
        tls = _asks_for_tls(arguments) or arguments.tls_use_os_certs or arguments.port == 8883
        where = authority(arguments.host or "localhost", arguments.port)
        return parse_url(f"{'mqtts' if tls else 'mqtt'}://{where}"), None
    if arguments.host is not None or arguments.port is not None:
        raise ConfigError("a URL says the host and the port: -h and -p go without one")
    address = parse_url(url)
    if arguments.key and address.scheme.name == "multicast":
        right = "for multicast it is --multicast-key FILE"
        raise ConfigError(f"--key is the private key of a TLS certificate; {right}")
    if (_asks_for_tls(arguments) or arguments.key) and not address.scheme.tls:
        secure = f"{address.scheme.name}s"
        hint = f"write {secure}://" if secure in SCHEMES else "there is none with it"
        raise ConfigError(f"{address.scheme.name}:// is without TLS; {hint}")
    arguments.username = address.username if arguments.username is None else arguments.username
    arguments.password = address.password if arguments.password is None else arguments.password
    if address.scheme.websocket:
        return address, None
    topic, question, options = address.rest, "", ""
    if address.scheme.options:
        topic, question, options = topic.partition("?")
    bare = BusUrl(address.scheme, address.host, address.port, question + options)
    return bare, topic.removeprefix("/") or None


def _with_multicast_options(arguments: argparse.Namespace, address: BusUrl) -> str:
    """The URL to connect to. Flags for multicast take the place of what the URL says, or add to it."""
    given: dict[str, Any] = {
        name: value
        for name, value in (
            ("interfaces", arguments.interface and tuple(arguments.interface)),
            ("scope", arguments.scope),
            ("ip", arguments.ip),
            ("naming", arguments.naming),
            ("peers", arguments.peer and tuple(arguments.peer)),
            ("key_file", arguments.multicast_key and Path(arguments.multicast_key)),
        )
        if value is not None
    }
    if address.scheme.name != "multicast":
        if given:
            flags = "--interface, --scope, --ip, --naming, --peer and --multicast-key"
            raise ConfigError(f"{flags} are for multicast://, not for {address.scheme.name}://")
        return str(address)
    from hedgerow.multicast.io.options import read_options

    options = read_options(address.host, address.port, address.rest)
    given["peers"] = (*options.peers, *given.get("peers", ()))
    return replace(options, **given).url


def _connect_arguments(arguments: argparse.Namespace, address: BusUrl) -> dict[str, Any]:
    if arguments.id is not None and arguments.id_prefix is not None:
        raise ConfigError("-i and -I say the same thing twice")
    client_id = arguments.id if arguments.id_prefix is None else f"{arguments.id_prefix}{os.getpid()}"
    if arguments.disable_clean_session and client_id is None:
        raise ConfigError("-c takes up the session of a client id: give it with -i")
    return {
        "client_id": client_id,
        "username": arguments.username,
        "password": arguments.password,
        "clean_start": not arguments.disable_clean_session,
        "session_expiry": arguments.session_expiry_interval,
        "keep_alive": arguments.keepalive,
        "version": arguments.protocol_version,
        "ca_file": arguments.cafile,
        "cert_file": arguments.cert,
        "key_file": arguments.key,
        "insecure": arguments.insecure,
        "ca_path": arguments.capath,
        "ciphers": arguments.ciphers,
        "alpn": arguments.tls_alpn,
        "local_address": arguments.bind,
        "proxy": arguments.proxy,
        "unix_path": arguments.unix,
        "follow": arguments.follow,
        "follow_to": arguments.follow_to,
        "origin": arguments.origin,
    }


def read_version(text: str) -> int:
    if text.lower() not in VERSIONS:
        raise ConfigError(f'"{text}" is none of mqttv5, mqttv311, mqttv31')
    return VERSIONS[text.lower()]


def read_expiry(text: str) -> int:
    if text in ("-1", "∞"):
        return NEVER_EXPIRES
    if not (text.isascii() and text.isdecimal() and int(text) <= NEVER_EXPIRES):
        raise ConfigError(f'"{text}" is not seconds from 0 to {NEVER_EXPIRES - 1}, or -1 for ever')
    return int(text)


def _read_scope(text: str) -> str:
    from hedgerow.multicast.io.options import MulticastOptions

    return MulticastOptions(scope=text).scope


def _read_peer(text: str) -> str:
    from hedgerow.multicast.io.options import MulticastOptions

    return MulticastOptions(peers=(text,)).peers[0]


def _read_proxy(text: str) -> str:
    parse_proxy(text)
    return text


def _read_host(text: str) -> str:
    read_host(text)
    return text


def _read_origin(text: str) -> str:
    if not may_bear(text):
        raise ConfigError(f'"{text}" is not a name of 1 to {MAX_ORIGIN} printable characters')
    return text


def _read_properties(given: list[list[str]]) -> dict[str, Properties]:
    """`-D COMMAND PROPERTY VALUE`, or `… user-property NAME VALUE`, as often as given."""
    found: dict[str, dict[str, Any]] = {}
    for words in given:
        command = words[0].lower()
        if command not in _PROPERTY_COMMANDS:
            raise ConfigError(f"-D {words[0]}: there are {', '.join(_PROPERTY_COMMANDS)}")
        named = {entry.name.replace("_", "-"): entry for entry in mqtt_properties.TABLE}
        entry = named.get(words[1]) if len(words) > 1 else None
        if entry is None or _PROPERTY_COMMANDS[command] not in entry.packets:
            fitting = [name for name, each in named.items() if _PROPERTY_COMMANDS[command] in each.packets]
            raise ConfigError(f"-D {' '.join(words[:2])}: {command} has {', '.join(fitting)}")
        values = words[2:]
        pair = entry.wire_type is mqtt_properties.UTF8_STRING_PAIR
        if len(values) != 1 + pair:
            wanted = "a name and a value" if pair else "one value"
            raise ConfigError(f"-D {' '.join(words)}: {words[1]} takes {wanted}")
        value: Any = tuple(values) if pair else _read_value(entry, values[0])
        properties = found.setdefault(command, {})
        if entry.name in ("user_property", "subscription_identifier"):
            value = (*properties.get(entry.name, ()), value)
        properties[entry.name] = value
    for command, properties in found.items():
        try:
            mqtt_properties.encode(cast(Properties, properties), _PROPERTY_COMMANDS[command])
        except ValueError as error:
            raise ConfigError(f"-D {command}: {error}") from None
    return cast(dict[str, Properties], found)


def _read_value(entry: mqtt_properties.Property, text: str) -> int | str | bytes:
    if entry.wire_type is mqtt_properties.UTF8_STRING:
        return text
    if entry.wire_type is mqtt_properties.BINARY_DATA:
        return text.encode()
    if not (text.isascii() and text.isdecimal()):
        raise ConfigError(f'-D {entry.name.replace("_", "-")}: "{text}" is not a number')
    return int(text)


def set_up_logging(arguments: argparse.Namespace) -> None:
    level = logging.ERROR if arguments.quiet else logging.INFO if arguments.debug else logging.WARNING
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LineFormatter())
    logging.basicConfig(level=level, handlers=[handler])


class _LineFormatter(logging.Formatter):
    """The message, whose words may be a server's: none of them ends a line or commands a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - a name of `logging`
        return escape_controls(record.getMessage())


# Running.


def run(main: Coroutine[Any, Any, int]) -> int:
    """Run a command on uvloop; SIGINT and SIGTERM end it as if its work were done."""

    async def until_signal() -> int:
        loop = asyncio.get_running_loop()
        work = loop.create_task(main)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, work.cancel)
        try:
            return await work
        except asyncio.CancelledError:
            return 0

    with asyncio.Runner(loop_factory=uvloop.Loop) as runner:
        return runner.run(until_signal())


def in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Do what may block, such as reading from a terminal, beside the event loop.

    In a daemon thread, because those of an executor are waited for at exit, and a read from a terminal
    or a write to a pager may never end.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(cast(T, result))

    def do() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = work()
        except BaseException as error:
            failure = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=do, daemon=True).start()
    return future


async def write_out(data: bytes) -> None:
    """Write to standard output, all of it, without holding up the connection when nobody reads."""
    descriptor = sys.stdout.fileno()
    if _takes_at_once(descriptor, len(data)):
        _write_all(descriptor, data)
    else:
        await in_thread(lambda: _write_all(descriptor, data))


def _takes_at_once(descriptor: int, size: int) -> bool:
    """A file always does; a pipe or a terminal that is writable takes PIPE_BUF bytes."""
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return True
    return size <= select.PIPE_BUF and bool(select.select([], [descriptor], [], 0)[1])


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
