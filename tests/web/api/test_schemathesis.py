"""Schemathesis, which we did not write, asks a node whatever its OpenAPI page lets one ask.
 It makes requests that are as the page says and such that are not. The node may refuse them; it may not fail,
answer with what its page does not have, or take what its page does not allow.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hedgerow.node.api import ADMIN
from hedgerow.node.passwords import set_password
from hedgerow.web.api.tokens import create_token
from hedgerow_workshop.programs import free_port
from tests.programs import run_node

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,unsupported_method"
)
QUICK_EXAMPLES = 1
QUICK_PHASES = "fuzzing"
ALL_PHASES = "examples,coverage,fuzzing,stateful"


def ask_everything(directory: Path, phases: str, examples: int, timeout_s: float) -> str:
    """What it says at its end."""
    passwords, tokens, port = directory / "passwords", directory / "tokens", free_port()
    set_password(passwords, "anna", b"secret", create=True, iterations=10)
    token = create_token(tokens, "admin", [ADMIN])
    where = f"localhost:{port}"
    options = ("--http", where, "--passwords", str(passwords), "--api-tokens", str(tokens), "--federation")
    with run_node(directory, *options, "--journal", "farm/#", "--journal-dir", str(directory / "journal")):
        program = (sys.executable, "-m", "schemathesis.cli", "run", f"http://{where}/api/v1/openapi.json")
        how = ("--checks", CHECKS, "--phases", phases, "--max-examples", str(examples), "--seed", "7")
        said = subprocess.run(
            (
                *program,
                *how,
                "--generation-database",
                "none",
                "--suppress-health-check",
                "all",
                "--header",
                f"Authorization: Bearer {token}",
            ),
            cwd=directory,
            env=os.environ | {"COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert said.returncode == 0, said.stdout[-20_000:] + said.stderr[-2_000:]
        return said.stdout


def test_a_quick_look_finds_nothing(tmp_path: Path) -> None:
    said = ask_everything(tmp_path, QUICK_PHASES, QUICK_EXAMPLES, 50)
    found = re.search(r"Tested: +(\d+)", said)
    assert found is not None, said
    assert int(found[1]) >= 20


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_long_look_finds_nothing(tmp_path: Path) -> None:
    ask_everything(tmp_path, ALL_PHASES, 200, 880)
