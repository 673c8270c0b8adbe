"""A program beside this one is ended whatever state it is in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hedgerow.pipeline.program import Program
from tests.programs import IGNORING_SIGNALS, wait_until

WAITS = [sys.executable, "-c", "import signal; print('waiting', flush=True); signal.pause()"]


def state(pid: int) -> str:
    """A letter of proc(5); none when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def wait_for_output(program: Program, text: str) -> None:
    # The whole line: an unbuffered program writes the end of it separately.
    wait_until(lambda: f"{text}\n" in program.output.read_text(), f"{program.name} to say {text}")


def test_it_ignores_no_signal_that_we_ignore(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from hedgerow.pipeline.program import Program\n"
        "with Program('reader', Path(sys.argv[1])) as program:\n"
        "    program.launch(['grep', '-h', 'SigIgn', '/proc/self/status', f'/proc/{os.getpid()}/status'])\n"
        "    program.process.wait()\n"
    )
    subprocess.run([*IGNORING_SIGNALS, sys.executable, "-c", code, tmp_path], check=True)
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
    mask = sum(1 << number - 1 for number in numbers)
    its, ours = (int(line.split()[1], 16) & mask for line in (tmp_path / "output").read_text().splitlines())
    assert (its, ours) == (0, mask)


def test_it_says_its_last_words_in_its_own_directory(tmp_path: Path) -> None:
    code = "import os, sys; print('so far'); print(os.getcwd(), file=sys.stderr); sys.exit('no more')"
    with Program("speaker", tmp_path / "speaker") as program:
        assert program.last_words() == "it said nothing"
        program.launch([sys.executable, "-c", code])
        wait_until(lambda: program.has_ended, "the end")
        assert program.last_words() == "no more"
        assert program.log.read_text().splitlines()[0] == str(tmp_path / "speaker")
        assert program.output.read_text() == "so far\n"


def test_it_may_be_started_again_once_it_has_ended(tmp_path: Path) -> None:
    with Program("waiter", tmp_path) as program:
        program.launch(WAITS)
        with pytest.raises(AssertionError, match="waiter runs already"):
            program.launch(WAITS)
        program.kill()
        assert program.has_ended
        program.launch(WAITS, tmp_path.parent)
        assert not program.has_ended
    assert program.has_ended


def test_ctrl_c_does_not_reach_it(tmp_path: Path) -> None:
    """A terminal sends it to the whole group."""
    with Program("waiter", tmp_path) as program:
        program.launch(WAITS)
        assert program.process is not None
        assert os.getpgid(program.process.pid) != os.getpgid(0)


def test_a_stopped_program_is_ended_in_order(tmp_path: Path) -> None:
    code = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(print('in order')))\n"
    with Program("stopped", tmp_path) as program:
        program.launch([sys.executable, "-c", code + "print('waiting', flush=True); signal.pause()"])
        wait_for_output(program, "waiting")
        program.send(signal.SIGSTOP)
        assert program.process is not None
        pid = program.process.pid
        wait_until(lambda: state(pid) == "T", "it to stop")
    assert program.output.read_text() == "waiting\nin order\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_it_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys, time; from hedgerow.pipeline.program import Program\n"
        "program = Program('orphan', pathlib.Path(sys.argv[1])); program.launch(sys.argv[2:])\n"
        "print(program.process.pid, flush=True); time.sleep(60)"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path), *WAITS]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert state(pid) not in ("", "Z")
        parent.kill()
    wait_until(lambda: state(pid) in ("", "Z"), "the orphan to end")
