"""Certificates, keys and authorities for TLS, for listeners and for those who dial.

OpenSSL reads the files itself, and waits for whatever it is given. So each is looked at first
(`node/files.py`). What is wrong is a ConfigError that names the file.
"""

from __future__ import annotations

import re
import ssl
from pathlib import Path

from hedgerow.errors import ConfigError, reason_of
from hedgerow.node.files import read_regular

MAX_TLS_FILE_BYTES = 4 * 2**20  # All authorities of a Debian have 220 kB; OpenSSL takes 0.1 s for 1 MB.
MAX_FOLDER_FILES = 10_000  # To look at them takes 20 ms; it is done in the event loop.

_AUTHORITY_NAME = re.compile(r"[0-9a-f]{8}\.r?[0-9]+")  # by which OpenSSL finds them in a folder

_REASONS = {
    "KEY_VALUES_MISMATCH": "the key does not belong to the certificate",
    "NO_START_LINE": "not a PEM file",
    "PEM_LIB": "not PEM files, or not a certificate and its key",
    "NO_CERTIFICATE_OR_CRL_FOUND": "there is no certificate in the file",
}

_File = Path | str


def client_context(cafile: _File | None = None, capath: _File | None = None) -> ssl.SSLContext:
    """With the authorities of the file and of the folder; where neither is given, with the system's."""
    if cafile is not None:
        _check_file(cafile)
    if capath is not None:
        _check_folder(Path(capath))
    try:
        return ssl.create_default_context(cafile=cafile, capath=capath)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{cafile or capath}: {_why(error)}") from None


def load_client_authorities(context: ssl.SSLContext, file: _File) -> None:
    """Those of the clients' certificates."""
    _check_file(file)
    try:
        context.load_verify_locations(file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: {_why(error)}") from None


def load_revocations(context: ssl.SSLContext, file: _File) -> None:
    """Of clients' certificates. As Mosquitto does, those of the authorities between are not asked about."""
    load_client_authorities(context, file)
    if not context.cert_store_stats()["crl"]:
        raise ConfigError(f"{file}: there is no revocation list in the file")
    context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF


def load_certificate(context: ssl.SSLContext, certificate: _File, key: _File | None) -> None:
    """The certificate to show, and its private key, which without `key` is in the same file."""
    files = [certificate] if key is None else [certificate, key]
    for file in files:
        _check_file(file)

    def refuse() -> str:
        raise ConfigError(
            f"{files[-1]} is encrypted; decrypt it with openssl pkey -in {files[-1]} -out NEW_FILE"
        )

    try:
        # Without a password OpenSSL asks for one on the terminal, and waits there for ever.
        context.load_cert_chain(certificate, key, password=refuse)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{', '.join(map(str, files))}: {_why(error)}") from None


def _check_file(file: _File) -> None:
    try:
        content = read_regular(file, MAX_TLS_FILE_BYTES)
    except (OSError, ValueError) as error:  # ValueError: U+0000 in its name
        raise ConfigError(f"{file}: {reason_of(error)}") from None
    if not content:
        raise ConfigError(f"{file}: the file is empty")


def _check_folder(folder: Path) -> None:
    """OpenSSL opens what is there by name, while it shakes hands. A folder without such names verifies
    nobody; that it is refused keeps a peer that may name one from learning which folders there are."""
    has_authority = False
    try:
        for number, file in enumerate(folder.iterdir()):
            if number == MAX_FOLDER_FILES:
                raise ConfigError(f"{folder}: more than {MAX_FOLDER_FILES:,} files")
            if _AUTHORITY_NAME.fullmatch(file.name) and file.exists():
                if not file.is_file():
                    raise ConfigError(f"{file}: not a regular file")
                has_authority = True
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder}: {reason_of(error)}") from None
    if not has_authority:
        raise ConfigError(f"{folder}: no authority under the name by which OpenSSL looks (openssl rehash)")


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return _REASONS.get(error.reason, error.reason.replace("_", " ").lower())
    return reason_of(error)
