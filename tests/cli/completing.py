"""Shells with the completion installed as the documents say: what do they offer for the beginning of a line?

Their answers come in one form: a value without its `--option=`, a directory without a slash at its end. zsh
and fish start slowly, and answer many questions one after another.
"""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from hedgerow.cli import completion_scripts
from tests.programs import need_program

Offer = Callable[..., list[str]]
"""`offer("up", "--lo")`: what is offered for `hedgerow up --lo`."""

END = "-- that is all --"

# What the command line's page says where each script goes.
PLACES = {
    "bash": ".local/share/bash-completion/completions/hedgerow",
    "zsh": ".zfunc/_hedgerow",
    "fish": ".config/fish/completions/hedgerow.fish",
}

# `compopt` needs a TAB, and does nothing without one.
BASH = f"""
source ~/{PLACES["bash"]}
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_hedgerow
printf '%s\\n' "${{COMPREPLY[@]}}"
"""

FISH = f"""
while read --local line
    complete --do-complete $line
    echo '{END}'
end
"""

# A TAB tells, on a channel beside the terminal, what would be offered and what zsh complains of.
ZSH = f"""
fpath+=~/.zfunc
autoload -U compinit
compinit -u -D
compadd() {{
    local -a matches folder
    if [[ ${{@[1,(i)(-|--)]}} != *-[OAD]\\ * ]]; then  # with one of these it adds nothing
        zparseopts -E -- p:=folder
        builtin compadd -O matches "$@"
        ((! $#matches)) || print -rlu $CHANNEL -- "$folder[2]"$^matches
    fi
    builtin compadd "$@"
}}
tell() {{
    _main_complete 2>&$CHANNEL
    compstate[insert]= compstate[list]=
    print -ru $CHANNEL -- '{END}'
}}
zle -C tell complete-word tell
bindkey '^I' tell
zle-line-init() {{ print -ru $CHANNEL -- '{END}' }}  # ready to be asked
zle -N zle-line-init
PROMPT=
"""


def install(home: Path, found: Sequence[completion_scripts.CompletedCommand]) -> None:
    for shell, place in PLACES.items():
        (home / place).parent.mkdir(parents=True)
        (home / place).write_text(completion_scripts.SHELLS[shell](found))
    (home / ".zshrc").write_text(ZSH)
    # fish completes only commands that there are, and none of the shells is to start this one.
    program = home / "bin/hedgerow"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\n>"$HOME/started"\n')
    program.chmod(0o755)


@contextmanager
def bash(home: Path, directory: Path) -> Iterator[Offer]:
    program = need_program("bash")

    def offer(*words: str) -> list[str]:
        # It cuts `--option=value` into three words.
        cut = [part for word in words for part in re.split("(?<=.)(=)", word) if part or not word]
        command = [program, "--norc", "-c", BASH, "bash", "hedgerow", *cut]
        # No PATH: completing starts no program.
        environment = {"PATH": "", "HOME": str(home)}
        asked = subprocess.run(
            command, cwd=directory, env=environment, capture_output=True, text=True, timeout=30, check=True
        )
        assert asked.stderr == ""
        return sorted(bare(line) for line in asked.stdout.splitlines() if line)

    yield offer


@contextmanager
def fish(home: Path, directory: Path) -> Iterator[Offer]:
    with subprocess.Popen(
        [need_program("fish"), "-c", FISH],
        cwd=directory,
        env=environment_of(home),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        questions, answers = process.stdin, process.stdout

        def offer(*words: str) -> list[str]:
            print(line_of(words), file=questions, flush=True)
            return sorted(bare(line.partition("\t")[0]) for line in read_answer(answers))

        yield offer


@contextmanager
def zsh(home: Path, directory: Path) -> Iterator[Offer]:
    """It completes only at a terminal."""
    program = need_program("zsh")
    terminal, its_terminal = pty.openpty()
    channel, its_channel = os.pipe()
    environment = environment_of(home) | {"TERM": "dumb", "CHANNEL": str(its_channel)}
    process = subprocess.Popen(
        # -d: without the system's startup files. +m: no jobs, which want a terminal of its session.
        [program, "-d", "+m", "-i"],
        cwd=directory,
        env=environment,
        stdin=its_terminal,
        stdout=its_terminal,
        stderr=its_terminal,
        pass_fds=[its_channel],
        start_new_session=True,
    )
    os.close(its_terminal)
    os.close(its_channel)
    os.set_blocking(terminal, False)
    with os.fdopen(channel) as answers, os.fdopen(terminal, "r+b", buffering=0) as screen:

        def offer(*words: str) -> list[str]:
            screen.write(f"{line_of(words)}\t".encode())
            # As they will stand in the line; what is added twice it shows once.
            quoted = set(read_answer(answers))
            screen.write(b"\x15")  # Control-U: an empty line for the next
            while screen.read(65536):
                pass  # A screen that nobody looks at would fill, and zsh wait.
            return sorted(bare(re.sub(r"\\(.)", r"\1", line)) for line in quoted)

        try:
            read_answer(answers)
            yield offer
        finally:
            process.kill()  # One that is interactive ignores SIGTERM.
            process.wait()


SHELLS = {"bash": bash, "zsh": zsh, "fish": fish}


def environment_of(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "ZDOTDIR"))}
    return kept | {"HOME": str(home), "PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def line_of(words: tuple[str, ...]) -> str:
    return " ".join(["hedgerow", *map(shlex.quote, words[:-1]), words[-1]])


def read_answer(answers: IO[str]) -> list[str]:
    lines: list[str] = []
    while (line := answers.readline()) != f"{END}\n":
        if not line:
            pytest.fail(f"the shell ended:\n{''.join(lines)}")
        lines.append(line.rstrip("\n"))
    return lines


def bare(offered: str) -> str:
    return re.sub("^--[a-z-]+=", "", offered).rstrip("/")
