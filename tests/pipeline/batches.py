"""`foreachBatch` calls back from Java: over connections that would be there until the session ends."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def calling_back(spark: SparkSession) -> Iterator[None]:
    """Ends what Spark starts for it; a query that comes later starts it again."""
    try:
        yield
    finally:
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        server = gateway.__dict__.get("_callback_server")
        if server is not None:
            # Closing a file in which another thread waits for a line waits for that line.
            for connection in list(server.connections):
                with suppress(OSError):
                    connection.socket.shutdown(socket.SHUT_RDWR)
            gateway.shutdown_callback_server()
            gateway._callback_server = None
