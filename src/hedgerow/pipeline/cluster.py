"""A Spark cluster of its own on this machine: a standalone master and workers, for trying a cluster out.

Everything listens on loopback, on ports that the system chose, and ends with this process.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from hedgerow.errors import HedgerowError
from hedgerow.pipeline.program import Program
from hedgerow.pipeline.session import prepare_environment

HOST = "127.0.0.1"
START_S = 90.0  # A JVM needs seconds, and a busy small machine has many things to do.
_STEP_S = 0.05
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Successfully registered with master")


class Cluster:
    """`url` is the master's. `workers` are processes that a test may kill."""

    def __init__(self, directory: Path, workers: int = 2, cores: int = 1, memory: str = "1g") -> None:
        self.url = ""
        self.workers: list[Program] = []
        self._directory = directory
        self._options = ["--cores", str(cores), "--memory", memory]
        self._count = workers
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as resources:
            self._start(resources)
            self._resources = resources.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()

    def _start(self, resources: ExitStack) -> None:
        prepare_environment(f"spark://{HOST}")
        master = resources.enter_context(Program("the master", self._directory / "master"))
        _launch(master, "master.Master", ["--port", "0"])
        self.url = _wait_for(master, _MASTER)
        for number in range(1, self._count + 1):
            place = self._directory / f"worker-{number}"
            worker = resources.enter_context(Program(f"worker {number}", place))
            self.workers.append(worker)
            _launch(worker, "worker.Worker", [*self._options, "--work-dir", str(place), self.url])
        for worker in self.workers:
            _wait_for(worker, _REGISTERED)


def _launch(program: Program, kind: str, arguments: list[str]) -> None:
    import pyspark

    home = Path(os.environ.get("SPARK_HOME", Path(pyspark.__file__).parent))
    os.environ.setdefault("SPARK_HOME", str(home))
    # spark-class replaces itself by the JVM, so that the process is the one that we end.
    program.launch(
        [
            str(home / "bin/spark-class"),
            f"org.apache.spark.deploy.{kind}",
            *("--host", HOST, "--webui-port", "0"),
            *arguments,
        ]
    )


def _wait_for(program: Program, pattern: re.Pattern[str]) -> str:
    """What the program's log says, once it does."""
    give_up_at = time.monotonic() + START_S
    while time.monotonic() < give_up_at:
        said = program.log.read_text(errors="replace")
        if match := pattern.search(said):
            return match[match.re.groups]
        if program.has_ended:
            raise HedgerowError(f"{program.name} did not start: {program.last_words()}")
        time.sleep(_STEP_S)
    raise HedgerowError(f"{program.name} did not start in {START_S:g} s; see {program.log}")
