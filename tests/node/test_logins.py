"""Logins wait in turn, address by address."""

from __future__ import annotations

import asyncio
import threading

from hedgerow.node import logins
from hedgerow.node.logins import Attempt, LoginQueue
from hedgerow.node.verdicts import Verdict
from tests.node.gated_passwords import GatedPasswords
from tests.waiting import until


class Recorder:
    """What came of the logins."""

    def __init__(self) -> None:
        self.finished: list[tuple[str, bool]] = []

    def login(self, address: str, username: str, password: bytes = b"right", link: bool = True) -> Attempt:
        def finish(verdict: Verdict) -> None:
            self.finished.append((username, bool(verdict)))

        def refuse(wait_s: float) -> None:
            raise AssertionError(f"{username} is refused for {wait_s} s")

        return Attempt(address, username, password, finish, refuse, lambda: link)


async def test_a_flood_from_one_address_delays_no_other() -> None:
    recorder, passwords = Recorder(), GatedPasswords()
    waiting = LoginQueue(passwords, lambda: 0.0)
    try:
        for n in range(15):
            waiting.add(recorder.login("192.0.2.66", f"flood-{n}", b"wrong"))
        waiting.add(recorder.login("192.0.2.1", "ada"))
        passwords.may_answer.set()
        await until(lambda: len(recorder.finished) == 16, "every login to finish")
    finally:
        waiting.close()
    assert passwords.asked.index("ada") <= logins.WORKERS + 1
    assert ("ada", True) in recorder.finished
    assert ("flood-14", False) in recorder.finished


async def test_who_has_hung_up_costs_no_check() -> None:
    recorder, passwords = Recorder(), GatedPasswords()
    passwords.may_answer.set()
    waiting = LoginQueue(passwords, lambda: 0.0)
    try:
        waiting.add(recorder.login("192.0.2.1", "gone", link=False))
        waiting.add(recorder.login("192.0.2.1", "here"))
        await until(lambda: bool(recorder.finished), "the login to finish")
    finally:
        waiting.close()
    assert passwords.asked == ["here"]


async def test_a_reload_during_a_check_has_it_repeated() -> None:
    recorder, old, new = Recorder(), GatedPasswords(), GatedPasswords()
    waiting = LoginQueue(old, lambda: 0.0)
    try:
        waiting.add(recorder.login("192.0.2.1", "ada"))
        await until(lambda: bool(old.asked), "the check to begin")
        waiting.passwords = new
        old.may_answer.set()
        await until(lambda: bool(new.asked), "the second check")
        assert not recorder.finished
        new.may_answer.set()
        await until(lambda: bool(recorder.finished), "the login to finish")
    finally:
        waiting.close()
    assert recorder.finished == [("ada", True)]


async def test_closing_leaves_no_thread() -> None:
    recorder, passwords = Recorder(), GatedPasswords()
    waiting = LoginQueue(passwords, lambda: 0.0)
    for n in range(10):
        waiting.add(recorder.login("192.0.2.1", str(n)))
    waiting.close()
    passwords.may_answer.set()
    await asyncio.sleep(0)
    await until(
        lambda: not any(thread.name.startswith("hedgerow-login") for thread in threading.enumerate()),
        "the threads to end",
    )
