"""Names are looked up beside each other: one about which nobody answers delays no other."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from hedgerow.errors import ConnectError
from hedgerow.node.lookups import Lookups


async def test_silent_names_delay_no_other() -> None:
    is_over = threading.Event()
    before = threading.active_count()

    def look_up(host: str, port: None) -> list[Any]:
        if host.startswith("silent"):
            is_over.wait(20)
            raise socket.gaierror(-3, "no answer")
        return [(socket.AF_INET, 1, 6, "", ("192.0.2.1", 0)), (socket.AF_INET, 2, 17, "", ("192.0.2.1", 0))]

    made = Lookups(look_up)
    silent = [asyncio.create_task(made.find(f"silent-{number}")) for number in range(50)]
    again = asyncio.create_task(made.find("silent-1"))
    assert await asyncio.wait_for(made.find("known"), 10) == ["192.0.2.1"]
    assert threading.active_count() < before + 60, "one for each name"
    is_over.set()
    outcomes = await asyncio.gather(*silent, again, return_exceptions=True)
    assert {type(each) for each in outcomes} == {socket.gaierror}


async def test_they_are_not_without_number() -> None:
    made = Lookups(max_lookups=0)
    with pytest.raises(ConnectError):
        await made.find("host.invalid")
    assert await made.find("192.0.2.1") == ["192.0.2.1"], "which is no name"
    assert await made.find("::1") == ["::1"]
