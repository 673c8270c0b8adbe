"""A Spark session, for a master of the user's choice: the one place that knows how Spark is set up.

What the user asks for (`--conf`) goes before what is set here, and the environment is left as it is.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import urlsplit

import hedgerow
from hedgerow.errors import HedgerowError
from hedgerow.extras import install_command
from hedgerow.pipeline.java import find_java, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*]"
LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")

# For every master.
COMMON = {
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"  # transformWithState's
    ),
}
# On a laptop or a gateway a task costs more than what it works on. The number of shuffle partitions is
# frozen into a query's checkpoint at its first run; Spark's own 200 cost 2 s for a window of ten rows.
SMALL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}
CLUSTER = {"spark.sql.shuffle.partitions": "64"}


def open_session(
    name: str,
    master: str = DEFAULT_MASTER,
    settings: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> SparkSession:
    """The session of this process. Spark finds our data sources by itself (`pyspark_hedgerow`).

    `settings` go before ours. What Java and the workers say goes to the end of the file `log`, or nowhere.
    HedgerowError: no Spark or no Java, and what to do.
    """
    need_spark()
    from pyspark.sql import SparkSession

    prepare_environment(master)
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**settings_for(master), **(settings or {})}.items():
        builder = builder.config(key, value)
    with _standard_error_in(log) as said:
        try:
            return builder.getOrCreate()
        except Exception as error:
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines()
            reason = lines[-1] if lines else str(error).splitlines()[0]
            raise HedgerowError(f"Spark does not start on {master}: {reason}") from error


@contextmanager
def _standard_error_in(log: Path | None) -> Iterator[BinaryIO]:
    """Java is started with our standard error, and its workers with Java's: both are talkative."""
    with ExitStack() as stack:
        if log is None:
            file: BinaryIO = stack.enter_context(tempfile.TemporaryFile())
        else:
            log.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(log.open("a+b"))
        ours = os.dup(2)
        stack.callback(os.close, ours)
        sys.stderr.flush()
        os.dup2(file.fileno(), 2)
        stack.callback(os.dup2, ours, 2)
        yield file


def parallelism(spark: SparkSession) -> int:
    """How many tasks run at once; of a session over Spark Connect, which does not say, what a shuffle has."""
    from pyspark.errors import PySparkAttributeError

    try:
        return spark.sparkContext.defaultParallelism
    except PySparkAttributeError:
        return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)


def need_spark() -> None:
    """HedgerowError: it is not installed. To be asked before a module that imports it: all jobs do."""
    if find_spec("pyspark") is None:
        raise HedgerowError(f"the pipeline needs Spark; type: {install_command('spark')}")


def settings_for(master: str) -> dict[str, str]:
    """What we set; `local…` is one small machine."""
    settings = COMMON | (SMALL if master.startswith("local") else CLUSTER)
    if is_here(master):
        settings["spark.driver.host"] = "127.0.0.1"
        settings["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={LOG_SETTINGS}"
    return settings


def is_here(master: str) -> bool:
    """Does all of it run on this machine?"""
    return master.startswith("local") or urlsplit(master).hostname in ("127.0.0.1", "localhost", "::1")


def prepare_environment(master: str) -> None:
    """What Spark's launcher and the processes that it starts read."""
    os.environ["JAVA_HOME"] = str(java_home(find_java()))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable if is_here(master) else "python3")
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_here(master):
        # A host name that resolves to an address of a network that has gone would stop it.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Workers unpickle our classes; what runs from a source tree may not be installed.
        source = str(Path(hedgerow.__file__).parent.parent)
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if source not in paths:
            os.environ["PYTHONPATH"] = os.pathsep.join([source, *filter(None, paths)])
