"""A network of its own for each test."""

from __future__ import annotations

import pytest

from tests.multicast.lan import Lan


@pytest.fixture
def lan() -> Lan:
    return Lan()
