"""Sections: text and JSON to a Section and back, and every refusal in words."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

from hedgerow.bridges.options import HEDGEROW, MAX_INTEGER, UNSUPPORTED, WORDS
from hedgerow.bridges.section import (
    MAX_JSON_BYTES,
    MAX_TEXT_BYTES,
    MAX_TOPICS,
    OPTIONS,
    Backoff,
    FarAddress,
    Section,
    TopicLine,
    read_section,
)
from hedgerow.bridges.values import MAX_ADDRESSES
from hedgerow.errors import ConfigError

MINIMAL = "connection b\naddress far\ntopic #\n"
PLAIN = Section(name="b", addresses=(FarAddress("far"),), topics=(TopicLine("#"),))

EVERY_OPTION = """\
connection field-7
addresses far.example 10.0.0.2:1884 fe80::1:1885
topic sensors/# out 1
topic commands/+ in 2 local/ remote/
topic "" both 0 here/state there/state
round_robin true
clientid far-7
local_clientid near-7
cleansession true
local_cleansession false
start_type lazy
idle_timeout 20
threshold 5
restart_timeout 2 20
keepalive_interval 30
notifications true
notifications_local_only true
notification_topic bridges/field-7
try_private false
username rosa
password  two words #3
local_username lena
local_password "quoted"
bridge_protocol_version mqttv50
bridge_cafile ca folder/ca.pem
bridge_capath certs
bridge_certfile own.pem
bridge_keyfile own.key
bridge_insecure true
bridge_tls_version tlsv1.3
bridge_alpn mqtt
bridge_outgoing_retain false
bridge_attempt_unsubscribe 0
bridge_max_packet_size 65536
bridge_bind_address 127.0.0.1
bridge_max_topic_alias 0
queue_bytes 1048576
queue_age 3600
queue_overflow drop-newest
probe_interval 0.25
probe_misses 4
replace 1
"""
EVERY_FIELD = Section(
    name="field-7",
    addresses=(FarAddress("far.example", 1883), FarAddress("10.0.0.2", 1884), FarAddress("fe80::1", 1885)),
    topics=(
        TopicLine("sensors/#", "out", 1),
        TopicLine("commands/+", "in", 2, "local/", "remote/"),
        TopicLine("", "both", 0, "here/state", "there/state"),
    ),
    round_robin=True,
    remote_clientid="far-7",
    local_clientid="near-7",
    cleansession=True,
    local_cleansession=False,
    start_type="lazy",
    idle_timeout_s=20,
    threshold=5,
    restart_timeout=Backoff(2, 20),
    keepalive_interval_s=30,
    notifications_local_only=True,
    notification_topic="bridges/field-7",
    try_private=False,
    remote_username="rosa",
    remote_password="two words #3",
    local_username="lena",
    local_password='"quoted"',
    bridge_protocol_version="mqttv50",
    bridge_cafile="ca folder/ca.pem",
    bridge_capath="certs",
    bridge_certfile="own.pem",
    bridge_keyfile="own.key",
    bridge_insecure=True,
    bridge_tls_version="tlsv1.3",
    bridge_alpn="mqtt",
    bridge_outgoing_retain=False,
    bridge_attempt_unsubscribe=False,
    bridge_max_packet_size=65_536,
    bridge_bind_address="127.0.0.1",
    bridge_max_topic_alias=0,
    queue_bytes=1_048_576,
    queue_age_s=3_600,
    queue_overflow="drop-newest",
    probe_interval_s=0.25,
    probe_misses=4,
    replace=True,
)


def refusal(payload: bytes | str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_section(payload)
    return str(caught.value)


# What is read


def test_every_option_is_read() -> None:
    assert read_section(EVERY_OPTION) == EVERY_FIELD
    words = {WORDS[line.split()[0]].word for line in EVERY_OPTION.splitlines()}
    assert words == OPTIONS.keys(), "this test leaves an option out"


def test_the_table_and_the_section_name_the_same_fields() -> None:
    not_written = ["follows"]
    assert [option.field for option in OPTIONS.values()] + not_written == [
        each.name for each in fields(Section)
    ]
    assert all(option.help for option in OPTIONS.values())
    assert not UNSUPPORTED.keys() & WORDS.keys()


def test_a_section_has_mosquittos_defaults() -> None:
    section = read_section(MINIMAL)
    assert section == PLAIN
    assert section.addresses == (FarAddress("far", 1883),)
    assert section.topics == (TopicLine("#", "out", 0, "", ""),)
    assert section.restart_timeout == Backoff(5, 30)
    assert (section.keepalive_interval_s, section.idle_timeout_s, section.threshold) == (60, 60, 10)
    assert (section.start_type, section.bridge_protocol_version) == ("automatic", None)
    assert section.notifications
    assert section.try_private
    assert not section.cleansession
    assert section.probe_misses * section.probe_interval_s == 1.5


@pytest.mark.parametrize(
    "text",
    [
        "# a comment\n\n   \nconnection b\n#address near\naddress far\n  # indented\n topic #",
        "connection b\r\naddress far\r\ntopic #\r\n",
        "connection   b  \naddress  far:1883 \ntopic   #   out  ",
        MINIMAL.encode(),
        '{"connection": "b", "address": "far", "topic": "#"}',
        ' \n{"topic": ["# out 0"], "connection": "b", "addresses": ["far:1883"]}',
        '{"topic": {"pattern": "#", "qos": 0}, "connection": "b", "address": ["far"]}',
    ],
)
def test_ways_to_write_one_section(text: str | bytes) -> None:
    assert read_section(text) == PLAIN


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("far", FarAddress("far", 1883)),
        ("far:1", FarAddress("far", 1)),
        ("a_b.example-1.org:65535", FarAddress("a_b.example-1.org", 65_535)),
        ("192.168.1.10", FarAddress("192.168.1.10", 1883)),
        ("::1:1883", FarAddress("::1", 1883)),
        ("[::1]", FarAddress("::1", 1883)),
        ("[fe80::1%eth0]:1884", FarAddress("fe80::1%eth0", 1884)),
    ],
)
def test_addresses(text: str, address: FarAddress) -> None:
    assert read_section(f"connection b\naddress {text}\ntopic #").addresses == (address,)
    assert read_section(f"connection b\naddress {address}\ntopic #").addresses == (address,)


@pytest.mark.parametrize(
    ("text", "backoff"),
    [
        ("20", Backoff(20, 20)),
        ("10 30", Backoff(10, 30)),
        ("0.2 1.5", Backoff(0.2, 1.5)),
        ("7 7", Backoff(7, 7)),
    ],
)
def test_restart_timeout(text: str, backoff: Backoff) -> None:
    assert read_section(f"{MINIMAL}restart_timeout {text}").restart_timeout == backoff


def test_names_that_follow_from_others() -> None:
    assert PLAIN.remote_clientid_on("host") == "host.b"
    assert PLAIN.local_clientid_on("host") == "local.host.b"
    assert PLAIN.notification_topic_on("host") == "$SYS/broker/connection/host.b/state"
    assert EVERY_FIELD.remote_clientid_on("host") == "far-7"
    assert EVERY_FIELD.local_clientid_on("host") == "near-7"
    assert EVERY_FIELD.notification_topic_on("host") == "bridges/field-7"
    assert replace(PLAIN, remote_clientid="r").local_clientid_on("host") == "local.r"


def test_what_follows_from_other_options() -> None:
    assert not PLAIN.is_tls
    assert replace(PLAIN, bridge_capath="certs").is_tls
    assert replace(PLAIN, bridge_cafile="ca.pem").is_tls
    assert not PLAIN.is_local_session_clean
    assert replace(PLAIN, cleansession=True).is_local_session_clean
    assert not EVERY_FIELD.is_local_session_clean


# What is refused


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", 'no "connection"'),
        ("# nothing", 'no "connection"'),
        ("address far\nconnection b\ntopic #", 'line 1: address: stands before "connection"'),
        ("connection b\ntopic #", 'line 1: connection: "b" has no address'),
        ("\nconnection b\naddress far", 'line 2: connection: "b" has no topic'),
        ("connection", "line 1: connection: has no value"),
        ("connection a/b", 'line 1: connection: "a/b" contains one of / + #'),
        ("connection a b", 'line 1: connection: "b" is too much'),
        ("connection " + "n" * 256, "is longer than 255 bytes"),
        (
            MINIMAL + "connection c",
            "line 4: connection: stands there a second time; one section is one bridge",
        ),
        (MINIMAL + "addresses near", "line 4: addresses: stands there a second time"),
        (MINIMAL + "clientid a\nremote_clientid b", "line 5: remote_clientid: stands there a second time"),
        (MINIMAL + "notifications true\nnotifications true", "line 5: notifications: stands there a second"),
        (MINIMAL + "topic a sideways", 'line 4: topic: "sideways" is none of out, in, both'),
        (MINIMAL + "topic # out 0 a", "line 4: topic: local side: '#' is not alone"),
        (MINIMAL + "topic", "line 4: topic: has no pattern"),
        (MINIMAL + "topik #", 'line 4: "topik" is no option of a bridge; the nearest is topic'),
        (MINIMAL + "xyzzy", 'line 4: "xyzzy" is no option of a bridge'),
        (MINIMAL + "Topic #", 'line 4: "Topic" is no option of a bridge; the nearest is topic'),
        (MINIMAL + "topic\t#", "line 4: U+0009 is not allowed; words are separated by blanks"),
        (MINIMAL + "remote_username a\tb", "line 4: remote_username: U+0009 is not allowed"),
        (MINIMAL + "remote_username a\0b", "line 4: remote_username: U+0000 is not allowed"),
        (MINIMAL + "remote_username a\ufffeb", "line 4: remote_username: U+FFFE is not allowed"),
        (MINIMAL + "remote_username a\ud800b", "line 4: remote_username: U+D800 is not allowed"),
        (
            MINIMAL + "start_type manual",
            'line 4: start_type: "manual" is not supported, nor is it by Mosquitto',
        ),
        (MINIMAL + "start_type never", 'line 4: start_type: "never" is none of automatic, lazy, once'),
        (
            MINIMAL + "bridge_psk 00ff",
            "line 4: bridge_psk: Mosquitto's option is not supported here: pre-shared",
        ),
        (MINIMAL + "start_type a\ud800", "line 4: start_type: U+D800 is not allowed"),
        (MINIMAL + "notifications", "line 4: notifications: has no value"),
        (MINIMAL + "notifications yes", 'line 4: notifications: "yes" is none of true, false'),
        (MINIMAL + "notifications true too", 'line 4: notifications: "too" is too much'),
        (MINIMAL + "keepalive_interval 4", 'line 4: keepalive_interval: "4" is not a whole number from 5 to'),
        (MINIMAL + "keepalive_interval 65536", "from 5 to 65535"),
        (MINIMAL + "keepalive_interval 6.5", "is not a whole number"),
        (MINIMAL + "keepalive_interval ²", "is not a whole number"),
        (MINIMAL + "threshold 0", 'line 4: threshold: "0" is not a whole number from 1'),
        (MINIMAL + "idle_timeout 99999999999", f"to {MAX_INTEGER}"),
        (MINIMAL + "restart_timeout", "line 4: restart_timeout: is one number of seconds, or two"),
        (MINIMAL + "restart_timeout 1 2 3", "line 4: restart_timeout: is one number of seconds, or two"),
        (MINIMAL + "restart_timeout 30 10", "line 4: restart_timeout: the cap 10 is lower than the base 30"),
        (MINIMAL + "restart_timeout 3601 7200", '"3601" is not a number of seconds from 0.01 to 3600'),
        (MINIMAL + "restart_timeout 0", '"0" is not a number of seconds'),
        (MINIMAL + "probe_interval nan", '"nan" is not a number of seconds'),
        (MINIMAL + "probe_misses 0", "line 4: probe_misses"),
        (MINIMAL + "queue_bytes 1023", "line 4: queue_bytes"),
        (MINIMAL + "queue_overflow drop-all", '"drop-all" is none of drop-oldest, drop-newest'),
        (MINIMAL + "bridge_protocol_version mqttv4", '"mqttv4" is none of mqttv31, mqttv311, mqttv50'),
        (MINIMAL + "bridge_cafile c\nbridge_tls_version tlsv1.1", '"tlsv1.1" is none of tlsv1.2, tlsv1.3'),
        (MINIMAL + "bridge_bind_address eth0", '"eth0" is not an IPv4 or IPv6 address'),
        (MINIMAL + "bridge_max_packet_size 268435461", "line 4: bridge_max_packet_size"),
        (
            MINIMAL + "notification_topic a/#",
            'line 4: notification_topic: topic name "a/#" contains a wildcard',
        ),
        (
            MINIMAL + "clientid a#",
            "line 4: remote_clientid: contains + or #, and so needs a notification_topic",
        ),
        (MINIMAL + "\npassword x", "line 5: remote_password: needs remote_username"),
        (MINIMAL + "local_password x", "line 4: local_password: needs local_username"),
        (MINIMAL + "bridge_cafile c\nbridge_certfile x", "line 5: bridge_certfile: needs bridge_keyfile"),
        (MINIMAL + "bridge_cafile c\nbridge_keyfile x", "line 5: bridge_keyfile: needs bridge_certfile"),
        (
            MINIMAL + "bridge_keyfile k\nbridge_certfile c",
            "line 5: bridge_certfile: needs bridge_cafile or bridge_capath",
        ),
        (MINIMAL + "bridge_insecure 1", "line 4: bridge_insecure: needs bridge_cafile or bridge_capath"),
        (MINIMAL + "bridge_alpn mqtt", "line 4: bridge_alpn: needs bridge_cafile or bridge_capath"),
        (MINIMAL + "bridge_tls_version tlsv1.2", "needs bridge_cafile or bridge_capath"),
        (MINIMAL.encode() + b"\n\xff", "line 5: not UTF-8"),
    ],
)
def test_a_wrong_text_is_refused_with_line_and_word(text: str | bytes, reason: str) -> None:
    assert reason in refusal(text)


@pytest.mark.parametrize("word", UNSUPPORTED)
def test_what_mosquitto_knows_and_we_do_not_is_refused_by_name(word: str) -> None:
    assert refusal(f"{MINIMAL}{word} 1").startswith(
        f"line 4: {word}: Mosquitto's option is not supported here: "
    )


@pytest.mark.parametrize(
    "address",
    [
        "::1",
        "fe80::1",
        "far:",
        "far:0",
        "far:65536",
        "far:x",
        ":1883",
        "-far",
        "300.1.2.3",
        "a..b",
        "[far]:1",
        "[::1",
        "fär",
        ".".join(["a" * 60] * 5),
    ],
)
def test_a_wrong_address_is_refused(address: str) -> None:
    assert refusal(f"connection b\naddress near {address}\ntopic #").startswith(
        f'line 2: address: "{address[:60]}'
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "line 1: column 2: not JSON"),
        ('{"connection": "b",\n oops}', "line 2: column 2: not JSON"),
        ("{}", 'no "connection"'),
        ('{"a":' * 50_000, "not a JSON object of options"),
        ('{"threshold": ' + "9" * 5_000 + "}", "not a JSON object of options"),
        ('{"connection": "b", "address": "far"}', 'connection: "b" has no topic'),
        ('{"connection": "b", "topic": "#"}', 'connection: "b" has no address'),
        ('{"connection": "b", "connection": "c"}', "connection: stands there a second time"),
        ('{"address": "far", "addresses": "far"}', "addresses: stands there a second time"),
        ('{"conection": "b"}', '"conection" is no option of a bridge; the nearest is connection'),
        ('{"a\\nb": 1}', "U+000A is not allowed"),
        ('{"bridge_psk": "00"}', "bridge_psk: Mosquitto's option is not supported here"),
        ('{"connection": 7}', "connection: its value is not a string"),
        ('{"remote_password": 1234}', "remote_password: its value is not a string"),
        ('{"remote_password": " x"}', "remote_password: begins or ends with a blank"),
        ('{"remote_username": "a\\nreplace true"}', "remote_username: U+000A is not allowed"),
        ('{"remote_username": ""}', "remote_username: has no value"),
        ('{"threshold": null}', "threshold: its value is not a string, a number or a boolean"),
        ('{"threshold": true}', 'threshold: "true" is not a whole number'),
        ('{"probe_interval": Infinity}', 'probe_interval: "Infinity" is not a number of seconds'),
        ('{"address": []}', "address: has no value"),
        ('{"address": [1]}', "address: its value is not"),
        ('{"topic": ["#", "a sideways"]}', 'topic 2: "sideways" is none of out, in, both'),
        ('{"topic": [["#"]]}', "topic 1: its value is not"),
        ('{"topic": {"pattern": "#", "direction": "up"}}', 'topic: "up" is none of out, in, both'),
        ('{"topic": {"pattern": "#", "pattern": "a"}}', "topic: pattern is given twice"),
        ('{"topic": {"pattern": "#", "filter": "a"}}', 'topic: "filter" is none of pattern, direction, qos'),
        ('{"topic": {"pattern": "#", "qos": "1"}}', "topic: qos is not a number"),
        ('{"topic": {"pattern": "#", "qos": true}}', "topic: qos is not a number"),
        ('{"topic": {"a\\nb": 1}}', "topic: U+000A is not allowed"),
        ('{"topic": {"pattern": 1}}', "topic: pattern is not a string"),
        ('{"topic": {"qos": 1}}', "topic: has no pattern"),
        ('{"topic": {"pattern": "a b"}}', 'topic: "a b" contains a blank'),
    ],
)
def test_wrong_json_is_refused_with_the_word(text: str, reason: str) -> None:
    assert reason in refusal(text)


def test_sizes_are_bounded() -> None:
    assert read_section(MINIMAL + "#" * (MAX_TEXT_BYTES - len(MINIMAL))) == PLAIN
    assert (
        refusal(MINIMAL + "#" * (MAX_TEXT_BYTES - len(MINIMAL) + 1))
        == "the section is longer than 65536 bytes"
    )
    assert "longer" in refusal(MINIMAL + "#" + "ü" * (MAX_TEXT_BYTES // 2))
    assert "longer" in refusal("{" + " " * MAX_JSON_BYTES)
    assert "longer" in refusal(b"\xff" * (MAX_JSON_BYTES + 1)), "what is too long is not looked at"
    lines = "".join(f"topic t{number}\n" for number in range(MAX_TOPICS - 1))
    assert len(read_section(MINIMAL + lines).topics) == MAX_TOPICS
    assert (
        refusal(MINIMAL + lines + "topic one-more") == f"line {3 + MAX_TOPICS}: topic: more than 256 topics"
    )
    topics = json.dumps(["#"] * (MAX_TOPICS + 1))
    assert (
        refusal(f'{{"connection": "b", "address": "far", "topic": {topics}}}')
        == "topic: more than 256 topics"
    )
    addresses = " far" * MAX_ADDRESSES
    assert len(read_section(f"connection b\naddress{addresses}\ntopic #").addresses) == MAX_ADDRESSES
    assert "33 addresses are more than 32" in refusal(f"connection b\naddress{addresses} far\ntopic #")


@pytest.mark.parametrize(
    "line", ["{}", "topic {}", "topic # {}", "topic {}+", "address {}", "threshold {}", "connection {}"]
)
def test_a_reason_is_short_whatever_it_is_about(line: str) -> None:
    first = "" if line.startswith("connection") else "connection b\n"
    assert len(refusal(first + line.format("x" * 60_000))) < 300


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "a\nreplace true"},
        {"name": ""},
        {"addresses": ()},
        {"addresses": [FarAddress("far")]},
        {"addresses": (FarAddress("far", 0),)},
        {"addresses": (FarAddress("[::1]"),)},
        {"topics": ()},
        {"topics": [TopicLine("#")]},
        {"topics": (TopicLine("#"),) * (MAX_TOPICS + 1)},
        {"remote_username": " padded"},
        {"remote_username": "x" * MAX_TEXT_BYTES},
        {"restart_timeout": Backoff(30, 5)},
        {"probe_interval_s": float("nan")},
        {"start_type": "manual"},
        {"round_robin": "yes"},
        {"remote_password": "x"},
    ],
)
def test_a_program_cannot_make_what_a_text_cannot_say(changes: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, ValueError)):
        replace(PLAIN, **changes)


def test_a_section_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        PLAIN.replace = True  # type: ignore[misc]
    assert hash(PLAIN) == hash(read_section(MINIMAL))


def test_passwords_are_in_no_representation_and_no_reason() -> None:
    section = read_section(
        f"{MINIMAL}username u\npassword Geheim1\nlocal_username u\nlocal_password Geheim2\n"
    )
    assert (section.remote_password, section.local_password) == ("Geheim1", "Geheim2")
    assert "Geheim" not in f"{section!r} {section} {[section]}"
    for wrong in (
        "password Geheim\x01",
        "password Geheim1",
        "pasword Geheim1",
        "bridge_psk Geheim",
        "topic +a",
    ):
        assert "Geheim" not in refusal(f"{MINIMAL}password Geheim1\n{wrong}")
    assert "Geheim" not in refusal('{"password": ["Geheim"]}')
    assert "Geheim" not in refusal('{"password": "Geheim" "x"}')
    assert "Geheim" not in refusal(f"{MINIMAL}password Geheim1")


# There and back


def test_what_is_written() -> None:
    assert PLAIN.to_text() == MINIMAL
    assert json.loads(PLAIN.to_json()) == {"connection": "b", "address": ["far"], "topic": [{"pattern": "#"}]}
    assert read_section(EVERY_FIELD.to_text()) == EVERY_FIELD
    assert read_section(EVERY_FIELD.to_json()) == EVERY_FIELD
    as_json = json.loads(EVERY_FIELD.to_json())
    assert (as_json["threshold"], as_json["round_robin"], as_json["restart_timeout"]) == (5, True, "2 20")
    assert as_json["topic"][0] == {"pattern": "sensors/#", "qos": 1}


def test_a_text_for_mosquitto_has_only_its_words() -> None:
    section = replace(EVERY_FIELD, restart_timeout=Backoff(0.2, 1.5))
    words_2_0 = {line.split()[0] for line in section.to_text(mosquitto=(2, 0)).splitlines()}
    words_2_1 = {line.split()[0] for line in section.to_text(mosquitto=(2, 1)).splitlines()}
    ours = {option.word for option in OPTIONS.values() if option.since is HEDGEROW}
    assert words_2_1 == OPTIONS.keys() - ours - {"notifications"}
    assert words_2_1 - words_2_0 == {"bridge_max_topic_alias"}
    assert "\nrestart_timeout 1 2\n" in section.to_text(mosquitto=(2, 0))


def test_the_largest_section_has_a_json_that_is_read() -> None:
    username = '"' * (MAX_TEXT_BYTES - 10_000)
    topics = tuple(TopicLine("a", "both", 2, "l/", "r/") for _ in range(MAX_TOPICS))
    section = replace(PLAIN, remote_username=username, topics=topics)
    assert read_section(section.to_json()) == section
