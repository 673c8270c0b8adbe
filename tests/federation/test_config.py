"""The `[federation]` table, its flags, and what a sidecar's configuration may hold."""

from __future__ import annotations

import argparse
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from hedgerow.errors import ConfigError
from hedgerow.federation.config import DocumentUrl, FederationConfig, secret_files
from hedgerow.federation.overlay.limits import MAX_STATIC, OverlaySettings
from hedgerow.federation.overlay.wire import MAX_ADDRESS_BYTES
from hedgerow.kinds import NODE, SIDECAR
from hedgerow.node.broker_urls import MAX_URL_BYTES, BrokerUrl, read_urls_file, warn_if_readable
from hedgerow.node.config import Config
from hedgerow.node.config_loading import NodeKind, add_arguments, from_arguments, load_config
from hedgerow.node.values import Address


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with files to refer to."""
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (tmp_path / name).touch(0o600)
    (tmp_path / "key").write_text("00" * 32 + "\n")
    (tmp_path / "neighbours").write_text("# the house\nmqtt://house\n\n  mqtts://fed:secret@barn:8884\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(text: str, kind: NodeKind = NODE) -> Config:
    Path("node.toml").write_text(text)
    return load_config(Path("node.toml"), {}, kind)


def error_of(text: str, kind: NodeKind = NODE) -> str:
    with pytest.raises(ConfigError) as raised:
        load(text, kind)
    return str(raised.value)


def by_flags(*words: str, kind: NodeKind = NODE) -> Config:
    parser = argparse.ArgumentParser()
    add_arguments(parser, kind)
    return from_arguments(parser.parse_args(words), kind)


EVERYTHING = FederationConfig(
    neighbours=(BrokerUrl("house", 1883), BrokerUrl("::1", 8883, True, "fed", "a b")),
    neighbours_file=Path("neighbours"),
    join=(BrokerUrl("10.0.0.7", 1884),),
    discover=True,
    enabled=True,
    redundancy=3,
    active_at_most=4,
    advertise=(BrokerUrl("192.0.2.1", 1883),),
    key=bytes(32),
    key_file=Path("key"),
    username="us",
    password="them",
    cafile=Path("ca.pem"),
    certfile=Path("cert.pem"),
    keyfile=Path("key.pem"),
    keep_s=3_600.0,
    queue_bytes=1024 * 1024,
    announce_interval_s=0.5,
    document_neighbours=(DocumentUrl(BrokerUrl("mill", 1883), 4), DocumentUrl(BrokerUrl("shed", 1883))),
    data_log_bytes=1024 * 1024,
    data_log_age_s=10.0,
)


def test_everything_in_a_file() -> None:
    config = load(
        """
        [federation]
        neighbours = ["mqtt://house", "mqtts://fed:a%20b@[::1]", "mqtt://other@house:1883/"]
        neighbours_file = "neighbours"
        join = "mqtt://10.0.0.7:1884"
        discover = true
        enabled = true
        redundancy = 3
        active_at_most = 4
        advertise = ["mqtt://192.0.2.1"]
        key_file = "key"
        remote_username = "us"
        remote_password = "them"
        cafile = "ca.pem"
        certfile = "cert.pem"
        keyfile = "key.pem"
        keep = "1 h"
        queue_bytes = "1 MiB"
        announce_interval = "500 ms"
        wire = "hedgerow"
        document_neighbours = ["4=mqtt://mill", "mqtt://shed"]
        data_log = "1 MiB"
        data_log_age = "10 s"
        """
    )
    assert config.of(FederationConfig) == EVERYTHING


def test_everything_by_flags() -> None:
    config = by_flags(
        *(
            "--neighbour",
            "mqtt://house",
            "--neighbour",
            "mqtts://fed:a%20b@[::1]",
            "--neighbours",
            "neighbours",
        ),
        *("--join", "mqtt://10.0.0.7:1884", "--discover", "--federation", "--redundancy", "3"),
        *("--active-neighbours", "4", "--advertise", "mqtt://192.0.2.1", "--federation-key", "key"),
        *("--federation-username", "us", "--federation-password", "them", "--federation-cafile", "ca.pem"),
        *("--federation-certfile", "cert.pem", "--federation-keyfile", "key.pem", "--federation-keep", "1 h"),
        *("--federation-queue", "1 MiB", "--announce-interval", "500 ms", "--wire", "hedgerow"),
        *("--document-neighbour", "4=mqtt://mill", "--document-neighbour", "mqtt://shed"),
        *("--data-log", "1 MiB", "--data-log-age", "10 s"),
    )
    assert config.of(FederationConfig) == EVERYTHING


def test_a_node_is_federated_when_there_is_someone_to_link_to() -> None:
    assert not load("").of(FederationConfig).is_enabled
    for line in (
        "neighbours = 'mqtt://house'",
        "neighbours_file = 'neighbours'",
        "document_neighbours = 'mqtt://house'",
        "join = 'mqtt://house'",
        "discover = true",
        "enabled = true",
    ):
        assert load(f"[federation]\n{line}").of(FederationConfig).is_enabled
    assert not load("[federation]\nenabled = false\njoin = 'mqtt://house'").of(FederationConfig).is_enabled


def test_with_the_documents_wire_neighbours_are_not_nodes_of_ours() -> None:
    config = load(
        """
        [federation]
        wire = "document"
        neighbours = ["mqtt://house", "mqtt://mill"]
        document_neighbours = "4=mqtt://mill"
        """
    ).of(FederationConfig)
    assert config.read_linked() == ()
    assert list(map(str, config.read_document_neighbours())) == ["4=mqtt://mill:1883", "mqtt://house:1883"]


def test_neighbours_of_both_kinds() -> None:
    config = by_flags("--neighbour", "mqtt://house", "--document-neighbour", "mqtt://mill").of(
        FederationConfig
    )
    assert config.read_linked() == (BrokerUrl("house", 1883),)
    assert config.read_document_neighbours() == (DocumentUrl(BrokerUrl("mill", 1883)),)


def test_a_neighbour_may_have_a_number_and_a_user_who_speaks_as_it() -> None:
    given = ("4@theirs=mqtt://mill", "@a%40b=mqtt://shed", "mqtt://u:p%3D@barn", "7=mqtt://u:p@yard")
    flags = [word for each in given for word in ("--document-neighbour", each)]
    found = by_flags(*flags).of(FederationConfig).read_document_neighbours()
    assert [(each.number, each.user, each.url.host) for each in found] == [
        (4, "theirs", "mill"),
        (None, "a@b", "shed"),
        (None, None, "barn"),
        (7, None, "yard"),
    ]
    assert list(map(str, found))[:2] == ["4@theirs=mqtt://mill:1883", "@a%40b=mqtt://shed:1883"]


def test_beside_a_broker_that_is_not_ours_no_user_of_a_neighbour_can_be_told() -> None:
    with pytest.raises(ConfigError, match="does not say which user published what"):
        by_flags("--broker", "mqtt://localhost", "--document-neighbour", "4@theirs=mqtt://mill", kind=SIDECAR)


def test_the_overlay_never_looks_for_more_neighbours_than_it_may_have() -> None:
    assert FederationConfig().overlay_settings == OverlaySettings()
    assert FederationConfig(active_at_most=3).overlay_settings == OverlaySettings(
        active_target=3, active_at_most=3
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("neighbours = 7", "federation.neighbours: 7 is not a text in quotes"),
        ("neighbours = 'house:1883'", 'federation.neighbours: "house:1883" is not a URL such as mqtt://'),
        (
            "neighbours = 'house'",
            'federation.neighbours: "house" is not a URL such as mqtt://[USER[:PASSWORD]@]HOST[:PORT]; '
            "did you mean mqtt://house?",
        ),
        (
            "join = 'ws://house'",
            "federation.join: ws://house:80/mqtt: nodes are linked by mqtt:// or mqtts://",
        ),
        (
            "neighbours = 'mqtt://house:1883/farm'",
            'federation.neighbours: mqtt://house:1883: what is "/farm"?',
        ),
        ("neighbours = 'mqtt://a:secret@b c'", 'federation.neighbours: "b c" is no name of a host'),
        (
            "neighbours = 'mqtt://localhost'",
            "federation.neighbours: mqtt://localhost:1883 is this node itself",
        ),
        ("join = 'mqtt://127.0.0.1'", "federation.join: mqtt://127.0.0.1:1883 is this node itself"),
        (
            f"neighbours = {[f'mqtt://n{n}' for n in range(65)]}",
            "federation.neighbours: 65 static neighbours; t",
        ),
        (
            f"join = {[f'mqtt://n{n}' for n in range(17)]}",
            "federation.join: 17 members to join; there may be 16",
        ),
        ("neighbours_file = 'nowhere'", "federation.neighbours_file: nowhere: No such file or directory"),
        ("wire = 'mqtt'", 'federation.wire: "mqtt" is none of hedgerow, document'),
        (
            "document_neighbours = '4294967296=mqtt://house'",
            'federation.document_neighbours: "4294967296": federators have numbers from 0 to 4294967295',
        ),
        (
            "document_neighbours = '=mqtt://house'",
            'federation.document_neighbours: "=mqtt://house"',
        ),
        (
            "document_neighbours = ['4=mqtt://house', '4=mqtt://mill']",
            "federation.document_neighbours: 4 is the number of two neighbours",
        ),
        (
            "document_neighbours = 'mqtt://localhost'",
            "federation.document_neighbours: mqtt://localhost:1883 is this node itself",
        ),
        ("data_log = '1 KiB'", "federation.data_log: "),
        ("data_log_age = 'long'", 'federation.data_log_age: "long" is not a duration'),
        ("redundancy = 0", "federation.redundancy: 0 is not from 1 to 16"),
        ("redundancy = 1.5", "federation.redundancy: 1.5 is not a whole number"),
        ("redundancy = 'two'", 'federation.redundancy: "two" is not a whole number'),
        ("active_at_most = 17", "federation.active_at_most: 17 is not from 1 to 16"),
        (
            "advertise = 'mqtt://me@house'",
            "federation.advertise: mqtt://house:1883: everyone is told it: no user",
        ),
        (
            "advertise = 'mqtt://0.0.0.0'",
            "federation.advertise: mqtt://0.0.0.0:1883: others cannot connect to",
        ),
        (f"advertise = {[f'mqtt://n{n}' for n in range(5)]}", "federation.advertise: 5 URLs; there may be 4"),
        (
            "key_file = 'cert.pem'",
            "federation.key_file: cert.pem: a key has 16 to 64 bytes, as text or in hex, n",
        ),
        ("keep = 'long'", 'federation.keep: "long" is not a duration such as'),
        ("keep = 'never'", 'federation.keep: "never" is not from 0 to 31536000 s'),
        ("queue_bytes = 5", "federation.queue_bytes: 5 is not from 1024 to"),
        ("announce_interval = 0.01", "federation.announce_interval: 0.01 is not from 0.1 to 3600"),
        ("discover = 'yes'", 'federation.discover: "yes" is neither true nor false'),
        ("keyfile = 'key.pem'", "federation.keyfile: needs federation.certfile too"),
        ("remote_password = 'x'", "federation.remote_password: needs federation.remote_username too"),
        (
            "redundancy = 3",
            "federation.redundancy: there is nobody to federate with: set federation.neighbours",
        ),
        ("broker = 'mqtt://house'", "federation.broker: is no key of hedgerow up"),
        (
            "neighbors = 'mqtt://house'",
            "federation.neighbors: there is no such key; did you mean federation.neighb",
        ),
    ],
)
def test_errors_name_file_line_key_and_reason(text: str, error: str) -> None:
    assert error_of(f"[federation]\n{text}").startswith(f"node.toml:2: {error}")


@pytest.mark.parametrize("flag", ["--neighbour", "--join"])
def test_an_error_offers_only_what_links_nodes(flag: str) -> None:
    with pytest.raises(ConfigError) as raised:
        by_flags(flag, "http://house")
    assert str(raised.value) == f'{flag}: no transport "http://"; there are mqtt://, mqtts://'


def test_errors_name_the_flag_and_no_password() -> None:
    with pytest.raises(ConfigError) as raised:
        by_flags("--neighbour", "udp://fed:secret@house")
    assert str(raised.value).startswith("--neighbour: udp://fed@house")
    assert "secret" not in repr(EVERYTHING).replace("them", "secret")
    assert "secret" not in repr(BrokerUrl("house", 1, password="secret"))
    assert str(BrokerUrl("house", 1, True, "fed", "secret")) == "mqtts://house:1"


# Neighbours


def test_the_file_beyond_is_read_again(folder: Path) -> None:
    federation = load("federation = {neighbours = 'mqtt://house', neighbours_file = 'neighbours'}").of(
        FederationConfig
    )
    barn = BrokerUrl("barn", 8884, True, "fed", "secret")
    assert read_urls_file(folder / "neighbours") == (BrokerUrl("house", 1883), barn)
    assert federation.read_neighbours() == (BrokerUrl("house", 1883), barn)
    (folder / "neighbours").write_text("mqtt://mill\n")
    assert federation.read_neighbours() == (BrokerUrl("house", 1883), BrokerUrl("mill", 1883))
    (folder / "neighbours").write_text("mqtt://mill\n\nmill\n")
    with pytest.raises(ConfigError, match=r'^neighbours:3: "mill" is not a URL'):
        federation.read_neighbours()
    (folder / "neighbours").write_text("".join(f"mqtt://n{n}\n" for n in range(MAX_STATIC)))
    with pytest.raises(ConfigError, match="^65 static neighbours; there may be 64"):
        federation.read_neighbours()


def test_a_file_beyond_that_is_wrong_is_refused_at_the_start(folder: Path) -> None:
    (folder / "neighbours").write_text("house")
    with pytest.raises(ConfigError, match=r'^--neighbours: neighbours:1: "house" is not a URL'):
        by_flags("--neighbours", "neighbours")


def test_who_is_dialled_with_which_user() -> None:
    federation = FederationConfig(username="us", password="them")
    listed = (BrokerUrl("house", 1883, False, "fed", "secret"), BrokerUrl("barn", 1883))
    assert federation.url_to_dial("mqtt://house:1883", listed) == listed[0]
    assert federation.url_to_dial("mqtt://barn:1883", listed) == BrokerUrl("barn", 1883, False, "us", "them")
    # The same host over TLS is another door.
    assert federation.url_to_dial("mqtts://house:1883", listed) == BrokerUrl("house", 1883, True)
    # Other nodes tell addresses, and do not choose who we are.
    told = federation.url_to_dial("mqtt://root:toor@mill:1883", listed)
    assert told == BrokerUrl("mill", 1883, False)
    for nonsense in ("", "house", "http://house", "mqtt://", "mqtt://a b", "mqtt://a:99999", "mqtt://a\nb"):
        assert federation.url_to_dial(nonsense, listed) is None


@pytest.mark.parametrize(
    ("address", "given", "is_told"),
    [
        ("mqtt://mill:1883", {}, False),
        ("mqtts://mill:8883", {}, False),  # Any authority of the system would do.
        ("mqtts://mill:8883", {"cafile": Path("ca.pem")}, True),
        ("mqtt://mill:1883", {"cafile": Path("ca.pem")}, False),
        ("mqtt://mill:1883", {"key": bytes(32)}, True),
        ("mqtt://mill:1883", {"key": bytes(32), "discover": True}, False),
    ],
)
def test_the_password_goes_to_places_that_somebody_answers_for(
    address: str, given: dict[str, Any], is_told: bool
) -> None:
    dialled = FederationConfig(username="us", password="them", **given).url_to_dial(address, ())
    assert dialled is not None
    assert (dialled.username, dialled.password) == (("us", "them") if is_told else (None, None))


# Keys


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (b"sixteen letters!\n", b"sixteen letters!"),
        (b"\xff" * 64, b"\xff" * 64),
        (b" 000102030405060708090a0b0c0d0e0F \n", bytes(range(16))),
        (b"0123456789abcdef", b"0123456789abcdef"),  # Eight bytes in hex are no key, and so it is text.
        (b"ab" * 64, b"\xab" * 64),
    ],
)
def test_a_key_is_text_or_hex(content: bytes, key: bytes, folder: Path) -> None:
    (folder / "key").write_bytes(content)
    assert by_flags("--discover", "--federation-key", "key").of(FederationConfig).key == key


@pytest.mark.parametrize("content", [b"", b"fifteen letters", b"x" * 65, b"ab" * 65])
def test_a_key_that_is_too_short_or_too_long(content: bytes, folder: Path) -> None:
    (folder / "key").write_bytes(content)
    with pytest.raises(ConfigError, match=r"^--federation-key: key: a key has 16 to 64 bytes.*openssl rand"):
        by_flags("--discover", "--federation-key", "key")


def test_secrets_that_others_can_read_are_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    flags = ("--neighbours", "neighbours", "--federation-key", "key")
    for name in ("key", "neighbours"):
        (folder / name).chmod(0o600)
    with caplog.at_level(logging.WARNING):
        warn_if_readable(secret_files(by_flags(*flags)).values())
        assert caplog.text == ""
        (folder / "key").chmod(0o640)
        (folder / "neighbours").chmod(0o644)
        warn_if_readable(secret_files(by_flags(*flags)).values())
        assert re.findall(r"chmod 600 (\S+)", caplog.text) == ["key", "neighbours"]
        caplog.clear()
        (folder / "neighbours").write_text("mqtt://house")  # without a password it is no secret
        (folder / "key").chmod(0o600)
        warn_if_readable(secret_files(by_flags(*flags)).values())
        assert caplog.text == ""


# A sidecar


def test_a_sidecar_listens_nowhere_unless_asked_for_metrics() -> None:
    config = by_flags(
        "--broker", "mqtt://me:pw@localhost", "--assume", "farm/#", "--assume", "$share/g/+/x", kind=SIDECAR
    )
    assert config == Config(mqtt=(), ws=(), http=()).with_rooms(
        FederationConfig(home=BrokerUrl("localhost", 1883, False, "me", "pw"), assume=("farm/#", "+/x"))
    )
    config = load("http = 'localhost:0'\nfederation.broker = 'mqtt://house'", SIDECAR)
    assert config.http == (Address("localhost", 0),)


def test_that_nothing_is_assumed_can_be_said() -> None:
    """To say nothing is another thing: then everything is wanted until it is known what clients want."""
    for words, assumed in ((("--assume", "off"), ()), ((), None)):
        config = by_flags("--broker", "mqtt://localhost", *words, kind=SIDECAR)
        assert config.of(FederationConfig).assume == assumed


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "federation.broker: which broker is it to stand beside? (--broker URL)"),
        ("mqtt = 'localhost:5'", "node.toml:1: mqtt: is no key of hedgerow federate"),
        ("federation.enabled = false", "node.toml:1: federation.enabled: is no key of hedgerow federate"),
        (
            "federation.broker = ['mqtt://a', 'mqtt://b']",
            "node.toml:1: federation.broker: ['mqtt://a', 'mqtt://b",
        ),
        (
            "federation.broker = 'mqtt://localhost'\nfederation.neighbours = 'mqtt://127.0.0.1:1883'",
            "node.toml:2: federation.neighbours: mqtt://127.0.0.1:1883 is the broker that this federator",
        ),
        (
            "federation.broker = 'mqtt://house'\nfederation.join = 'mqtt://HOUSE'",
            "node.toml:2: federation.join: mqtt://HOUSE:1883 is the broker that this federator stands",
        ),
        ("federation.assume = 'a/#/b'", "node.toml:1: federation.assume: "),
        (
            "federation.assume = '$SYS/#'",
            'node.toml:1: federation.assume: "$SYS/#": topics that begin with $ or',
        ),
        (
            "federation.assume = 'hedgerow/#'",
            'node.toml:1: federation.assume: "hedgerow/#": topics that begin',
        ),
    ],
)
def test_what_a_sidecar_cannot_be_told(text: str, error: str) -> None:
    assert error_of(text, SIDECAR).startswith(error)


# The documentation


def test_every_url_can_be_told_to_other_nodes() -> None:
    assert MAX_URL_BYTES <= MAX_ADDRESS_BYTES
