"""Programs are found where they are, and ports that are free."""

from __future__ import annotations

import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from hedgerow_workshop.programs import find_program, free_port
from tests.waiting import PATIENCE_S


@pytest.mark.parametrize("place", ["PATH", "SBIN", "FETCHED"])
def test_a_program_is_found(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "strangers/bin"
    folder.mkdir(parents=True)
    (folder / "hedge-cutter").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(folder) if place == "PATH" else "")
    find = partial(
        find_program,
        sbin=(str(folder),) if place == "SBIN" else (),
        caches=(tmp_path,) if place == "FETCHED" else (),
    )
    assert find("hedge-cutter") == str(folder / "hedge-cutter")
    assert find("hedge-trimmer") is None


def test_a_free_port_can_be_listened_on() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))


def test_where_no_socket_can_be_made_no_udp_port_is_looked_for_for_ever() -> None:
    code = (
        "from resource import RLIMIT_NOFILE, getrlimit, setrlimit\n"
        "from hedgerow_workshop.programs import free_udp_port\n"
        "_, hard = getrlimit(RLIMIT_NOFILE); setrlimit(RLIMIT_NOFILE, (0, hard))\n"
        "try: free_udp_port()\n"
        "except OSError as error: print(error.strerror)"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S, capture_output=True)
    assert ended.stdout == b"Too many open files\n"
