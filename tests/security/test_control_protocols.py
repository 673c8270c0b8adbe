"""Any bytes in the protocols between nodes, for a moment; `make fuzz` goes on for as long as it is let."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.security.fuzz_checks import CHECKS


@pytest.mark.parametrize("protocol", CHECKS)
@settings(max_examples=60)
@given(data=st.binary(max_size=600))
def test_any_bytes(protocol: str, data: bytes) -> None:
    CHECKS[protocol](data)
