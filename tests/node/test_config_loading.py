"""The configuration file, its flags, and the rules that hold between its values."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from hedgerow.broker.limits import Limits
from hedgerow.errors import ConfigError
from hedgerow.kinds import NODE
from hedgerow.node.config import Config, Tls, load_access
from hedgerow.node.config_loading import add_arguments, from_arguments, load_config
from hedgerow.node.values import Address


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with files to refer to."""
    for name in ("cert.pem", "key.pem", "ca.pem", "passwords", "acl"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(text: str, **overrides: object) -> Config:
    path = Path("node.toml")
    path.write_text(text)
    return load_config(path, overrides, NODE)


def error_of(text: str, **overrides: object) -> str:
    with pytest.raises(ConfigError) as raised:
        load(text, **overrides)
    return str(raised.value)


def by_flags(*words: str) -> Config:
    parser = argparse.ArgumentParser()
    add_arguments(parser, NODE)
    return from_arguments(parser.parse_args(words), NODE)


def test_without_configuration_only_this_machine_is_served() -> None:
    config = load_config(None, {}, NODE)
    assert config == Config()
    assert config.mqtt == (Address("localhost", 1883),)
    assert config.ws == (Address("localhost", 9001),)
    assert config.http == (Address("localhost", 8780),)
    assert config.mqtts == config.wss == ()
    assert config.data is None
    assert config.anonymous


EVERYTHING = Config(
    mqtt=(Address("*", 1883), Address("::1", 1884)),
    mqtts=(Address("0.0.0.0", 8883),),
    ws=(),
    wss=(Address("localhost", 9443),),
    http=(Address("127.0.0.1", 0),),
    data=Path("data"),
    id="field-7",
    tls=Tls(Path("cert.pem"), Path("key.pem"), Path("ca.pem"), True, True),
    passwords=Path("passwords"),
    acl=Path("acl"),
    anonymous=True,
    administrators=frozenset({"anna", "bob"}),
    limits=Limits(connections=5, packet_bytes=1024 * 1024),
    log_format="json",
    log_level="debug",
    sys_interval_s=60.0,
)


def test_everything_in_a_file() -> None:
    config = load(
        """
        mqtt = ["*:1883", "[::1]:1884"]
        mqtts = "0.0.0.0:8883"
        ws = "off"
        wss = "localhost:9443"
        http = "127.0.0.1:0"
        data = "data"
        id = "field-7"
        sys.interval = "1 min"

        [tls]
        certificate = "cert.pem"
        key = "key.pem"
        client_ca = "ca.pem"
        require_client_certificate = true
        use_identity_as_username = true

        [access]
        passwords = "passwords"
        acl = "acl"
        anonymous = true
        administrators = ["bob", "anna"]

        [limits]
        connections = 5
        packet_bytes = "1 MiB"

        [log]
        format = "json"
        level = "debug"
        """
    )
    assert config == EVERYTHING


def test_everything_by_flags() -> None:
    config = by_flags(
        *("--mqtt", "*:1883", "--mqtt", "[::1]:1884", "--mqtts", "0.0.0.0:8883", "--ws", "off"),
        *("--wss", "localhost:9443", "--http", "127.0.0.1:0", "--data", "data", "--id", "field-7"),
        *("--certificate", "cert.pem", "--key", "key.pem", "--client-ca", "ca.pem"),
        *("--require-client-certificate", "--use-identity-as-username"),
        *("--passwords", "passwords", "--acl", "acl", "--anonymous"),
        *("--administrator", "anna", "--administrator", "bob"),
        *("--limit", "connections=5", "--limit", "packet_bytes = 1 MiB"),
        *("--log-format", "json", "--log-level", "debug", "--sys-interval", "1 min"),
    )
    assert config == EVERYTHING


def test_flags_override_the_file() -> None:
    Path("node.toml").write_text('mqtt = ["*:1", "*:2"]\naccess.anonymous = true\nlimits.connections = 5\n')
    config = by_flags("--config", "node.toml", "--mqtt", "localhost:3", "--limit", "connections=6")
    assert config.mqtt == (Address("localhost", 3),)
    assert config.limits.connections == 6
    assert config.anonymous


def test_paths_in_a_file_start_from_its_folder_and_those_of_flags_from_here(folder: Path) -> None:
    below = folder / "below"
    below.mkdir()
    (below / "passwords").touch()
    (below / "node.toml").write_text('data = "data"\n[access]\npasswords = "passwords"\n')
    config = load_config(below / "node.toml", {"access.acl": "acl"}, NODE)
    assert config.passwords == below / "passwords"
    assert config.data == below / "data"
    assert config.acl == Path("acl")


def test_one_administrator_needs_no_list() -> None:
    config = load("[access]\npasswords = 'passwords'\nadministrators = 'anna'")
    assert config.administrators == {"anna"}


def test_the_acl_becomes_access_rules(folder: Path) -> None:
    assert load_access(Config()).may_write(None, "c", "anything")
    (folder / "acl").write_text("topic read a\n")
    access = load_access(load('access.acl = "acl"'))
    assert access.may_read(None, "c", "a")
    assert not access.may_write(None, "c", "a")
    (folder / "acl").write_text("topic read a\ntopik b\n")
    with pytest.raises(ConfigError, match=r'^acl:2: "topik" is none of'):
        load_access(load('access.acl = "acl"'))


# Who gets in without a name


@pytest.mark.parametrize("key", ["mqtt", "ws"])
@pytest.mark.parametrize("address", ["*:5", "0.0.0.0:5", "[::]:5", "192.168.1.2:5", "somewhere:5"])
def test_strangers_must_be_invited_by_name(key: str, address: str) -> None:
    error = error_of(f'data = "x"\n{key} = ["localhost:4", "{address}"]')
    assert error.startswith(f"node.toml:2: {key}: on {address} anyone who reaches this machine could connect")
    for remedy in ("access.passwords", "--passwords FILE", "access.anonymous = true", "--anonymous"):
        assert remedy in error
    assert load(f'{key} = "{address}"\naccess.anonymous = true').anonymous
    assert not load(f'{key} = "{address}"\naccess.passwords = "passwords"').anonymous


def test_strangers_must_be_invited_by_flags_too() -> None:
    with pytest.raises(ConfigError, match=r"^--mqtt: on \*:1883 anyone"):
        by_flags("--mqtt", "*:1883")
    assert by_flags("--mqtt", "*:1883", "--anonymous").anonymous
    assert not by_flags("--mqtt", "*:1883", "--passwords", "passwords").anonymous


TLS = 'tls = {certificate = "cert.pem", key = "key.pem", client_ca = "ca.pem"'


@pytest.mark.parametrize("key", ["mqtts", "wss"])
def test_required_certificates_are_names(key: str) -> None:
    error = error_of(f'{key} = "*:5"\n{TLS}}}')
    assert error.startswith(f"node.toml:1: {key}: on *:5 anyone")
    assert "tls.require_client_certificate = true" in error
    assert load(f'{key} = "*:5"\n{TLS}, require_client_certificate = true}}').anonymous


def test_required_certificates_say_nothing_about_listeners_without_tls() -> None:
    error = error_of(f'mqtt = "*:5"\nmqtts = "*:6"\n{TLS}, require_client_certificate = true}}')
    assert error.startswith("node.toml:1: mqtt: on *:5 anyone")


@pytest.mark.parametrize(
    ("text", "anonymous"),
    [
        ("", True),
        ("access.anonymous = true", True),
        ('access.passwords = "passwords"', False),
        ('access = {passwords = "passwords", anonymous = true}', True),
        ('access = {passwords = "passwords", anonymous = false}', False),
        (f"{TLS}, use_identity_as_username = true}}\naccess.anonymous = false", False),
    ],
)
def test_anonymous(text: str, anonymous: bool) -> None:
    assert load(text).anonymous is anonymous


def test_somebody_must_be_able_to_connect() -> None:
    assert error_of("\naccess.anonymous = false") == (
        "node.toml:2: access.anonymous: nobody could connect: clients must have a name, "
        "but there is neither access.passwords nor tls.use_identity_as_username"
    )
    with pytest.raises(ConfigError, match="^--anonymous: nobody could connect"):
        by_flags("--no-anonymous")


# Errors


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("mqtt = ", "node.toml:1: Invalid value"),
        pytest.param(f"mqtt = {'[' * 50_000}", "node.toml: nested too deeply", id="nested"),
        ("\n\nmqtt = 'a\n", "node.toml:3: "),
        ("mqtt = 1\nmqtt = 2\n", "node.toml:2: Cannot overwrite a value"),
        ("mqtt = 1883", 'node.toml:1: mqtt: 1883 is not "HOST:PORT" or "off"'),
        ("\n# x\nmqt = 1", "node.toml:3: mqt: there is no such key; did you mean mqtt?"),
        (
            "[tls]\ncertificat = 'x'",
            "node.toml:2: tls.certificat: there is no such key; did you mean tls.certificate?",
        ),
        ("[acces]\nx = 1", "node.toml:1: acces: there is no such key; did you mean access?"),
        ("passwords = 'x'", "node.toml:1: passwords: there is no such key; did you mean access.passwords?"),
        ("password = 'x'", "node.toml:1: password: there is no such key; did you mean access.passwords?"),
        ("zzz = 1", "node.toml:1: zzz: there is no such key"),
        ("tls = 'x'", "node.toml:1: tls: is a table: [tls], with its keys below"),
        ("[mqtt]\nport = 1", 'node.toml:1: mqtt: {\'port\': 1} is not "HOST:PORT" or "off"'),
        ("[limits]\n\nconnections = 0", "node.toml:3: limits.connections: 0 is not from 1 to 10000000"),
        ('"limits"."connections" = 0', "node.toml:1: limits.connections: 0 is not"),
        ("\nlimits = {connections = 0}", "node.toml:2: limits.connections: 0 is not"),
        ("data = 'acl'", "node.toml:1: data: acl is not a directory"),
        ("[access]\nacl = 'nowhere'", "node.toml:2: access.acl: nowhere: No such file or directory"),
        ("[access]\nanonymous = 'yes'", 'node.toml:2: access.anonymous: "yes" is neither true nor false'),
        ("[log]\nlevel = 'loud'", 'node.toml:2: log.level: "loud" is none of debug, info, warning, error'),
        (
            "[log]\nlevel = 'Warn'",
            'node.toml:2: log.level: "Warn" is none of debug, info, warning, error; did you mean warning?',
        ),
        ("id = ''", 'node.toml:1: id: "" says nothing: give it a value, or leave it out'),
        ("[log]\nformat = 1", "node.toml:2: log.format: 1 is none of text, json"),
        (
            "mqtts = 'localhost:1'",
            "node.toml:1: mqtts: needs tls.certificate and tls.key (--certificate FILE",
        ),
        (
            "[tls]\nkey = 'key.pem'",
            "node.toml:2: tls.key: TLS needs tls.certificate too (--certificate FILE)",
        ),
        (
            "[tls]\ncertificate = 'cert.pem'\nkey = 'key.pem'\nrequire_client_certificate = true",
            "node.toml:4: tls.require_client_certificate: needs tls.client_ca too (--client-ca FILE)",
        ),
        (
            "[access]\nadministrators = 'anna'",
            "node.toml:2: access.administrators: needs access.passwords (--passwords FILE) or tls.use_id",
        ),
        (
            "[access]\npasswords = 'passwords'\nadministrators = ['anna', 7]",
            "node.toml:3: access.administrators: 7 is not a text in quotes",
        ),
        ("mqtt = 'localhost:5'\nws = '[::1]:5'", "node.toml:2: ws: [::1]:5 is also the address of mqtt"),
        ("mqtt = ['[::1]:5', '[::1]:5']", "node.toml:1: mqtt: [::1]:5 is given twice"),
    ],
)
def test_errors_name_file_line_key_and_reason(text: str, error: str) -> None:
    assert error_of(text).startswith(error)


def test_ports_chosen_by_the_system_do_not_collide() -> None:
    config = load("mqtt = ['localhost:0', 'localhost:0']\nws = 'localhost:0'")
    assert len(config.mqtt) == 2


def test_a_file_that_cannot_be_read(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"^nowhere\.toml: cannot be read: No such file or directory$"):
        load_config(Path("nowhere.toml"), {}, NODE)
    (folder / "node.toml").write_bytes(b"# x\nid = '\xff'")
    with pytest.raises(ConfigError, match=r"^node\.toml:2: not UTF-8$"):
        load_config(Path("node.toml"), {}, NODE)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--mqtt", "1883"), '--mqtt: "1883" is not "HOST:PORT" or "off"'),
        (("--limit", "connections"), "--limit connections: not NAME=VALUE"),
        (("--limit", "connections=x"), '--limit connections: "x" is not a whole number'),
        (
            ("--limit", "conections=5"),
            "--limit conections: there is no such key; did you mean limits.connections?",
        ),
        (("--key", "key.pem"), "--key: TLS needs tls.certificate too"),
        (("--acl", "nowhere"), "--acl: nowhere: No such file or directory"),
    ],
)
def test_errors_name_the_flag(words: tuple[str, ...], error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        by_flags(*words)
    assert str(raised.value).startswith(error)


def test_an_unknown_override_is_refused_too() -> None:
    with pytest.raises(ConfigError, match="^mqt: there is no such key; did you mean mqtt"):
        load_config(None, {"mqt": "off"}, NODE)


# The documentation
