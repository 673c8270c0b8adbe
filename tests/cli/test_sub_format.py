"""The formats of `hedgerow sub -F`."""

from __future__ import annotations

import json
import time

import pytest

from hedgerow.cli.sub_format import compile_format, print_payload, print_verbosely
from hedgerow.errors import ConfigError
from hedgerow.mqtt.client.events import MessageReceived

NOW = 1_600_000_000_123_456_789

MESSAGE = MessageReceived(
    "farm/barn",
    b'{"t":1}',
    1,
    True,
    {
        "content_type": "application/json",
        "correlation_data": b"c\xff",
        "message_expiry_interval": 60,
        "payload_format_indicator": 1,
        "response_topic": "answers",
        "user_property": (("k", "1"), ("k", "2")),
    },
    packet_id=7,
    subscription_identifiers=(3,),
)


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%t %p", b'farm/barn {"t":1}'),
        ("%q %r %l %m", b"1 1 7 7"),
        ("%x|%X", b"7b2274223a317d|7B2274223A317D"),
        ("%C|%D|%E|%F|%R|%S|%A|%P", b"application/json|c\xff|60|1|answers|3||k:1 k:2"),
        ("[%12t][%-12t][%12.4t][%.4t]", b"[   farm/barn][farm/barn   ][        farm][farm]"),
        ("[%5l][%05l][%-5l][%-05l][%020x]", b"[    7][00007][7    ][7    ][0000007b2274223a317d]"),
        ("[%9p][%-9p][%05p]", b'[  {"t":1}][{"t":1}  ][{"t":1}]'),
        ("%%|@@|\\\\|\\t|\\n|\\0|\\e|\\a|\\r|\\v", b"%|@|\\|\t|\n|\0|\x1b|\a|\r|\v"),
        ("%I|%10.10I", b"2020-09-13T12:26:40+0000|2020-09-13"),
        ("%U|@N|@Y-@m-@d", b"1600000000.123456789|123456789|2020-09-13"),
        ("no sequence: ä", "no sequence: ä".encode()),
        ("", b""),
    ],
)
def test_sequences(text: str, expected: bytes) -> None:
    assert compile_format(text)(MESSAGE, NOW) == expected + b"\n"
    assert compile_format(text, end=b"")(MESSAGE, NOW) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("%Z", "no sequence %Z"),
        ("100%", '"%" at the end'),
        ("a@", '"@" at the end'),
        ("\\", '"\\" at the end'),
        ("\\z", "no escape \\z"),
        ("%5q", "%q takes no width"),
    ],
)
def test_what_there_is_not(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compile_format(text)
    assert reason in str(caught.value)


def test_json() -> None:
    found = json.loads(compile_format("%j")(MESSAGE, NOW))
    assert found == {
        "tst": "2020-09-13T12:26:40.123456+0000",
        "topic": "farm/barn",
        "qos": 1,
        "retain": 1,
        "payloadlen": 7,
        "mid": 7,
        "properties": {
            "content-type": "application/json",
            "correlation-data": "c�",
            "message-expiry-interval": 60,
            "payload-format-indicator": 1,
            "response-topic": "answers",
            "user-properties": [["k", "1"], ["k", "2"]],
            "subscription-identifiers": [3],
        },
        "payload": '{"t":1}',
    }
    assert compile_format("%j")(MESSAGE, NOW).count(b"\n") == 1
    assert compile_format("%j", pretty=True)(MESSAGE, NOW).count(b"\n") > 10


def test_json_of_bytes_that_are_no_text() -> None:
    found = json.loads(compile_format("%j")(MessageReceived("a", b"\xff\0"), NOW))
    assert found["payload_base64"] == "/wA="
    assert "payload" not in found
    assert "mid" not in found


def test_json_inside_json(capsys: pytest.CaptureFixture[str]) -> None:
    inside = compile_format("%J")
    assert json.loads(inside(MESSAGE, NOW))["payload"] == {"t": 1}
    assert json.loads(inside(MessageReceived("a", b""), NOW))["payload"] is None
    assert inside(MessageReceived("a", b"no"), NOW) == b"\n"
    assert capsys.readouterr().err == "hedgerow sub: the payload on a is not JSON\n"


def test_without_a_format() -> None:
    empty = MessageReceived("a/b", b"")
    assert print_payload(b"\n")(MESSAGE, NOW) == b'{"t":1}\n'
    assert print_payload(b"\n")(empty, NOW) == b""
    assert print_verbosely(b"\n")(MESSAGE, NOW) == b'farm/barn {"t":1}\n'
    assert print_verbosely(b"")(empty, NOW) == b"a/b (null)"
