"""Brokers to measure: Mosquitto where it is installed, and our own forwarder, which always is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hedgerow_workshop.bench.peers import BROKERS, Child, running


@pytest.fixture
def mosquitto_child(tmp_path: Path) -> Iterator[Child]:
    if BROKERS["mosquitto"].version() is None:
        pytest.skip("mosquitto is not installed; `make test` fetches it where it can")
    with running(BROKERS["mosquitto"], tmp_path / "mosquitto") as child:
        yield child


@pytest.fixture
def forwarder(tmp_path: Path) -> Iterator[Child]:
    with running(BROKERS["ceiling"], tmp_path / "forwarder") as child:
        yield child
