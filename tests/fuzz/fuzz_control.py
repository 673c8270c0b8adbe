"""Long fuzzing of one protocol between nodes: `make fuzz`, or `python tests/fuzz/fuzz_control.py PROTOCOL`.

PROTOCOL is federation, document, tunnel, delegation, stamps, commands or status; the checks are those of
tests/security/fuzz_checks.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

with atheris.instrument_imports(include=["hedgerow"]):
    from tests.security.fuzz_checks import CHECKS

if __name__ == "__main__":
    protocol = sys.argv.pop(1)
    atheris.Setup(sys.argv, CHECKS[protocol])
    atheris.Fuzz()
