"""Brokers as words and as a file: what they come to, and the one line that says what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from hedgerow.agent.agent import MAX_BROKERS
from hedgerow.agent.io.broker_list import BrokerEntry, check_entries, read_entries, read_option, read_words
from hedgerow.errors import ConfigError


def test_words() -> None:
    first, second, third = read_words(
        ["a=127.0.0.1:1884", "mqtt://user:p%3Ass@host.example", "c=mqtt://[2001:db8::7]:1885"]
    )
    assert (first.id, str(first.address)) == ("a", "mqtt://127.0.0.1:1884")
    assert (second.id, second.address.username, second.address.password) == (
        "host.example-1883",
        "user",
        "p:ss",
    )
    assert (third.far_address.host, third.far_address.port) == ("2001:db8::7", 1885)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("a=h:0", 'broker a: port "0" in "mqtt://h:0" is not a number from 1 to 65535'),
        ("a b=h:1", 'broker a b: "a b" is not 1 to 64 letters, digits, ".", "_" or "-"'),
        ("a=ws://h", "broker a: bridges speak mqtt:// and mqtts://, not ws://"),
        ("a=h:1/topic", 'broker a: "/topic" after mqtt://h:1: mqtt:// takes no path'),
        ("mqtt://u:secret@h:x", 'broker mqtt://u:…@h:x: port "x" in "mqtt://u:…@h:x" is not a number'),
        ("a=", 'broker a: "mqtt://" names no host'),
    ],
)
def test_bad_words(word: str, reason: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_words([word])
    assert str(raised.value).startswith(reason)
    assert "secret" not in str(raised.value)


def test_twice_and_too_many() -> None:
    with pytest.raises(ConfigError, match="broker a: given twice"):
        check_entries(read_words(["a=h:1", "a=h:2"]))
    with pytest.raises(ConfigError, match="broker b: h:1 is also the address of a"):
        check_entries(read_words(["a=h:1", "b=h:1"]))
    with pytest.raises(ConfigError, match=f"{MAX_BROKERS + 1} brokers are more than {MAX_BROKERS}"):
        check_entries(read_words([f"h:{port}" for port in range(1, MAX_BROKERS + 2)]))


def write(folder: Path, text: str) -> Path:
    path = folder / "brokers.toml"
    path.write_text(text)
    return path


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    path = write(
        tmp_path,
        """
        [[broker]]
        id = "one"
        url = "mqtts://one.example"
        ca_file = "ca.pem"
        address = "10.0.0.1:8884"
        options = ["keepalive_interval 20", "username someone"]
        bind = "127.0.0.2"
        kind = "hedgerow"

        [[broker]]
        url = "10.0.0.2:1883"
        config_dir = "."
        pidfile = "mosquitto.pid"
        """,
    )
    one, two = read_entries(path)
    assert (one.id, one.bind, one.kind) == ("one", "127.0.0.2", "hedgerow")
    assert one.tls.ca_file == str(tmp_path / "ca.pem")
    assert one.options == (("keepalive_interval", "20"), ("remote_username", "someone"))
    assert str(one.far_address) == "10.0.0.1:8884"
    assert two == BrokerEntry(
        "10.0.0.2-1883", two.address, config_dir=tmp_path, pidfile=tmp_path / "mosquitto.pid"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no [[broker]] tables"),
        ("broker = 3", "no [[broker]] tables"),
        ("x = 3", "x: there are [[broker]] tables alone"),
        ("[[broker]", "Expected ']]'"),
        pytest.param(f"x = {'[' * 50_000}", "nested too deeply", id="nested"),
        ('[[broker]]\nid = "a"', "broker a: has no url"),
        ('[[broker]]\nurl = "h:1"\nurls = 3', "broker number 1: urls: there is no such key; there are id,"),
        ('[[broker]]\nid = "a"\nurl = 3', "broker a: url: 3 is not a text in quotes"),
        ('[[broker]]\nid = "a/b"\nurl = "h:1"', 'broker a/b: id: "a/b" is not 1 to 64'),
        ('[[broker]]\nurl = "h:1"\nbind = "h"', 'bind: "h" is not an IPv4 or IPv6 address'),
        ('[[broker]]\nurl = "h:1"\nkind = "emqx"', "kind: is none of hedgerow, mosquitto, other"),
        ('[[broker]]\nurl = "h:1"\noptions = "x"', "options: is no list"),
        ('[[broker]]\nurl = "h:1"\noptions = ["x y"]', 'options: "x" is no option of a bridge'),
        ('[[broker]]\nurl = "h:1"\nconfig_dir = "nowhere"', "config_dir: "),
        ('[[broker]]\nurl = "h:1"\nconfig_dir = "."', "config_dir: needs pid or pidfile too"),
        ('[[broker]]\nurl = "h:1"\npid = 1', "pid: is not the number of a process"),
        ('[[broker]]\nurl = "h:1"\npid = 99999999999', "pid: is not the number of a process"),
        ('[[broker]]\nurl = "h:1"\nca_file = "nowhere"', "ca_file: "),
        ('[[broker]]\nurl = "h:1"\naddress = "a b"', "address: one address is expected"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, reason: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as raised:
        read_entries(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)


def test_options_of_sections() -> None:
    assert read_option(" cleansession  true ") == ("cleansession", "true")
    for text, reason in {
        "address h": "address: the agent itself says that",
        "topic #": "topic: the agent itself says that; --topic says what is carried",
        "clientid x": "clientid: the agent itself says that",
        "try_private maybe": 'try_private: "maybe" is none of true, false',
        "": '"" is no option of a bridge',
    }.items():
        with pytest.raises(ConfigError) as raised:
            read_option(text)
        assert str(raised.value) == reason
