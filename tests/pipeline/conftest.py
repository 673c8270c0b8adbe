"""One Spark for all tests of a process: it takes seconds to start.

Its Java process is there before the first test that asks for it, and so is nothing that a test leaves
behind; what Java calls Python with belongs to it too (`_serves_java` in tests/conftest.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from hedgerow.pipeline.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# What is tested is small: compiling it well costs more than running it.
QUICK = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = open_session("tests", "local[2]", QUICK)
    yield session
    session.stop()
