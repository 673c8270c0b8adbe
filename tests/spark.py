"""One Spark for all tests of a process: it takes seconds to start.

Its Java process is there before the first test that asks for it, and so is nothing that a test leaves
behind; what Java calls Python with belongs to it too (`_serves_java` in tests/conftest.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.order import needs_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_TEST_S = 180


def give_time(items: Iterable[pytest.Item]) -> None:
    """The first test of a process has Spark started, and each has its queries compiled."""
    for item in items:
        if needs_spark(item) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SPARK_TEST_S))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from pyspark.logger import PySparkLogger

    from hedgerow.pipeline.session import open_session

    session = open_session("tests", "local[2]")
    with pytest.MonkeyPatch.context() as patch:
        # A logger of PySpark's makes every handler it gets write JSON, and pytest gives the handler behind
        # `caplog` to all that do not propagate: the log of each later test of this process would be JSON.
        patch.setattr(PySparkLogger, "addHandler", logging.Logger.addHandler)
        yield session
    session.stop()
