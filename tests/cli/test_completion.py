"""`hedgerow completion`: what a shell offers, asked of the shells themselves."""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hedgerow import cli
from hedgerow.cli import completion, completion_scripts
from hedgerow.cli.completion_scripts import CompletedCommand, CompletedOption, CompletedValue
from hedgerow.cli.pipeline import JOBS
from hedgerow_workshop.commands.bench import BENCHES
from hedgerow_workshop.lab.experiments import EXPERIMENTS
from tests.cli.completing import PLACES, SHELLS, Offer, environment_of, install
from tests.parsers import actions_of
from tests.programs import need_program


@pytest.fixture(scope="module")
def found() -> list[CompletedCommand]:
    return completion.commands()


@pytest.fixture(scope="module")
def home(found: list[CompletedCommand], tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    install(home, found)
    return home


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("place")
    for name in ("barn.toml", "big barn.toml", "b*.toml"):
        (place / name).touch()
    (place / "journals" / "north").mkdir(parents=True)
    return place


@pytest.fixture(scope="module", params=SHELLS)
def offer(request: pytest.FixtureRequest, home: Path, place: Path) -> Iterator[Offer]:
    with SHELLS[request.param](home, place) as offer:
        yield offer
    assert not (home / "started").exists(), "a TAB started the program"


def options_of(command: str) -> set[str]:
    return {name for action in actions_of(cli.make_parser(command)) for name in action.option_strings}


def test_commands(offer: Offer) -> None:
    words = sorted([*cli.all_commands(), "help"])
    # bash has no other way to see that there are options.
    assert offer("") in (words, sorted([*words, "--help", "--version"]))
    assert offer("--") == ["--help", "--version"]
    assert offer("pa") == ["passwd"]
    assert offer("help", "pa") == ["passwd"]
    assert offer("nonsense", "") == []


@pytest.mark.parametrize("command", cli.all_commands())
def test_every_option_of_every_command(command: str, offer: Offer) -> None:
    assert offer(command, "--") == sorted(name for name in options_of(command) if name.startswith("--"))


def test_values_that_are_one_of_a_few(offer: Offer) -> None:
    assert offer("up", "--loop", "") == ["asyncio", "uvloop"]
    assert offer("up", "--id", "barn", "--loop", "u") == ["uvloop"]
    assert offer("pub", "-q", "") == ["0", "1", "2"]
    assert offer("agent", "--topology", "r") == ["redundant", "ring"]
    assert offer("up", "--log-level", "") == ["debug", "error", "info", "warning"]
    assert offer("up", "--id", "") == []


def test_a_value_behind_an_equals_sign(offer: Offer) -> None:
    assert offer("up", "--loop=") == ["asyncio", "uvloop"]
    assert offer("up", "--loop=a") == ["asyncio"]


def test_files_and_directories(offer: Offer, place: Path) -> None:
    everything = sorted(each.name for each in place.iterdir())
    assert offer("up", "--config", "") == everything
    assert offer("up", "--config", "b") == ["b*.toml", "barn.toml", "big barn.toml"]
    assert offer("up", "--config=bar") == ["barn.toml"]
    assert offer("sub", "--journal", "") == ["journals"]
    assert offer("sub", "--journal", "journals/") == ["journals/north"]
    assert offer("passwd", "bar") == ["barn.toml"]
    assert offer("passwd", "-c", "bar") == ["barn.toml"]


def test_words(offer: Offer) -> None:
    assert offer("bridge", "") == ["del", "list", "new"]
    assert offer("bridge", "-h", "10.0.0.7", "") == ["del", "list", "new"]
    assert offer("bridge", "new", "bar") == ["barn.toml"]
    assert offer("bridge", "del", "") == []
    assert offer("completion", "zsh", "") == []
    assert offer("bench", "") == sorted(BENCHES)
    assert offer("lab", "") == ["link", "run"]
    assert offer("lab", "run", "") == sorted(EXPERIMENTS)
    assert offer("lab", "--seed", "7", "run", "st") == ["storm"]
    assert offer("pipeline", "run", "") == sorted(JOBS)
    assert offer("pipeline", "check", "") == ["journals"]
    assert offer("completion", "") == ["bash", "fish", "zsh"]
    assert offer("up", "") == []
    assert offer("pub", "up", "--loo") == []


@pytest.mark.parametrize("command", ["bench", "bridge", "lab", "pipeline"])
def test_the_value_of_an_option_is_none_of_the_words(
    command: str, offer: Offer, found: list[CompletedCommand]
) -> None:
    (described,) = [each for each in found if each.name == command]
    words = sorted(described.words.choices)
    taking = [option for option in described.options if option.value.kind != "nothing"]
    assert taking
    for option in taking:
        for name in option.names:
            assert offer(command, name, words[0], "") == words, name
    name = taking[0].names[-1]
    assert offer(command, f"{name}={words[0]}", "") == words
    for word in described.after:
        assert offer(command, name, words[0], word, "") == offer(command, word, "")
        assert offer(command, word, name, words[0], "") == offer(command, word, "")


def test_bash_is_told_whom_it_is_for(home: Path) -> None:
    command = [need_program("bash"), "--norc", "-c", f"source {PLACES['bash']}; complete -p hedgerow"]
    told = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=30, check=True)
    assert told.stdout == "complete -F _hedgerow hedgerow\n"


def test_zsh_is_told_whom_it_is_for_when_it_only_sources_the_script(home: Path) -> None:
    ask = "autoload -U compinit; compinit -u -D; source .zfunc/_hedgerow; print $_comps[hedgerow]"
    command = [need_program("zsh"), "-d", "-c", ask]
    environment = environment_of(home)
    told = subprocess.run(
        command, cwd=home, env=environment, capture_output=True, text=True, timeout=30, check=True
    )
    assert (told.stdout, told.stderr) == ("_hedgerow\n", "")


@pytest.mark.parametrize("shell", SHELLS)
def test_whatever_help_says_stays_text(shell: str, tmp_path: Path) -> None:
    """Quotes, brackets and dollars of a help text are no part of a script."""
    nothing = CompletedValue("nothing")
    option = CompletedOption(("--odd",), nothing, "it's [x]: $(touch bad) `touch bad` \\")
    odd = CompletedCommand("odd", "isn't: $(touch bad) `touch bad` \\", (option,), nothing, {})
    install(tmp_path, [odd])
    with SHELLS[shell](tmp_path, tmp_path) as offer:
        assert offer("o") == ["odd"]
        assert offer("odd", "--o") == ["--odd"]
    assert not (tmp_path / "bad").exists()
    assert r"it\'s [x]: $(touch bad)" in completion_scripts.fish_script([odd])
    assert r"""'*--odd[it'"'"'s \[x\]\: $(touch bad) `""" in completion_scripts.zsh_script([odd])


def test_an_option_that_help_hides_is_not_offered() -> None:
    def make_parser(command: str) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(add_help=False)
        parser.add_argument("--hidden", help=argparse.SUPPRESS)
        parser.add_argument("--seen", metavar="DIR", help="%(default)s and 5%%", default="here")
        return parser

    (option,) = completion.read_command("up", make_parser).options
    assert option == (("--seen",), ("directory", ()), "here and 5%")


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str], found: list[CompletedCommand]) -> None:
    for shell, write in completion_scripts.SHELLS.items():
        assert cli.main(["completion", shell]) == 0
        assert capsys.readouterr() == (write(found), "")
