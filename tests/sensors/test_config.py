"""The configuration of UDP sensors: addresses, the topic table, and who says that strangers may come."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from hedgerow.errors import ConfigError
from hedgerow.kinds import NODE
from hedgerow.node.config import Config
from hedgerow.node.config_loading import add_arguments, from_arguments, load_config
from hedgerow.node.values import Address
from hedgerow.sensors.config import SensorSettings, read_sensor_topics, read_udp_addresses
from hedgerow.sensors.packet import DEFAULT_TOPICS

HERE = Path()


def by_flags(*words: str) -> Config:
    parser = argparse.ArgumentParser()
    add_arguments(parser, NODE)
    return from_arguments(parser.parse_args(words), NODE)


def in_a_file(folder: Path, text: str) -> Config:
    (folder / "node.toml").write_text(text)
    return load_config(folder / "node.toml", {}, NODE)


EVERYTHING = SensorSettings(
    {1: "farm/temperature", 20: "farm/soil"},
    120.0,
    False,
    50.0,
    True,
    (Address("*", 12345), Address("::1", 1)),
)


def test_off_unless_asked_for() -> None:
    config = by_flags()
    assert config.of(SensorSettings).udp == ()
    assert config.of(SensorSettings) == SensorSettings(DEFAULT_TOPICS, 600.0, True, None, False)
    assert config.of(SensorSettings).topics == {1: "temperature", 2: "wind speed", 3: "humidity"}


def test_everything_in_a_file(tmp_path: Path) -> None:
    config = in_a_file(
        tmp_path,
        """
        udp = ["*", "[::1]:1"]

        [sensors]
        topics = {01 = "farm/temperature", 20 = "farm/soil"}
        subscription_expiry = "2 min"
        last_value = false
        rate = 50
        anonymous = true
        """,
    )
    assert config.of(SensorSettings) == EVERYTHING


def test_the_table_may_be_a_table_of_its_own(tmp_path: Path) -> None:
    config = in_a_file(tmp_path, 'udp = "localhost"\n[sensors.topics]\n01 = "farm/temperature"\n')
    assert config.of(SensorSettings).topics == {1: "farm/temperature"}


def test_everything_by_flags() -> None:
    config = by_flags(
        *("--udp", "*", "--udp", "[::1]:1"),
        *("--sensor-topic", "01=farm/temperature", "--sensor-topic", "20 = farm/soil"),
        *("--sensor-subscription-expiry", "2 min", "--no-sensor-last-value", "--sensor-rate", "50"),
        "--sensors-anonymous",
    )
    assert config.of(SensorSettings) == EVERYTHING


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost", Address("localhost", 12345)),
        ("localhost:1", Address("localhost", 1)),
        ("127.0.0.1", Address("127.0.0.1", 12345)),
        ("[::1]", Address("::1", 12345)),
        ("[::1]:0", Address("::1", 0)),
        ("*", Address("*", 12345)),
    ],
)
def test_the_port_may_be_left_out(text: str, address: Address) -> None:
    assert read_udp_addresses(text, HERE) == (address,)


def test_off_is_off() -> None:
    assert read_udp_addresses("off", HERE) == read_udp_addresses(["off"], HERE) == ()


@pytest.mark.parametrize("value", [12345, "", "::1", "localhost:", "localhost:udp", ["off", "*"]])
def test_what_is_no_address(value: object) -> None:
    with pytest.raises(ConfigError):
        read_udp_addresses(value, HERE)


@pytest.mark.parametrize("value", [12345, "12345", ["localhost", "12345"]])
def test_a_port_is_no_address(value: object) -> None:
    with pytest.raises(ConfigError, match='^"?12345"? is a port; say HOST:12345$'):
        read_udp_addresses(value, HERE)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("01", '"01" is not a table such as {01 = "farm/temperature"}'),
        (["01"], '"01" is not NUMBER=TOPIC'),
        ([1], "[1] is not a table"),
        ({"100": "a"}, '"100" is not a topic number from 00 to 99'),
        ({"x": "a"}, '"x" is not a topic number from 00 to 99'),
        ({"01": 5}, "01: 5 is not a text in quotes"),
        ({"01": "a/#"}, "01: topic name 'a/#' contains a wildcard"),
        ({"01": ""}, "01: a topic name has at least one character"),
        ({"01": "$SYS/x"}, "topics that begin with $ are the broker's own"),
        ({"01": "a", "1": "b"}, "1: the table has the number already"),
        ({"01": "a", "02": "a"}, "02: the table has a already"),
    ],
)
def test_what_is_no_table(value: object, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_sensor_topics(value, HERE)
    assert error in str(raised.value)


@pytest.mark.parametrize(
    "words",
    [
        ("--sensor-rate", "-1"),
        ("--sensor-subscription-expiry", "0.5"),
        ("--sensor-subscription-expiry", "2 d"),
        ("--udp", "localhost:1", "--udp", "127.0.0.1:1"),
    ],
)
def test_errors_name_the_flag(words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=f"^{words[0]}"):
        by_flags(*words)


@pytest.mark.parametrize("text", ["0", "0s", "never"])
def test_subscriptions_may_last_for_ever(text: str, tmp_path: Path) -> None:
    by_flag = by_flags("--udp", "localhost", "--sensor-subscription-expiry", text)
    in_file = in_a_file(tmp_path, f'udp = "localhost"\n[sensors]\nsubscription_expiry = "{text}"\n')
    for config in (
        by_flag,
        in_file,
        in_a_file(tmp_path, 'udp = "localhost"\nsensors.subscription_expiry = 0\n'),
    ):
        assert config.of(SensorSettings).subscription_expiry_s == float("inf")


def test_what_is_for_sensors_needs_an_address(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--sensor-topic: needs udp too \(--udp HOST\)$"):
        by_flags("--sensor-topic", "01=farm/temperature")
    with pytest.raises(ConfigError, match=r"node.toml:2: sensors.rate: needs udp too \(--udp HOST\)$"):
        in_a_file(tmp_path, "[sensors]\nrate = 5\n")
    assert (
        by_flags("--sensor-rate", "5", "--udp", "off").of(SensorSettings).udp == ()
    )  # said to be off, for now


@pytest.mark.parametrize("words", [(), ("--no-anonymous", "--passwords", "passwords")])
@pytest.mark.parametrize("host", ["*", "192.168.1.2", "farm.example"])
def test_strangers_must_be_invited(
    words: tuple[str, ...], host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("passwords").touch()
    with pytest.raises(ConfigError, match=r"^--udp: on .*:12345 anyone .* \(--sensors-anonymous\)$"):
        by_flags("--udp", host, *words)
    assert by_flags("--udp", host, "--sensors-anonymous", *words).of(SensorSettings).udp
    if not words:
        assert by_flags("--udp", host, "--anonymous").of(SensorSettings).udp


def test_udp_and_tcp_ports_are_different_things() -> None:
    assert by_flags("--udp", "localhost:1883").of(SensorSettings).udp == (Address("localhost", 1883),)
