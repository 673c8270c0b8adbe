"""The `[mobility]` table and its flags: what each role may have, and must have."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import pytest

from hedgerow.errors import ConfigError
from hedgerow.kinds import NODE, SIDECAR
from hedgerow.mobility.config import MAX_FIXED, MobilityConfig, secret_files
from hedgerow.mobility.domains import MAX_DOMAIN_BYTES
from hedgerow.mobility.settings import MobileSettings
from hedgerow.node.broker_urls import BrokerUrl, warn_if_readable
from hedgerow.node.config import Config
from hedgerow.node.config_loading import NodeKind, add_arguments, from_arguments, load_config
from hedgerow.node.values import Address


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with files to refer to."""
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (tmp_path / name).touch(0o600)
    (tmp_path / "fixed").write_text("# the house\nmqtt://house\n\n  mqtts://mob:secret@barn:8884\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(text: str, kind: NodeKind = NODE) -> Config:
    Path("node.toml").write_text(text)
    return load_config(Path("node.toml"), {}, kind)


def error_of(text: str, kind: NodeKind = NODE) -> str:
    with pytest.raises(ConfigError) as raised:
        load(text, kind)
    return str(raised.value)


def by_flags(*words: str) -> Config:
    parser = argparse.ArgumentParser()
    add_arguments(parser, NODE)
    return from_arguments(parser.parse_args(words), NODE)


EVERYTHING = MobilityConfig(
    role="mobile",
    fixed=(BrokerUrl("tower", 1884, False, "mob", "a b"), BrokerUrl("::1", 8883, True)),
    fixed_file=Path("fixed"),
    domain="farm/sector1",
    relay=Address("127.0.0.1", 2883),
    monitors=True,
    cafile=Path("ca.pem"),
    certfile=Path("cert.pem"),
    keyfile=Path("key.pem"),
    settings=MobileSettings(
        (),
        address="10.0.0.9:1883",
        fixed_address="[2001:db8::7]:1883",
        x_s=0.2,
        y_s=60.0,
        share=0.25,
        capacity=100,
        score="published",
        algorithm="naive",
        rotation=1,
        moves_clients=False,
        move_after_s=0.5,
        takeover_after_s=10.0,
        delegates=False,
    ),
)


def test_everything_in_a_file() -> None:
    config = load(
        """
        [mobility]
        role = "mobile"
        fixed = ["mqtt://mob:a%20b@tower:1884", "mqtts://[::1]"]
        fixed_file = "fixed"
        domain = "farm/sector1"
        address = "10.0.0.9:1883"
        fixed_address = "[2001:db8::7]:1883"
        relay = "127.0.0.1:2883"
        cafile = "ca.pem"
        certfile = "cert.pem"
        keyfile = "key.pem"
        monitors = true
        x_s = "200 ms"
        y_s = "1 min"
        share = 0.25
        capacity = 100
        score = "published"
        algorithm = "naive"
        rotation = 1
        delegates = false
        moves_clients = false
        move_after_s = 0.5
        takeover_after_s = "10 s"
        """
    )
    assert config.of(MobilityConfig) == EVERYTHING


def test_everything_by_flags() -> None:
    files = ("--fixed-file", "fixed", "--fixed-cafile", "ca.pem", "--fixed-certfile", "cert.pem")
    places = ("--clients-at", "10.0.0.9:1883", "--fixed-clients-at", "[2001:db8::7]:1883")
    hot = ("--hot-topics", "--hot-every", "0.2", "--hot-window", "60", "--hot-share", "0.25")
    naive = ("--hot-capacity", "100", "--hot-score", "published", "--hot-algorithm", "naive")
    moves = (
        "--no-delegation",
        "--no-move-clients",
        "--naive-half",
        "1",
        "--move-after",
        "0.5",
        "--takeover-after",
        "10",
    )
    config = by_flags(
        *("--role", "mobile", "--domain", "farm/sector1", "--relay", "127.0.0.1:2883"),
        *("--fixed", "mqtt://mob:a%20b@tower:1884", "--fixed", "mqtts://[::1]"),
        *(*files, "--fixed-keyfile", "key.pem", *places, *hot, *naive, *moves),
    )
    assert config.of(MobilityConfig) == EVERYTHING


def test_a_fixed_broker() -> None:
    config = by_flags(
        *("--role", "fixed", "--domain", "farm", "--allow-mobile", "tractor", "--allow-mobile", "drone"),
        *("--takeover-after", "1", "--neighbour", "mqtt://house"),
    )
    mobility = config.of(MobilityConfig)
    assert mobility.allow == frozenset({"tractor", "drone"})
    assert mobility.settings.takeover_after_s == 1
    assert mobility.read_fixed() == ()
    assert load("[mobility]\nrole = 'fixed'\ndomain = 'farm'").of(MobilityConfig).allow is None


def test_any_node_may_count_its_hot_topics() -> None:
    mobility = by_flags("--hot-topics", "--hot-window", "5", "--hot-capacity", "0").of(MobilityConfig)
    assert (mobility.role, mobility.monitors) == (None, True)
    assert (mobility.settings.y_s, mobility.settings.capacity) == (5, 0)
    assert Config().of(MobilityConfig) == load("").of(MobilityConfig) == MobilityConfig()
    assert not MobilityConfig().monitors


MOBILE = "[mobility]\nrole = 'mobile'\nfixed = 'mqtt://tower'\ndomain = 'farm'\n"
FIXED = "[mobility]\nrole = 'fixed'\ndomain = 'farm'\n"


def test_what_the_node_is_given() -> None:
    mobility = load(f"{MOBILE}fixed_file = 'fixed'\nshare = 0.9\n").of(MobilityConfig)
    urls = mobility.read_fixed()
    assert urls[2].password == "secret"
    settings = mobility.settings_with(urls, "127.0.0.1:2883")
    addresses = ("mqtt://tower:1883", "mqtt://house:1883", "mqtts://barn:8884")
    assert settings == MobileSettings(addresses, fixed_address="127.0.0.1:2883", share=0.9)
    told = load(f"{MOBILE}fixed_address = 'tower.example:1883'\n").of(MobilityConfig)
    assert told.settings_with(urls, "127.0.0.1:2883").fixed_address == "tower.example:1883"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[mobility]\nrole = 'moving'", 'node.toml:2: mobility.role: "moving" is none of mobile, fixed'),
        ("[mobility]\nrole = 'mobile'\ndomain = 'farm'", "which broker is to support it?"),
        ("[mobility]\nrole = 'mobile'\nfixed = 'mqtt://tower'", "set mobility.domain (--domain TOPIC)"),
        ("[mobility]\nrole = 'fixed'", "set mobility.domain (--domain TOPIC)"),
        (
            "[mobility]\ndomain = 'farm'",
            "node.toml:2: mobility.domain: needs mobility.role (--role mobile or",
        ),
        (f"{FIXED}fixed = 'mqtt://tower'", "mobility.fixed: a fixed broker names none"),
        (f"{FIXED}relay = 'localhost:2883'", 'mobility.relay: needs mobility.role = "mobile"'),
        (f"{FIXED}share = 0.5", "mobility.share: needs mobility.role = "),
        (f"{FIXED}share = 0.5", "or mobility.monitors = true (--hot-topics)"),
        (f"{MOBILE}allow = 'other'", 'mobility.allow: needs mobility.role = "fixed"'),
        ("[mobility]\nmonitors = true\nalgorithm = 'naive'", 'algorithm: needs mobility.role = "mobile"'),
        (
            f"{MOBILE}[federation]\nenabled = true",
            "federation.enabled: a mobile broker reaches the others thr",
        ),
        (
            f"{MOBILE}[federation]\njoin = 'mqtt://a'",
            "federation.join: a mobile broker reaches the others thr",
        ),
        (
            f"mqtt = '*:1883'\naccess.anonymous = true\n{MOBILE}relay = '*:2883'",
            "at which address do clients",
        ),
        (f"{MOBILE}relay = ['localhost:1', 'localhost:2']", "there can be only one"),
        (f"{MOBILE}keyfile = 'key.pem'", "needs mobility.certfile too"),
        (
            f"{MOBILE}y_s = 500\nx_s = 0.4",
            "mobility.y_s: a window of 500 s is more than 1,000 times the 0.4 s",
        ),
        (f"{MOBILE}x_s = '1 ms'", 'mobility.x_s: "1 ms" is not from 0.01 to 86400 s'),
        (f"{MOBILE}share = 1.5", "mobility.share: 1.5 is not from 0 to 1"),
        (f"{MOBILE}capacity = 2.5", "2.5 is not a whole number"),
        (f"{MOBILE}rotation = 2", "mobility.rotation: 2 is not from 0 to 1"),
        (f"{MOBILE}address = 'tower'", '"tower" is not "HOST:PORT"'),
        (f"{MOBILE}address = '0.0.0.0:1883'", "clients cannot connect to 0.0.0.0"),
        (f"{MOBILE}fixed_address = 'mqtt://tower:1'", 'is not "HOST:PORT"'),
        (f"mqtt = 'localhost:1884'\n{MOBILE.replace('tower', 'localhost:1884')}", "is this node itself"),
        (
            f"mqtt = 'off'\n{MOBILE}",
            "mobility.role: clients that are sent to the fixed broker could not come",
        ),
        (MOBILE.replace("mqtt:", "ws:"), "nodes are linked by mqtt:// or mqtts://"),
        (MOBILE.replace("tower", "0.0.0.0"), "nobody can connect to 0.0.0.0"),
        (MOBILE.replace("tower", "[fe80::1%25eth0]"), "clients cannot be sent to fe80::1%25eth0"),
        (MOBILE.replace("'mqtt://tower'", "[]"), "mobility.fixed: there is none in the list"),
        (
            MOBILE.replace("'mqtt://tower'", str([f"mqtt://tower{number}" for number in range(17)])),
            f"17 fixed brokers; there may be {MAX_FIXED}",
        ),
    ],
)
def test_errors_name_file_line_key_and_reason(text: str, error: str) -> None:
    found = error_of(text)
    assert found.startswith("node.toml:")
    assert error in found


@pytest.mark.parametrize("domain", ["farm/+", "#", "/farm", "farm/", "$SYS", "x" * (MAX_DOMAIN_BYTES + 1)])
def test_a_domain_is_a_topic_without_wildcards(domain: str) -> None:
    assert "mobility.domain: " in error_of(FIXED.replace("farm", domain))


def test_errors_name_the_flag_and_no_password() -> None:
    with pytest.raises(ConfigError, match="^--fixed: ") as raised:
        by_flags("--role", "mobile", "--domain", "d", "--fixed", "mqtt://mob:secret@tower:99999")
    assert "secret" not in str(raised.value)
    with pytest.raises(ConfigError, match=r"^--role: which broker is to support it\?"):
        by_flags("--role", "mobile", "--domain", "d")


def test_a_relay_for_others_leads_to_no_broker_of_this_machine_alone() -> None:
    """Which lets everyone in, since they can only be clients of its own machine."""
    near = ["--role", "mobile", "--domain", "d", "--fixed", "mqtt://localhost:1884"]
    with pytest.raises(ConfigError, match="the relay on 10.0.0.9:2883 would let others in"):
        by_flags(*near, "--relay", "10.0.0.9:2883")
    assert by_flags(*near, "--relay", "localhost:2883").of(MobilityConfig).relay == Address("localhost", 2883)
    assert by_flags(*near, "--relay", "off").of(MobilityConfig).relay is None


def test_a_broker_that_moves_no_clients_needs_no_way_back() -> None:
    assert load(f"mqtt = 'off'\n{MOBILE}moves_clients = false").of(MobilityConfig).is_mobile
    assert load(f"mqtt = 'off'\n{MOBILE}address = 'here:1883'").of(MobilityConfig).is_mobile


def test_the_file_of_fixed_brokers_is_read_again(folder: Path) -> None:
    mobility = load("[mobility]\nrole = 'mobile'\nfixed_file = 'fixed'\ndomain = 'farm'").of(MobilityConfig)
    assert [url.host for url in mobility.read_fixed()] == ["house", "barn"]
    (folder / "fixed").write_text("mqtt://mill\n")
    assert [url.host for url in mobility.read_fixed()] == ["mill"]
    (folder / "fixed").write_text("mqtt://mill\nws://mill\n")
    with pytest.raises(ConfigError, match="fixed:2: ws://mill"):
        mobility.read_fixed()
    (folder / "fixed").write_text("# nobody\n")
    with pytest.raises(ConfigError, match="fixed: names no fixed broker"):
        mobility.read_fixed()
    assert "mobility.fixed_file: " in error_of(
        "[mobility]\nrole = 'mobile'\nfixed_file = 'fixed'\ndomain = 'farm'"
    )


def test_secrets_that_others_can_read_are_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "fixed").chmod(0o600)
    with caplog.at_level(logging.WARNING):
        warn_if_readable(secret_files(Config().with_rooms(EVERYTHING)).values())
        assert not caplog.text
        (folder / "fixed").chmod(0o644)
        warn_if_readable(secret_files(Config().with_rooms(EVERYTHING)).values())
    assert "fixed: others on this machine may read its secrets" in caplog.text


def test_a_sidecar_has_no_part_in_it() -> None:
    assert "is no key of hedgerow federate" in error_of("[mobility]\nrole = 'fixed'", SIDECAR)
