"""Files that a command or the configuration names: none holds the node, or tells what is there.

A FIFO that nobody writes into stands for all that a file may be and does not end. A test that would wait for
it fails by the alarm of `soon`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from hedgerow.client.options import TlsOptions
from hedgerow.errors import ConfigError
from hedgerow.federation.config import read_key_file
from hedgerow.node.config import Tls
from hedgerow.node.dialling import tls_context
from hedgerow.node.fabric_key import read_key
from hedgerow.node.files import read_regular
from hedgerow.node.passwords import Passwords
from hedgerow.node.tls import server_context
from hedgerow.node.tls_files import MAX_TLS_FILE_BYTES, client_context
from hedgerow.node.values import read_file_path, read_utf8
from hedgerow_workshop.programs import free_port
from tests.bridges.test_part import NEW, section, watching
from tests.node.certificates import Authority
from tests.node.peers import running
from tests.waiting import until


@contextmanager
def soon(seconds: int = 10) -> Iterator[None]:
    """Whatever waits in a system call is ended."""

    def late(number: int, frame: FrameType | None) -> None:
        raise AssertionError("it waits for the file")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("word", ["bridge_cafile", "bridge_capath", "bridge_certfile", "bridge_keyfile"])
async def test_a_command_that_names_a_fifo_does_not_hold_the_node(
    word: str, fifo: Path, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("node")
    files = {
        "bridge_cafile": authority.certificate,
        "bridge_certfile": certificate,
        "bridge_keyfile": key,
        word: fifo,
    }
    more = tuple(f"{option} {path}" for option, path in files.items())
    with soon():
        async with running() as here, watching(here) as (near,):
            near.command(NEW, section(free_port(), more=more))
            await until(lambda: "TLS files" in near.state.get("reason", ""), "the refusal")


async def test_a_state_does_not_tell_which_folders_there_are(
    fifo: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text, full = tmp_path / "text", tmp_path / "full"
    text.write_text("no folder")
    full.mkdir()
    (full / "authority.pem").write_bytes(Authority(tmp_path).certificate.read_bytes())
    folders = (tmp_path / "missing", text, tmp_path, full, fifo, text / "below")
    told = []
    with soon():
        for folder in folders:
            async with running() as here, watching(here) as (near,):
                near.command(NEW, section(free_port(), more=(f"bridge_capath {folder}",)))
                await until(lambda near=near: near.state.get("state") == "waiting", "the refusal")  # type: ignore[misc]
                told.append(near.state["reason"])
    assert set(told) == {told[0]}
    assert "TLS files" in told[0]
    for folder, why in zip(
        folders, ("No such", "Not a", "no auth", "no auth", "Not a", "Not a"), strict=True
    ):
        assert any(f"{folder}: {why}" in record.getMessage() for record in caplog.records), folder


def test_a_folder_with_an_authority_under_its_name_is_taken(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="openssl rehash"):
        client_context(capath=tmp_path)
    (tmp_path / "0a1b2c3d.0").symlink_to(Authority(tmp_path).certificate)
    client_context(capath=tmp_path)


async def test_a_state_does_not_tell_which_files_there_are(
    fifo: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = tmp_path / "text"
    text.write_text("no certificate")
    files = (tmp_path / "missing", text, tmp_path, fifo, text / "below")
    told = []
    with soon():
        for file in files:
            async with running() as here, watching(here) as (near,):
                near.command(NEW, section(free_port(), more=(f"bridge_cafile {file}",)))
                await until(lambda near=near: near.state.get("state") == "waiting", "the refusal")  # type: ignore[misc]
                told.append(near.state["reason"])
                assert str(file) not in " ".join(
                    past.text for past in here.event_log.history.newest(here.clock(), 100, with_clients=False)
                )
    assert len(set(told)) == 1, told
    # Whoever runs the node is told.
    for file, why in zip(
        files, ("No such file", "there is no certificate", "", "not a regular file", ""), strict=True
    ):
        assert any(f"{file}: {why}" in record.getMessage() for record in caplog.records), file


READERS: tuple[Callable[[Path, Authority], Any], ...] = (
    lambda path, authority: server_context(Tls(path, path), "mqtt"),
    lambda path, authority: server_context(Tls(*authority.issue("server"), path), "mqtt"),
    lambda path, authority: tls_context(path, None, None, "mobility"),
    lambda path, authority: tls_context(None, path, path, "mobility"),
    lambda path, authority: TlsOptions(ca_file=str(path)).make_context(),
    lambda path, authority: TlsOptions(str(authority.certificate), str(path), str(path)).make_context(),
    lambda path, authority: Passwords.load(path),
    lambda path, authority: read_key(path),
    lambda path, authority: read_key_file(str(path), Path()),
    lambda path, authority: read_utf8(path),
    lambda path, authority: read_file_path(str(path), Path()),
)


@pytest.mark.parametrize("read", READERS)
def test_what_the_configuration_names_is_a_regular_file(
    read: Callable[[Path, Authority], Any], fifo: Path, tmp_path: Path
) -> None:
    with soon(), pytest.raises(ConfigError, match=f"{fifo}.*not a regular file"):
        read(fifo, Authority(tmp_path))


def test_a_folder_of_authorities_has_no_fifo_to_wait_for(tmp_path: Path) -> None:
    """OpenSSL would open it in the handshake."""
    os.mkfifo(tmp_path / "0a1b2c3d.0")
    with soon(), pytest.raises(ConfigError, match="not a regular file"):
        client_context(capath=tmp_path)


def test_a_link_leads_to_the_file(tmp_path: Path) -> None:
    """As in the folders of secrets that containers get."""
    (tmp_path / "link").symlink_to(Authority(tmp_path).certificate)
    assert client_context(tmp_path / "link").get_ca_certs()


def test_a_file_is_bounded(tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(MAX_TLS_FILE_BYTES + 1)
    with pytest.raises(ConfigError, match="larger than 4,194,304 bytes"):
        client_context(large)
    assert len(read_regular(large)) == MAX_TLS_FILE_BYTES + 1


def test_what_the_kernel_makes_up_has_no_content() -> None:
    assert read_regular("/proc/self/status") == b""
    with pytest.raises(OSError, match="not a regular file"):
        read_regular("/dev/zero")
