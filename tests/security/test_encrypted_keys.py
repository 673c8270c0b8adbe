"""An encrypted key is refused, whoever names it: OpenSSL would ask for its passphrase on the terminal.

The old kind of encryption, inside the PEM block, and that of PKCS #8 take different ways through OpenSSL.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import PrivateFormat

from hedgerow.client.options import TlsOptions
from hedgerow.errors import ConfigError
from hedgerow.node.config import Tls
from hedgerow.node.dialling import tls_context
from hedgerow.node.tls import server_context
from hedgerow_workshop.programs import free_port
from tests.bridges.test_part import NEW, section, watching
from tests.node.certificates import Authority
from tests.node.peers import running
from tests.waiting import until

SOURCES = Path(__file__).resolve().parents[2] / "src" / "hedgerow"


def encrypt(key: Path, kind: PrivateFormat = PrivateFormat.PKCS8) -> None:
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    secret = serialization.BestAvailableEncryption(b"secret")
    key.write_bytes(private.private_bytes(serialization.Encoding.PEM, kind, secret))


LOADERS: tuple[Callable[[Path, Path], Any], ...] = (
    lambda certificate, key: server_context(Tls(certificate, key), "mqtt"),
    lambda certificate, key: tls_context(None, certificate, key, "federation"),
    lambda certificate, key: TlsOptions(None, str(certificate), str(key)).make_context(),
)


@pytest.mark.parametrize("kind", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
@pytest.mark.parametrize("load", LOADERS)
def test_an_encrypted_key_is_refused(
    load: Callable[[Path, Path], Any], kind: PrivateFormat, tmp_path: Path
) -> None:
    certificate, key = Authority(tmp_path).issue("node")
    encrypt(key, kind)
    with pytest.raises(ConfigError, match=f"{key} is encrypted; decrypt it with openssl pkey -in {key} "):
        load(certificate, key)


def test_a_key_beside_its_certificate_in_one_file(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).issue("node")
    encrypt(key)
    certificate.write_bytes(certificate.read_bytes() + key.read_bytes())
    with pytest.raises(ConfigError, match=f"{certificate} is encrypted"):
        tls_context(None, certificate, None, "federation")


async def test_a_bridge_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("node")
    encrypt(key)
    files = {"cafile": authority.certificate, "certfile": certificate, "keyfile": key}
    more = tuple(f"bridge_{word} {path}" for word, path in files.items())
    async with running() as here, watching(here) as (near,):
        near.command(NEW, section(free_port(), more=more))
        await until(lambda: "TLS files" in near.state.get("reason", ""), "the refusal")
    assert any(f"{key} is encrypted" in record.getMessage() for record in caplog.records)


def test_nothing_is_asked_on_a_terminal(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).issue("node")
    encrypt(key)
    program = (
        "import sys; from hedgerow.client.options import TlsOptions;"
        "TlsOptions(None, *sys.argv[1:]).make_context()"
    )
    ours, theirs = pty.openpty()
    try:
        # OpenSSL asks on standard input where there is no other terminal.
        ended = subprocess.run(
            [sys.executable, "-c", program, str(certificate), str(key)],
            check=False,
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.PIPE,
            start_new_session=True,
            timeout=30,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert b"is encrypted; decrypt it with" in ended.stderr
    assert b"Enter PEM pass phrase" not in ended.stderr


def test_certificates_are_loaded_at_one_place() -> None:
    """Whoever adds another call forgets the password, and so brings the question back."""
    calls = [
        path.name for path in SOURCES.rglob("*.py") if re.search(r"\.load_cert_chain\(", path.read_text())
    ]
    assert calls == ["tls_files.py"]
