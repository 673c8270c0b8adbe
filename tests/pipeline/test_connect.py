"""Spark Connect: a client without Java, a server with the sources in its path; and `spark-pipelines`."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

import hedgerow
from hedgerow.journal import Writer
from hedgerow.message import Message
from hedgerow.pipeline.program import Program
from hedgerow.pipeline.session import COMMON, SMALL, prepare_environment
from hedgerow_workshop.programs import free_port
from tests.conftest import StartNode
from tests.programs import wait_until

pytest.importorskip("grpc")

HOME = Path(pyspark.__file__).parent
PATIENCE_S = 240.0


def write_journal(directory: Path) -> Path:
    with Writer(directory, "north") as writer:
        for number in range(100):
            message = Message(f"farm/{number % 2}", b"%d" % number)
            writer.append(message, transport="mqtt", received_at=1_700_000_000 + number)
    return directory


def is_open(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def connect_server(directory: Path) -> Iterator[str]:
    """Its URL."""
    prepare_environment("local[2]")
    port = free_port()
    settings = COMMON | SMALL | {"spark.connect.grpc.binding.port": str(port), "spark.log.level": "WARN"}
    words = [str(HOME / "bin/spark-submit"), "--master", "local[2]"]
    words += [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    words += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    with Program("the Connect server", directory) as server:
        server.launch(words)
        wait_until(lambda: is_open(port), "the server", PATIENCE_S)
        yield f"sc://127.0.0.1:{port}"


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_source_sink_and_a_job_over_connect(tmp_path: Path, hedgerow_node: StartNode) -> None:
    journal, tables = write_journal(tmp_path / "journal"), tmp_path / "tables"
    node = hedgerow_node()
    script = Path(__file__).with_name("connect_jobs.py")
    with connect_server(tmp_path / "server") as url:
        async with hedgerow.connect(node.urls["mqtt"]) as bus, bus.subscribe("alarm", qos=1) as alarms:
            with Program("the client", tmp_path / "client") as client:
                words = [url, str(journal), str(tables), node.urls["mqtt"]]
                client.launch([sys.executable, str(script), *words])
                heard = [int((await anext(aiter(alarms))).payload) for _ in range(50)]
                wait_until(lambda: client.has_ended, "the client", PATIENCE_S)
                assert client.process is not None
                assert client.process.returncode == 0, client.log.read_text()
                assert client.output.read_text().splitlines() == ["source 50", "bronze 100 100"]
    assert sorted(heard) == list(range(1, 100, 2))


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_project_of_spark_pipelines(tmp_path: Path) -> None:
    """The same functions, as `hedgerow pipeline project` writes them out; the last message is no number."""
    (tmp_path / "rules.toml").write_text("[[reading]]\nfilter = 'farm/+'\nformat = 'number'\n")
    journal, project = write_journal(tmp_path / "journal"), tmp_path / "project"
    words = ["pipeline", "project", "--journal", str(journal), "--out", str(project)]
    words += ["--rules", str(tmp_path / "rules.toml")]
    with Writer(journal, "north") as writer:
        writer.append(Message("farm/0", b"?"), transport="mqtt", received_at=1_700_000_100)
    subprocess.run([sys.executable, "-m", "hedgerow", *words], check=True)
    prepare_environment("local[2]")
    with Program("spark-pipelines", tmp_path / "run") as run:
        run.launch([str(HOME / "bin/spark-pipelines"), "run"], start_in=project)
        wait_until(lambda: run.has_ended, "the project", PATIENCE_S)
        assert run.process is not None
        assert run.process.returncode == 0, run.log.read_text()[-3_000:]
    found = {
        name: parquet(project / "spark-warehouse" / name) for name in ("bronze", "readings", "quarantine")
    }
    assert {name: table.num_rows for name, table in found.items()} == {
        "bronze": 101, "readings": 100, "quarantine": 1,
    }  # fmt: skip


def parquet(directory: Path) -> pa.Table:
    return pq.read_table(directory)
