"""Pages take turns, so that nobody who asks for many of them keeps the clients of MQTT waiting."""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus

import pytest

from hedgerow.web.turns import TooManyPagesError, Turns
from tests.web.browser import showing

PAGE_S = 0.02
ADDRESS = "192.0.2.1"


async def test_between_two_pages_others_have_their_turn() -> None:
    pages, happened = Turns(), []

    async def make_page() -> None:
        async with pages.turn(ADDRESS):
            time.sleep(PAGE_S)  # as rendering does: the loop waits
            happened.append("page")

    async def do_other_work() -> None:
        while happened.count("page") < 5:
            await asyncio.sleep(PAGE_S / 4)
            happened.append("other")

    await asyncio.gather(*(make_page() for _ in range(5)), do_other_work())
    assert "page page" not in " ".join(happened)


async def test_the_line_is_bounded_and_who_leaves_it_makes_room() -> None:
    pages = Turns(max_waiting=2)

    async def make_page() -> None:
        async with pages.turn(ADDRESS):
            pass

    async with pages.turn(ADDRESS):
        waiting = [asyncio.create_task(make_page()) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyPagesError):
            await make_page()
        waiting[0].cancel()
        await asyncio.sleep(0)
        waiting.append(asyncio.create_task(make_page()))
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in done] == [asyncio.CancelledError, type(None), type(None)]


async def test_one_address_cannot_fill_the_line_nor_keep_another_waiting() -> None:
    pages, made = Turns(max_waiting_of_one=5), []

    async def make_page(address: str) -> None:
        async with pages.turn(address):
            made.append(address)

    async with pages.turn("2001:db8::1"):
        # All of one network of IPv6 are one.
        waiting = [asyncio.create_task(make_page(f"2001:db8::{number}")) for number in range(5)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyPagesError):
            await make_page("2001:db8::ffff")
        waiting += [asyncio.create_task(make_page("192.0.2.1")) for _ in range(2)]
        await asyncio.sleep(0)
    await asyncio.gather(*waiting)
    assert made.index("192.0.2.1") == 1, "one page after it came"
    assert made[3] == "192.0.2.1"
    assert len(made) == 7


async def test_who_hangs_up_when_its_turn_begins_gives_it_to_the_next() -> None:
    pages, made = Turns(), []

    async def make_page(name: str) -> None:
        async with pages.turn(ADDRESS):
            made.append(name)

    async with pages.turn(ADDRESS):
        first, second = asyncio.create_task(make_page("first")), asyncio.create_task(make_page("second"))
        await asyncio.sleep(0)
    time.sleep(PAGE_S)  # Both timers are due: the turn is given to the first, which has yet to run.
    asyncio.get_running_loop().call_later(0, first.cancel)
    with pytest.raises(asyncio.CancelledError):
        await first
    await asyncio.wait_for(second, 5)
    assert made == ["second"]


async def test_a_page_that_fails_ends_its_turn() -> None:
    pages = Turns()
    with pytest.raises(RuntimeError):
        async with pages.turn(ADDRESS):
            raise RuntimeError
    async with asyncio.timeout(5), pages.turn(ADDRESS):
        pass


async def test_many_pages_at_once_are_all_answered() -> None:
    async with showing() as shown:
        answers = await asyncio.gather(*(shown.browser().get("/?live=1") for _ in range(30)))
        assert {answer.status for answer in answers} == {HTTPStatus.OK}


async def test_a_page_for_which_there_is_no_room_is_said_to_be_so() -> None:
    async with showing() as shown:
        shown.dashboard.turns = Turns(max_waiting_of_one=0)
        assert (await shown.browser().get("/")).status == HTTPStatus.SERVICE_UNAVAILABLE
