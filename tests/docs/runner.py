"""Runs the commands of a documentation page, exactly as they are written, on machines of their own.

A page is a person's path: its blocks run in order, in one new directory, and each must do what the page says.
The machines are network namespaces: default ports are free whatever else runs, several pages can be tested at
once, and nothing reaches the real network. There are three, known by name and address on each of them:

    barn 10.0.0.1 (where blocks run unless they say otherwise)    house 10.0.0.2    mill 10.0.0.3

How to write a block. Readers see the code alone; GitHub hides what follows the first word of the info string.

    ```sh                        a script for bash; every command in it must succeed
    ```sh terminal=node until="listening"
                                 a terminal of its own, in which the command goes on running: the page goes on
                                 when it has printed the text `until`. A second block for the same terminal
                                 presses Ctrl-C first. At the page's end all get Ctrl-C, and must end by that
    ```console                   lines `$ COMMAND`, each followed by all that it prints (`...`: anything, in
                                 a line or for any lines). A command goes on after a backslash
    ```console eventually        the same, tried again until it prints that
    ```console fails             the same; its last command must fail
    ```console terminal=node     with `$ COMMAND`: as sh, ready when it has printed those lines. Without: what
                                 that terminal prints from here on; other lines may come before it. A first
                                 line `^C` is Ctrl-C, and `^\\` is Ctrl-backslash, which kills
    ```console                   without any `$`: all that the block before has printed
    ```python                    a program; it must end with 0
    ```toml file=hedgerow.toml   any language with `file=`: written there, not run
    ```toml, ```json             without a file: parsed
    ```text, ```mermaid          drawings, formats: shown only; must not look like commands
    ```sh no-run                 cannot be tried in a test. `pages.NOT_RUN` has the reason for each
    … host=house                 this block is for that machine; all share the directory

The directory has `.venv`, `examples`, `tools`, `deploy`, `Makefile` and what `make install` looks at, which
finds everything installed. `.venv/bin` is on the PATH: pages may write `hedgerow` or `.venv/bin/hedgerow`.
HOME is another new directory. A page that needs a program that is not here (`OUTSIDE_PROGRAMS`) is skipped.

Nothing waits for time: give `until=`, `eventually` or a terminal's output where something must have happened
before the page goes on. Every process is ended with the page, whatever happens, and a traceback anywhere
fails it. Processes and files of the real machine can be seen: a page never looks for processes by name, and
writes in its directory alone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hedgerow.pipeline.program import default_signals
from tests.docs.markdown import Block, PageError
from tests.hosts import Host, network
from tests.programs import FETCHED, ROOT, need_program
from tests.waiting import PATIENCE_S

HOSTS = ("barn", "house", "mill")
SUBNET = "10.0.0.0/24"
OUTSIDE_PROGRAMS = ("mosquitto", "mosquitto_pub", "mosquitto_sub", "openssl", "curl", "nc", "make", "java")
COMMAND_S = 120.0
"""For one command: Spark takes its time on a loaded machine."""
STOP_S = 15.0
KEYS_PRESSED = {"^C": signal.SIGINT, "^\\": signal.SIGQUIT}


@dataclass
class Terminal:
    name: str
    process: subprocess.Popen[bytes]
    log: Path
    seen: int = 0
    """What the page has shown already of what it printed."""
    interrupted: bool = False

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")


@dataclass
class Machines:
    """Where a page runs."""

    hosts: dict[str, Host]
    directory: Path
    home: Path
    logs: Path
    terminals: dict[str, Terminal] = field(default_factory=dict)
    groups: list[int] = field(default_factory=list)
    commands: int = 0
    last_output: str = ""

    def start(self, block: Block, script: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Give a script to bash on the block's machine, its output to a file."""
        host = self.hosts[block.options.get("host", HOSTS[0])]
        log = self.logs / f"{len(self.groups)}.log"
        names = 'mount --bind "$0" /etc/hosts && exec "$@"'
        wrapper = [*host.wrapper, "unshare", "--mount", "sh", "-c", names, str(self.logs / "hosts")]
        if os.geteuid() != 0:
            # As root of a namespace Mosquitto would try to become another user, of whom there is none here.
            wrapper += ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*wrapper, "bash", "-euo", "pipefail", "-c", script],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.directory,
                env=_environment(self.home),
                start_new_session=True,
                preexec_fn=default_signals,  # noqa: PLW1509 - it makes a few system calls
            )
        self.groups.append(process.pid)
        return process, log


def run_blocks(blocks: list[Block], directory: Path) -> int:
    """Run a page in this empty directory; returns how many commands it had. `PageError`: what is wrong."""
    for program in sorted(outside_programs(blocks)):
        need_program(program)
        if program == "make" and not (Path(sys.prefix) / ".installed").exists():
            pytest.skip("this environment was not made by `make install`")
    with _machines(directory, _count_hosts(blocks)) as machines:
        for block in blocks:
            if "no-run" not in block.flags:
                _run(machines, block)
        _interrupt_all(machines)
    return machines.commands


def outside_programs(blocks: list[Block]) -> set[str]:
    words: set[str] = set()
    for block in blocks:
        if block.language in ("sh", "console") and "no-run" not in block.flags:
            scripts = (
                [block.text] if block.language == "sh" else [step[0] for step in _read_console(block)[1]]
            )
            for script in scripts:
                words.update(re.findall(r"(?:^|[|;&(]|\bsudo)\s*([\w.-]+)", script, re.MULTILINE))
    return words & set(OUTSIDE_PROGRAMS)


def _count_hosts(blocks: list[Block]) -> int:
    named = [block.options.get("host", HOSTS[0]) for block in blocks]
    for block, name in zip(blocks, named, strict=True):
        if name not in HOSTS:
            raise PageError(f"{block.where}: no machine {name}; there are {', '.join(HOSTS)}")
    return max((HOSTS.index(name) + 1 for name in named), default=1)


@contextmanager
def _machines(directory: Path, count: int) -> Iterator[Machines]:
    folders = {name: directory / name for name in ("page", "home", "logs")}
    for folder in folders.values():
        folder.mkdir()
    names = "".join(f"10.0.0.{number} {name}\n" for number, name in enumerate(HOSTS, start=1))
    (folders["logs"] / "hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n{names}")
    _furnish(folders["page"])
    with network(count=count, subnet=SUBNET) as net:
        hosts = dict(zip(HOSTS, net.hosts, strict=False))
        machines = Machines(hosts, folders["page"], folders["home"], folders["logs"])
        try:
            yield machines
        finally:
            for group in machines.groups:
                with suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)
            for terminal in machines.terminals.values():
                terminal.process.wait()


def _furnish(page: Path) -> None:
    """What a person has who has cloned the repository and run `make install`."""
    (page / ".venv").symlink_to(sys.prefix)
    for name in ("examples", "tools", "src", "deploy"):
        (page / name).symlink_to(ROOT / name)
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "workshop/pyproject.toml"):
        (page / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, page / name)
        os.utime(page / name, (0, 0))  # Older than what is installed: nothing is to be fetched.


def _environment(home: Path) -> dict[str, str]:
    kept = {
        name: os.environ[name] for name in ("JAVA_HOME", "JAVA_TOOL_OPTIONS", "LANG") if name in os.environ
    }
    path = [Path(sys.prefix) / "bin", FETCHED / "strangers/bin", os.environ.get("PATH", ""), "/usr/sbin"]
    # A reader's terminal gets each line at once; a file would get them when Python's buffer is full.
    kept["PYTHONUNBUFFERED"] = "1"
    return {"PATH": ":".join(map(str, path)), "HOME": str(home), **kept}


def _run(machines: Machines, block: Block) -> None:
    if "file" in block.options:
        path = machines.directory / block.options["file"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)
    elif block.language == "toml":
        tomllib.loads(block.text)
    elif block.language == "json":
        json.loads(block.text)
    elif block.language == "sh":
        machines.commands += _count_commands(block.text)
        if "terminal" in block.options:
            terminal = _open_terminal(machines, block, block.text)
            _expect(terminal, block, [f"...{block.options['until']}..."])
        else:
            machines.last_output = _call(machines, block, block.text)
    elif block.language == "python":
        program = machines.logs / f"{len(machines.groups)}.py"
        program.write_text(block.text)
        machines.commands += 1
        machines.last_output = _call(machines, block, f"python {program}")
    elif block.language == "console":
        _run_console(machines, block)


def _count_commands(script: str) -> int:
    lines = script.replace("\\\n", " ").splitlines()
    return sum(1 for line in lines if line.strip() and not line.lstrip().startswith("#"))


def _run_console(machines: Machines, block: Block) -> None:
    shown, steps = _read_console(block)
    machines.commands += len(steps)
    if "terminal" in block.options:
        if len(steps) > 1 or (steps and shown):
            raise PageError(f"{block.where}: a terminal runs one command")
        if steps:
            terminal = _open_terminal(machines, block, steps[0][0])
            _expect(terminal, block, steps[0][1])
        else:
            terminal = _terminal(machines, block)
            if shown[0] in KEYS_PRESSED:
                _interrupt(terminal, KEYS_PRESSED[shown.pop(0)])
            if shown:
                _expect(terminal, block, shown)
        return
    if not steps and not _pattern(shown).fullmatch(machines.last_output.rstrip() + "\n"):
        raise PageError(f"{block.where}: the block before has printed\n{machines.last_output}")
    for number, (command, expected) in enumerate(steps, start=1):
        fails = "fails" in block.flags and number == len(steps)
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            machines.last_output = _call(machines, block, command, fails=fails)
            if _pattern(expected).fullmatch(machines.last_output.rstrip() + "\n"):
                break
            if "eventually" not in block.flags or time.monotonic() > give_up_at:
                wanted = "\n".join(expected)
                raise PageError(
                    f"{block.where}: `{command}` has printed\n{machines.last_output}\nand not\n{wanted}"
                )


def _read_console(block: Block) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """The lines before the first command, and each command with the lines that follow it."""
    before: list[str] = []
    steps: list[tuple[str, list[str]]] = []
    lines = iter(block.text.splitlines())
    for line in lines:
        if line.startswith("$ "):
            command = line.removeprefix("$ ")
            while command.endswith("\\"):
                command += "\n" + next(lines, "").removeprefix("> ")
            steps.append((command, []))
        else:
            (steps[-1][1] if steps else before).append(line.rstrip())
    return before, steps


def _pattern(lines: list[str]) -> re.Pattern[str]:
    """`...` alone stands for any lines, also none; within a line for anything there."""
    parts = []
    for line in lines:
        if line.strip() == "...":
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(".*".join(re.escape(part) for part in line.split("...")) + r"[ \t]*\n")
    return re.compile("".join(parts) or r"\n*", re.MULTILINE)


def _call(machines: Machines, block: Block, script: str, *, fails: bool = False) -> str:
    process, log = machines.start(block, script)
    try:
        status = process.wait(COMMAND_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise PageError(f"{block.where}: not done in {COMMAND_S:g} s:\n{script}\n{log.read_text()}") from None
    output = log.read_text(errors="replace")
    if (status != 0) != fails or "Traceback (most recent call last)" in output:
        others = "".join(f"\n--- {each.name}\n{each.output}" for each in machines.terminals.values())
        raise PageError(f"{block.where}: ended with {status}:\n{script}\n{output}{others}")
    return output


def _open_terminal(machines: Machines, block: Block, script: str) -> Terminal:
    name = block.options["terminal"]
    if name in machines.terminals:
        _interrupt(machines.terminals.pop(name))
    process, log = machines.start(block, script)
    machines.terminals[name] = Terminal(name, process, log)
    return machines.terminals[name]


def _terminal(machines: Machines, block: Block) -> Terminal:
    try:
        return machines.terminals[block.options["terminal"]]
    except KeyError:
        raise PageError(f"{block.where}: no terminal {block.options['terminal']} was opened") from None


def _expect(terminal: Terminal, block: Block, lines: list[str]) -> None:
    """Wait until the terminal has printed these lines, after those that the page has shown before."""
    pattern = re.compile("^" + _pattern(lines).pattern, re.MULTILINE)
    give_up_at = time.monotonic() + PATIENCE_S
    while not (match := pattern.search(terminal.output, terminal.seen)):
        if terminal.process.poll() is not None and not pattern.search(terminal.output, terminal.seen):
            raise PageError(
                f"{block.where}: {terminal.name} ended with {terminal.process.returncode}:\n{terminal.output}"
            )
        if time.monotonic() > give_up_at:
            wanted = "\n".join(lines)
            raise PageError(f"{block.where}: waited in vain for\n{wanted}\nin\n{terminal.output}")
        time.sleep(0.01)
    terminal.seen = match.end()


def _interrupt_all(machines: Machines) -> None:
    for terminal in reversed(machines.terminals.values()):
        _interrupt(terminal)


def _interrupt(terminal: Terminal, key: signal.Signals = signal.SIGINT) -> None:
    """Press Ctrl-C, or another key. What had ended by itself must have ended well."""
    if terminal.interrupted:
        return
    terminal.interrupted = True
    status = terminal.process.poll()
    if status is None:
        os.killpg(terminal.process.pid, key)
        try:
            terminal.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(terminal.process.pid, signal.SIGKILL)
            terminal.process.wait()
            raise PageError(f"{terminal.name} does not end by Ctrl-C:\n{terminal.output}") from None
    elif status != 0:
        raise PageError(f"{terminal.name} ended with {status}:\n{terminal.output}")
    if "Traceback (most recent call last)" in terminal.output:
        raise PageError(f"{terminal.name} printed a traceback:\n{terminal.output}")
