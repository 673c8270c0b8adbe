"""What real nodes serve at /metrics, as Prometheus would keep it, for all that names metrics."""

from __future__ import annotations

import asyncio

import pytest

from tests.deploy.expressions import Samples
from tests.deploy.prometheus import beside_fabric, scrape


@pytest.fixture(scope="session")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """Of nodes that have, together, every part that a node can have."""
    return asyncio.run(beside_fabric(scrape, tmp_path_factory.mktemp("fabric")))
