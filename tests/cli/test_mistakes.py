"""Mistakes on the command line: what was wrong, what is nearest to it, and how it is done right."""

from __future__ import annotations

import shlex

import pytest

from hedgerow import cli
from hedgerow.cli import mistakes
from hedgerow.errors import ConfigError


def complaint(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The first line; the second is the example, and there is no other."""
    assert cli.main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    line, example = said.err.splitlines()
    assert line.startswith(f"hedgerow {words[0]}: ")
    assert example == f"for example: {cli.all_commands()[words[0]].example}"
    return line.removeprefix(f"hedgerow {words[0]}: ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        # An option that there is not
        ("up --neighbor mqtt://h", "there is no option --neighbor; did you mean --neighbour?"),
        ("up --anonymus", "there is no option --anonymus; did you mean --anonymous?"),
        ("up --Neighbour=mqtt://h", "there is no option --Neighbour; did you mean --neighbour?"),
        ("up -neighbour mqtt://h", "there is no option -neighbour; did you mean --neighbour?"),
        ("up --port 1885", "there is no option --port; did you mean --mqtt?"),
        ("up -p 1885", "there is no option -p; did you mean --mqtt?"),
        ("federate --host h", "there is no option --host; did you mean --broker?"),
        ("dash mqtt://h --port 80", "there is no option --port; did you mean --http?"),
        ("pub h farm/x 1", 'what is "1"? There are a topic, "h", and a message already'),
        ("up -Z", "there is no option -Z; hedgerow up --help lists those that there are"),
        ("federate --brokr mqtt://h", "there is no option --brokr; did you mean --broker?"),
        ("agent a=h:1 --topologie ring", "there is no option --topologie; did you mean --topology?"),
        ("bridge list --jsn", "there is no option --jsn; did you mean --json?"),
        ("passwd file anna --crate", "there is no option --crate; did you mean --create?"),
        ("pub a b --retian", "there is no option --retian; did you mean --retain?"),
        ("sub a --verbos=1x", "--verbose takes no value"),
        ("record --brokr mqtt://h", "there is no option --brokr; did you mean --broker?"),
        ("top --onse", "there is no option --onse; did you mean --once?"),
        ("doctor --jso --conf", "--config needs FILE"),
        ("bench broker --quik", "there is no option --quik; did you mean --quick?"),
        ("lab run schmitt --fats", "there is no option --fats; did you mean --fast?"),
        ("pipeline run --table x", "which journal? Give --journal DIR"),
        ("pipeline run --journals x", "there is no option --journals; did you mean --journal?"),
        # One that could be several
        ("up --multicast-i eth0", "--multicast-i could be --multicast-interface or --multicast-ip: "),
        # A value that is none of those that there are
        ("up --loop uvlop", '--loop: "uvlop" is none of uvloop, asyncio; did you mean uvloop?'),
        ("agent a=h:1 --topology strr", "ring, redundant; did you mean star?"),
        ("agent a=h:1 --ghosts delet", "is none of keep, delete, published; did you mean delete?"),
        ("bench brokr", 'NAME: "brokr" is none of '),
        ("bench brokr", "did you mean broker?"),
        ("lab rnu storm", '"rnu" is none of link, run; did you mean run?'),
        ("lab run strom", "did you mean storm?"),
        ("pipeline rn", "did you mean run?"),
        ("bridge lst", '"lst" is none of new, del, list; did you mean list?'),
        ("completion bsh", '"bsh" is none of bash, zsh, fish; did you mean bash?'),
        ("pub a b -q 3", '-q/--qos: "3" is none of 0, 1, 2'),
        # Something is missing
        ("up --loop", "--loop needs one of uvloop, asyncio"),
        ("up --id", "--id needs NAME"),
        ("record", "missing: --broker, --filter, --journal"),
        ("record -Z", "there is no option -Z; hedgerow record --help lists those that there are"),
        ("record -brokr", "there is no option -brokr; did you mean --broker?"),
        ("record -u anna", "missing: --broker, --filter, --journal"),
        ("passwd -1", "missing: USER"),
        ("bench", "missing: NAME"),
        ("passwd file", "missing: USER"),
        ("pub", "no topic: give it as a word"),
        ("pub a", "no message: give it as a word"),
        ("sub", "no topic: give it as a word"),
        ("agent", "no brokers: name them"),
        ("bridge", "what to do? There are new, del, list"),
        ("bridge del", "del NAME: which bridge?"),
        ("lab run", "run takes the NAME of an experiment"),
        ("completion", "missing: SHELL"),
        # A value of another kind, a value too many, options that exclude each other
        ("pub a b -p http", '-p/--port: "http" is not a whole number'),
        ("pub a b --repeat-delay soon", '--repeat-delay: "soon" is not a number'),
        ("up --anonymous=yes", '--anonymous/--no-anonymous takes no value, and was given "yes"'),
        ("pub a -m x -n", "-n/--null-message and -m/--message do not go together"),
        ("demo --seconds nan", '--seconds: "nan" is not a number above 0, 86400 at most'),
        # Words that mean nothing
        ("up barn", 'what is "barn"? There are options alone'),
        ("federate barn", 'what is "barn"? There are options alone'),
        ("doctor barn", 'what is "barn"? There are options alone'),
        ("demo barn", 'what is "barn"?'),
        ("pub a b c", 'what is "c"?'),
        ("bridge list north", 'what is "north"? list takes options alone'),
        ("passwd file anna secret more", 'what is "more"? There are FILE USER PASSWORD and options alone'),
        ("top localhost", 'what is "localhost"? There are a URL and options alone; as a URL it is mqtt://localhost'),
        ("completion bash zsh", 'what is "zsh"? There are SHELL and options alone'),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_what_is_right(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in complaint(capsys, *shlex.split(words))


@pytest.mark.parametrize("command", cli.all_commands())
def test_every_command_tells_of_a_misspelt_option(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert complaint(capsys, command, "--hepl") == "there is no option --hepl; did you mean --help?"


@pytest.mark.parametrize("command", cli.all_commands())
def test_every_example_can_be_parsed(command: str) -> None:
    program, name, *words = shlex.split(cli.all_commands()[command].example)
    assert (program, name) == ("hedgerow", command)
    cli.make_parser(command).parse(words)


def test_an_option_may_be_cut_short() -> None:
    arguments = cli.make_parser("up").parse(["--anonym", "--neighbour", "mqtt://b"])
    assert vars(arguments)["access.anonymous"] is True
    assert cli.make_parser("pub").parse(["a", "--ret", "b"]).words == ["a", "b"]


def test_a_value_that_looks_like_an_option_is_left_alone() -> None:
    arguments = cli.make_parser("pub").parse(["a", "--message=--neighbor", "--", "-x"])
    assert (arguments.message, arguments.words) == ("--neighbor", ["a", "-x"])
    assert cli.make_parser("bridge").parse(["new", "-o", "--a b"]).option == ["--a b"]


def test_a_word_cannot_write_to_the_terminal_nor_fill_it(capsys: pytest.CaptureFixture[str]) -> None:
    line = complaint(capsys, "up", "--\x1b[31m")
    assert line.startswith(r"there is no option --\x1b[31m; ")
    line = complaint(capsys, "up", "x" * 100_000)
    assert line == f'what is "{"x" * 99}… There are options alone'


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("sub mqtt://127.0.0.1:1 a -W nan", '-W: "nan" is not a number above 0'),
        ("sub mqtt://127.0.0.1:1 a -W inf", '-W: "inf" is not a number above 0'),
        ("pub mqtt://127.0.0.1:1 a b --repeat-delay nan", '--repeat-delay: "nan" is not a number from 0 on'),
        ("lab run storm --json .", "--json .: is a directory, not a file"),
        ("bench broker --json .", "--json .: is a directory, not a file"),
    ],
)
def test_a_value_that_cannot_be_is_refused_before_anything_is_done(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(shlex.split(words)) == 2
    assert said in capsys.readouterr().err


def test_arguments_that_are_no_utf_8_are_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    """As another locale types them: a password and a payload may be any bytes."""
    words = ["pub", "mqtt://127.0.0.1:1", "a", "b", "-u", "anna", "-P", "\udcff"]
    assert cli.main([*words, "--will-topic", "a", "--will-payload", "\udcff"]) == 3
    assert "connection refused" in capsys.readouterr().err


def test_two_words_to_help_are_one_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help", "up", "down"]) == 2
    line, example = capsys.readouterr().err.splitlines()
    assert line == 'hedgerow: what is "down"? help takes one command'
    assert example == f"for example: {cli.all_commands()['up'].example}"


def test_what_is_wrong_in_a_file_gets_no_example() -> None:
    error = ConfigError("node.toml:3: prot: there is no such key; did you mean port?")
    assert mistakes.with_example(error, ["up"]) == str(error)


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("neighbor", "neighbour"),
        ("NEIGHBOUR", "neighbour"),
        ("colour", None),
        ("fed", "federation"),
        ("", None),
        ("neighbours", "neighbour"),
    ],
)
def test_the_nearest(word: str, found: str | None) -> None:
    assert mistakes.nearest(word, ["federation", "neighbour", "fixed"]) == found
