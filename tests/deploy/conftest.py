"""What real nodes serve at /metrics, for all that names metrics."""

from __future__ import annotations

import asyncio

import pytest

from tests.deploy.prometheus import beside_fabric, served


@pytest.fixture(scope="session")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names, of nodes that have, together, every part that a node can have."""
    return asyncio.run(beside_fabric(served, tmp_path_factory.mktemp("fabric")))
