"""What `make install` says while pip works: with a pip that only says what the real one does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.programs import ROOT

PROGRAM = ROOT / "tools/install_packages.py"
SAID = """\
Obtaining file:///somewhere
Collecting pyspark==4.1.0
  Downloading pyspark-4.1.0.tar.gz (434.2 MB)
Processing /wheels/uvloop-0.22.1-cp311.whl (from -c constraints.txt (line 3))
Building wheels for collected packages: pyspark
  Building wheel for pyspark (setup.py): started
  Building wheel for pyspark (setup.py): finished with status 'done'
Installing collected packages: py4j, uvloop, pyspark
Successfully installed pyspark-4.1.0
"""
FAKE = """\
import os, sys, time
from pathlib import Path
for line in {said!r}.splitlines():
    print(line, flush=True)
    if "Downloading" in line:
        (Path(os.environ["TMPDIR"]) / "part").write_bytes(bytes(3 * 2**20))
        time.sleep({pause})
sys.exit({status})
"""


def run(folder: Path, status: int = 0, pause: float = 0.0) -> subprocess.CompletedProcess[str]:
    (folder / "pip").mkdir()
    (folder / "pip/__init__.py").touch()  # A regular package goes before the real one.
    (folder / "pip/__main__.py").write_text(FAKE.format(said=SAID, status=status, pause=pause))
    program = folder / "tools/install_packages.py"
    program.parent.mkdir()
    program.write_text(PROGRAM.read_text().replace("SAY_AGAIN_S = 10.0", "SAY_AGAIN_S = 0.3"))
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, str(program), "-e", "."],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )


def test_each_package_is_told_and_how_long_it_took(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0
    assert [line.partition(" s  ")[2] for line in done.stdout.splitlines()] == [
        "fetching pyspark-4.1.0.tar.gz (434.2 MB)",
        "taking uvloop-0.22.1-cp311.whl",
        "building pyspark",
        "installing 3 packages",
        "installed",
    ]
    assert done.stderr == ""
    assert (tmp_path / ".cache/install.log").read_text() == SAID


def test_while_something_large_is_fetched_it_says_how_much_is_there(tmp_path: Path) -> None:
    done = run(tmp_path, pause=2.0)
    assert "  fetching pyspark-4.1.0.tar.gz (434.2 MB): 3 MiB of it here\n" in done.stdout


def test_when_pip_fails_all_that_it_said_is_shown(tmp_path: Path) -> None:
    done = run(tmp_path, status=1)
    assert done.returncode == 1
    assert done.stderr == SAID
    assert done.stdout.splitlines()[-1].endswith(f"all that it said is in {tmp_path / '.cache/install.log'}")
