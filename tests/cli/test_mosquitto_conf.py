"""A mosquitto.conf as the configuration of a node: each option, listeners, and a real Mosquitto beside it."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

from hedgerow.bridges.io.files import read_bridge_files
from hedgerow.bridges.options import OPTIONS as OF_BRIDGES
from hedgerow.cli import main
from hedgerow.cli.mosquitto.conversion import Converted, convert
from hedgerow.cli.mosquitto.options import (
    GENERAL,
    LISTENER,
    PREFIXES,
    READ_BY_HAND,
    Needless,
    Sets,
    Unsupported,
)
from hedgerow.errors import ConfigError
from hedgerow.node.passwords import set_password
from tests.cli.serving import Serving
from tests.programs import need_program, run_mosquitto

# The words of Mosquitto 2.0's manual, mosquitto.conf(5), but for those of bridges.
DOCUMENTED = (Path(__file__).parent / "mosquitto_options.txt").read_text().split()
# What an option is given, and what its key becomes. Others are given true.
VALUES: dict[str, tuple[str, object]] = {
    **dict.fromkeys(("acl_file", "password_file", "certfile", "keyfile", "crlfile"), ("file", "file")),
    **dict.fromkeys(("max_inflight_messages", "max_keepalive", "max_packet_size"), ("2", 2)),
    **dict.fromkeys(("max_queued_bytes", "max_queued_messages", "max_connections", "max_qos"), ("2", 2)),
    **dict.fromkeys(("max_topic_alias", "sys_interval"), ("2", 2)),
    "persistent_client_expiration": ("14d", "336 h"),
}


EACH = "per_listener_settings true\n"


def read(folder: Path, text: str) -> Converted:
    file = folder / "mosquitto.conf"
    file.write_text(text)
    return convert(file)


def values(converted: Converted) -> dict[str, object]:
    return {name: written.value for name, written in converted.written.items()}


def test_every_documented_option_has_an_entry() -> None:
    ours = {*GENERAL, *LISTENER, *READ_BY_HAND, *(f"{prefix}*" for prefix in PREFIXES)}
    assert set(DOCUMENTED) - ours == set()
    assert ours - set(DOCUMENTED) == {"plugin", "plugin_opt_*"}  # of 2.0, and in another place of the manual


@pytest.mark.parametrize("word", sorted({**GENERAL, **LISTENER}))
def test_each_option(word: str, tmp_path: Path) -> None:
    fate = GENERAL.get(word) or LISTENER[word]
    before = "listener 1883\ncertfile c\ncafile a\n" if word in LISTENER else ""
    if isinstance(fate, Sets):
        given, expected = VALUES.get(word, ("true", True))
        assert values(read(tmp_path, f"{before}{word} {given}\n"))[fate.key] == expected
        return
    text = f"{before}{word} something\n"
    if isinstance(fate, Unsupported) and fate.guards:
        with pytest.raises(ConfigError, match=rf"mosquitto.conf:\d+: {word}: not supported"):
            read(tmp_path, text)
    else:
        ignored = [line for line in read(tmp_path, text).ignored if f": {word}: not honoured" in line]
        assert len(ignored) == (0 if isinstance(fate, Needless) else 1)
    if isinstance(fate, Unsupported) and fate.unless is not None:
        assert read(tmp_path, f"{before}{word} {fate.unless}\n").ignored == []


def test_listeners_of_all_kinds(tmp_path: Path) -> None:
    found = values(
        read(
            tmp_path,
            "port 1883\nbind_address 10.0.0.1\n"
            "listener 1884\nsocket_domain ipv4\n"
            "listener 9001 ::1\nprotocol websockets\n"
            "listener 8883\ncertfile c\nkeyfile k\ncafile a\nrequire_certificate true\n",
        )
    )
    assert found["mqtt"] == ["10.0.0.1:1883", "0.0.0.0:1884"]
    assert found["ws"] == ["[::1]:9001"]
    assert found["mqtts"] == ["*:8883"]
    assert found["wss"] == "off"
    assert found["tls.client_ca"] == "a"
    assert found["access.anonymous"] is False


@pytest.mark.parametrize(
    ("text", "anonymous", "mqtt"),
    [
        ("", True, ["localhost:1883"]),
        ("password_file p\n", False, ["localhost:1883"]),
        ("listener 1883\n", False, ["*:1883"]),
        ("listener 1883\nallow_anonymous true\n", True, ["*:1883"]),
    ],
)
def test_who_may_connect_is_as_mosquitto_has_it(
    text: str, anonymous: bool, mqtt: list[str], tmp_path: Path
) -> None:
    found = values(read(tmp_path, text))
    assert found["access.anonymous"] is anonymous
    assert found["mqtt"] == mqtt


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "listenr 1883\n",
            "mosquitto.conf:1: listenr: Mosquitto 2.0 has no such option; did you mean listener",
        ),
        ("listener 1883\nmax_qos 1\nlistener 1884\n", "max_qos: the listeners differ"),
        (f"{EACH}listener 1\nacl_file a\nlistener 2\nacl_file b\n", "acl_file: the listeners differ"),
        ("listener 0 /run/mosquitto.sock\n", "does not listen at a path"),
        ("allow_anonymous yes\n", '"yes" is neither true nor false'),
        ("log_type loud\n", '"loud" is none of'),
        ("persistence true\n", "needs persistence_location"),
        ("include_dir nowhere\n", "nowhere is not a directory"),
    ],
)
def test_what_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=reason):
        read(tmp_path, text)


def test_included_files_logging_and_persistence(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/b.conf").write_text("log_type warning\nlog_type notice\n")
    (tmp_path / "conf.d/a.conf").write_text("persistence true\npersistence_location kept\n")
    converted = read(tmp_path, "include_dir conf.d\nlog_dest stderr\nlog_dest syslog\n")
    assert values(converted)["log.level"] == "info"
    assert values(converted)["data"] == "kept"
    assert [line for line in converted.ignored if "log_dest" in line] == [
        f"{tmp_path}/mosquitto.conf:3: log_dest syslog: not honoured: the log goes to standard error"
    ]


def test_a_file_that_includes_itself(tmp_path: Path) -> None:
    folder = tmp_path / "loop"
    folder.mkdir()
    (folder / "again.conf").write_text(f"include_dir {folder}\n")
    with pytest.raises(ConfigError, match="more than 10 levels"):
        read(tmp_path, f"include_dir {folder}\n")


def test_convert_writes_a_configuration_and_bridges(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, to = tmp_path / "mosquitto.conf", tmp_path / "to"
    to.mkdir()
    section = "connection north\naddress north.example\nusername a\npassword secret\ntopic farm/# both 1\n"
    file.write_text(f"listener 1883\npassword_file users\nmax_queued_messages 5\nmemory_limit 9\n{section}")
    assert main(["convert", str(file), "--to", str(to)]) == 0
    written = tomllib.loads((to / "hedgerow.toml").read_text())
    assert written["mqtt"] == ["*:1883"]
    assert written["access"] == {"anonymous": False, "passwords": str(tmp_path / "users")}
    assert written["limits"] == {"queue_messages": 5}
    assert written["bridges"] == "bridges.conf"
    (bridge,) = read_bridge_files([to / "bridges.conf"])
    assert (bridge.name, bridge.remote_password) == ("north", "secret")
    assert (to / "bridges.conf").stat().st_mode & 0o077 == 0
    assert "memory_limit: not honoured" in capsys.readouterr().err
    assert main(["convert", str(file), "--to", str(to)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["convert", str(file)]) == 2


def test_every_option_of_a_bridge_is_taken(tmp_path: Path) -> None:
    words = [word for word in OF_BRIDGES if word not in ("connection", "address", "topic")]
    text = "connection b\naddress a.example\ntopic t\n" + "".join(f"{word} 1\n" for word in words)
    assert read(tmp_path, text).bridges == text


def test_the_same_file_for_mosquitto_and_a_node(tmp_path: Path) -> None:
    """With a user, rules and a bridge: what a client of one publishes, one of the other gets."""
    set_password(tmp_path / "users", "ada", b"pass", iterations=1000, create=True)
    (tmp_path / "rules").write_text("user ada\ntopic readwrite farm/#\n")
    lines = ("allow_anonymous false", f"password_file {tmp_path}/users", f"acl_file {tmp_path}/rules")
    user = ["-u", "ada", "-P", "pass"]
    with run_mosquitto(tmp_path, *lines) as port:
        bridge = (
            f"connection to\naddress 127.0.0.1:{port}\nusername ada\npassword pass\ntopic farm/# both 1\n"
        )
        file = tmp_path / "node.conf"
        file.write_text("\n".join(["listener 1883", *lines, bridge]))
        addresses = ("--mqtt", "127.0.0.1:0", "--http", "off")
        node = Serving(tmp_path, "up", "--mosquitto-conf", str(file), *addresses)
        try:
            node.wait()
            here = node.output.split("mqtt://127.0.0.1:")[1].split()[0]
            publish = [need_program("mosquitto_pub"), "-p", here, "-t", "farm/a", "-m", "7", "-q", "1", "-r"]
            assert subprocess.run(publish, capture_output=True, check=False).returncode != 0
            subprocess.run([*publish, *user], check=True)
            sub = [
                need_program("mosquitto_sub"),
                "-p",
                str(port),
                *user,
                "-t",
                "farm/#",
                "-C",
                "1",
                "-W",
                "20",
            ]
            assert subprocess.run(sub, capture_output=True, check=True).stdout == b"7\n"
        finally:
            node.end()
