"""Values that options cannot have: the complaint names the option, what was given and what is allowed.

An example follows, as of any mistake on the command line.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from hedgerow import cli
from hedgerow.cli import option_values
from hedgerow.errors import ConfigError
from tests.parsers import actions_of

# What help calls values of which not any text will do, and texts that are none.
BAD: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("N", "S", "R", "SECONDS", "PORT", "NUMBER", "VERSION"), ("nonsense", "-1", "nan", "")),
    **dict.fromkeys(("TIME", "DURATION"), ("nonsense", "-1", "nan", "5 parsecs", "9e9")),
    **dict.fromkeys(("SIZE", "RATE"), ("nonsense", "-1", "5 parsecs")),
    "SHARE": ("nonsense", "-1", "200", "nan"),
    "WHEN": ("nonsense", "-1h", "1", "1 parsec", ""),
    "LEVEL": ("nonsense",),
    "FORMAT": ("%Q",),
    "SCOPE": ("nonsense",),
    "HOW": ("nonsense",),
    "ROLE": ("nonsense",),
    "WIRE": ("nonsense",),
    "ACTION": ("nonsense",),
    "SHAPE": ("nonsense", "tree x"),
    "URL": ("nonsense", "nonsense://h", "mqtt://h:x"),
    "ORIGIN": ("nonsense", "app.example", "https://app.example/page", ""),
    "HOST:PORT": ("nonsense", "h:1:2", "h:65536"),
    "HOST[:PORT]": ("h:1:2", "h:65536"),
    "FILTER": ("a/#/b", ""),
    "TOPIC": ("a/#/b", ""),
    "NAME=VALUE": ("nonsense", "queue_bytes=1 parsec", "connections=0"),
    "KEY=VALUE": ("nonsense",),
    "NUMBER=TOPIC": ("nonsense", "9999=a"),
    "NAME=V,V…": ("nonsense",),
    "'WORD VALUE'": ("nonsense",),
    "ROW": ("nonsense",),
    "PEER": ("nonsense",),
    "PART": ("nonsense",),
    "QOS": ("nonsense", "-1", "3"),
}
ANY_TEXT = (
    "FILE", "DIR", "PATH", "PLACE", "ADDRESS", "PROTOCOL", "LIST", "NAME", "USER", "PASSWORD", "TEXT",
    "PREFIX", "LINE", "ID", "WHERE", "KIND", None,
)  # fmt: skip
"""Files are looked for where they are used, names and texts may be anything or nearly so."""

GOOD = {"-1": ("--session-expiry-interval", "--seed")}
"""What is bad elsewhere, and the options of which it is not."""
MASTER = "--master"  # Spark's own words.

# What has to stand beside an option for it to be looked at.
BESIDE = {
    "agent": ("a=127.0.0.1:1",),
    "bench": ("sensors",),
    "federate": ("--broker", "mqtt://127.0.0.1:1"),
    "journal": ("cat", "directory"),
    "lab": ("run", "backlog"),
    "rr": ("-t", "a", "-e", "b", "-n"),
    "sub": ("mqtt://127.0.0.1:1", "a"),
}


def options() -> Iterator[tuple[str, str, str]]:
    """Each command and option, and a text that it cannot take."""
    for command in cli.all_commands():
        for action in actions_of(cli.make_parser(command)):
            if not action.option_strings or action.nargs == 0 or action.option_strings[-1] == MASTER:
                continue
            for text in bad_texts(action):
                yield command, action.option_strings[-1], text


def bad_texts(action: argparse.Action) -> list[str]:
    if action.choices is not None:
        return ["nonsense"]
    called = action.metavar if isinstance(action.metavar, str) else None
    assert called in BAD or called in ANY_TEXT, f"{action.option_strings} {called}: is it any text?"
    good = [text for text, names in GOOD.items() if action.option_strings[-1] in names]
    return [text for text in BAD.get(called or "", ()) if text not in good]


@pytest.mark.parametrize(("command", "option", "text"), list(options()))
def test_a_complaint_names_the_option_and_what_was_given(
    command: str, option: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [command, *BESIDE.get(command, ())]
    if option in words:
        words = [command]
    given = [f"{option}={text}"] if option.startswith("--") else [option, text]
    assert cli.main([*words, *given]) == 2
    said = capsys.readouterr()
    line, example = said.err.splitlines()
    assert said.out == ""
    assert line.startswith(f"hedgerow {command}: -")
    complaint = line.removeprefix(f"hedgerow {command}: ")
    named = complaint.split(" ")[0].rstrip(":").split("/")
    assert option in named
    assert text.partition("=")[2] in complaint or text in complaint
    assert len(complaint) > len(f"{option}: {text}") + 10, "it says what would be right"
    assert example == f"for example: {cli.all_commands()[command].example}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pipeline", "--every", "2d"], '--every: "2d" is not from 0 to 86400 s'),
        (["pipeline", "--plan-validity", "0s"], '--plan-validity: "0s" is not from 1 to 86400 s'),
        (["pipeline", "--plan-validity", "never"], '--plan-validity: "never" is not from 1 to 86400 s'),
        (["pipeline", "--rows-per-batch", "0"], '"0" is not a whole number from 1 to 1000000000'),
        (["pipeline", "--share", "1.1"], '--share: "1.1" is not a number from 0 to 1'),
        (["pipeline", "--memory", "1x"], '--memory: "1x" is not a size such as 512m or 1g'),
        (["pipeline", "--seconds", "0"], '--seconds: "0" is not a number above 0, 3600 at most'),
        (["demo", "--seconds", "inf"], '--seconds: "inf" is not a number above 0, 86400 at most'),
        (["pub", "-p", "65536"], '-p/--port: "65536" is not a whole number from 1 to 65535'),
        (["pub", "-k", "65536"], '-k/--keepalive: "65536" is not a whole number from 0 to 65535'),
        (["pub", "-M", "0"], '-M/--max-inflight: "0" is not a whole number from 1 on'),
        (["sub", "-W", "0"], '-W: "0" is not a number above 0'),
        (["sub", "-V", "6"], '-V/--protocol-version: "6" is none of mqttv5, mqttv311, mqttv31'),
        (["passwd", "-I", "0"], '-I/--iterations: "0" is not a whole number from 1 to 10000000'),
        (["record", "--max-age", "1ms"], '--max-age: "1ms" is not from 1 to '),
        (["record", "--max-bytes", "1kB"], '--max-bytes: "1kB" is not from 1048576 to '),
        (["agent", "--probe-interval", "1ms"], '--probe-interval: "1ms" is not from 0.01 to 3600 s'),
        (["lab", "--loss", "101%"], '--loss: "101%" is not a share from 0% to 100%'),
        (["lab", "--subscribers", "7"], '--subscribers: "7" is not a whole number from 8 on'),
        (["up", "--redundancy", "17"], '--redundancy: "17" is not from 1 to 16'),
        (["up", "--limit", "keep_alive_s=2d"], '--limit keep_alive_s: "2d" is not from 1 to 65535 s'),
    ],
)
def test_a_range_is_told(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    assert said in capsys.readouterr().err


def test_values_at_the_ends_of_a_range_are_taken() -> None:
    assert [option_values.whole(1, 3)(text) for text in ("1", "3")] == [1, 3]
    assert [option_values.real(0, 1)(text) for text in ("0", "1", "5e-1")] == [0, 1, 0.5]
    assert option_values.positive(2)("1e-9") == 1e-9
    assert [option_values.duration(0, 60)(text) for text in ("0", "1 min", "500ms")] == [0, 60, 0.5]
    with pytest.raises(ConfigError):
        option_values.positive()("inf")
