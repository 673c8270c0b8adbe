"""Logins: whoever tries passwords waits for itself, and locks nobody out."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hedgerow.mqtt.packets import MQTT_3_1_1, Connack, Connect
from hedgerow.mqtt.reasons import Reason
from hedgerow.node import logins
from hedgerow.node.back_off import KNOWN, PAIR, SITE, USER, BackOff, BackOffRule
from hedgerow.node.login_line import OTHERS_TURN
from hedgerow.node.logins import MAX_HELD, MAX_HELD_OF_ONE, Attempt, LoginQueue, Logins, TooManyError
from hedgerow.node.passwords import set_password
from hedgerow.node.verdicts import Verdict
from hedgerow.rates import site_of
from tests.node.gated_passwords import GatedPasswords
from tests.node.peers import LOOPBACK, connected, part_of, port_of, raw_client, running
from tests.waiting import until


def test_a_site_is_an_ipv4_address_or_an_ipv6_network() -> None:
    assert site_of("192.0.2.1") == "192.0.2.1"
    assert site_of("::ffff:192.0.2.1") == "192.0.2.1"
    assert site_of("2001:db8::1") == site_of("2001:db8::ffff:ffff:ffff:ffff")
    assert site_of("2001:db8::1") != site_of("2001:db8:0:1::1")
    assert site_of("fe80::1%eth0") == site_of("fe80::2%eth1")
    for odd in ("", "a path", "unix:/run/socket", "1:2"):
        assert site_of(odd) == odd


@dataclass
class Results:
    """What came of each attempt."""

    finished: dict[str, bool] = field(default_factory=dict)
    refused: dict[str, float] = field(default_factory=dict)

    def attempt(self, site: str, name: str, password: bytes = b"right", user: str | None = None) -> Attempt:
        def finish(verdict: Verdict) -> None:
            self.finished[name] = bool(verdict)

        def refuse(wait_s: float) -> None:
            self.refused[name] = wait_s

        return Attempt(site, user or name, password, finish, refuse)


async def test_many_addresses_of_one_ipv6_network_delay_no_other() -> None:
    passwords, results = GatedPasswords(), Results()
    waiting = LoginQueue(passwords, lambda: 0.0)
    try:
        for n in range(15):
            waiting.add(results.attempt(site_of(f"2001:db8::{n:x}"), f"flood-{n}", b"wrong"))
        waiting.add(results.attempt(site_of("2001:db8:0:1::1"), "ada"))
        passwords.may_answer.set()
        await until(lambda: "ada" in results.finished, "ada's login to finish")
    finally:
        waiting.close()
    assert passwords.asked.index("ada") <= logins.WORKERS + 1


async def test_a_flood_is_held_and_then_refused_unseen() -> None:
    """What is held is bounded; nobody else waits."""
    passwords, results = GatedPasswords(), Results()
    passwords.may_answer.set()
    waiting = LoginQueue(passwords, lambda: 0.0)
    count = 200
    try:
        for n in range(count):
            waiting.add(results.attempt("192.0.2.66", f"flood-{n}", b"wrong", user="ada"))
        settled = count - MAX_HELD_OF_ONE
        await until(lambda: len(results.finished) + len(results.refused) >= settled, "the rest to be refused")
        waiting.add(results.attempt("192.0.2.1", "bob"))
        await until(lambda: "bob" in results.finished, "bob's login")
    finally:
        waiting.close()
    assert results.finished.pop("bob")
    assert len(results.finished) <= PAIR.free + 1  # of two workers, one may be late to learn it
    assert not any(results.finished.values())


NETWORKS = {
    "sites of one IPv4 network": [f"203.0.113.{number}" for number in range(64)],
    "networks of one IPv6 provider": [site_of(f"2001:db8:{number:x}::1") for number in range(2 * MAX_HELD)],
}


@pytest.mark.parametrize("sites", NETWORKS.values(), ids=NETWORKS)
async def test_whoever_fills_the_line_with_a_users_name_locks_nobody_out(sites: list[str]) -> None:
    """Each log-in of a user whom many sites try is held. Those of the attacker find no more room."""
    rule = BackOffRule(USER.free, first_s=1.0, most_s=1.0, forgive_s=USER.forgive_s)
    passwords, results = GatedPasswords(), Results()
    passwords.may_answer.set()
    waiting = LoginQueue(passwords, lambda: 0.0, BackOff(rule))
    try:
        fail(waiting.back_off, "ada", "198.51.100.1", USER.free)
        for number in range(2 * MAX_HELD):
            name = f"attack-{number}"
            waiting.add(results.attempt(sites[number % len(sites)], name, b"wrong", user="ada"))
        assert len(results.refused) >= MAX_HELD
        for number in range(10):
            waiting.add(results.attempt(f"192.0.{number}.1", f"ada-{number}", user="ada"))
            waiting.add(results.attempt(sites[0], f"after-{number}", b"wrong", user="ada"))
        right = {f"ada-{number}" for number in range(10)}
        await until(lambda: right <= results.finished.keys(), "the right passwords to be looked at")
    finally:
        waiting.close()
    assert not right & results.refused.keys()
    assert all(results.finished[name] for name in right)


async def test_many_sites_of_one_network_delay_no_other() -> None:
    """Whoever has a /48 has 65,536 sites."""
    passwords, results = GatedPasswords(), Results()
    waiting = LoginQueue(passwords, lambda: 0.0)
    try:
        for number in range(200):
            waiting.add(results.attempt(site_of(f"2001:db8:0:{number:x}::1"), f"flood-{number}", b"wrong"))
        waiting.add(results.attempt(site_of("2001:db8:1::1"), "ada"))
        waiting.add(results.attempt("192.0.2.1", "bob"))
        passwords.may_answer.set()
        await until(lambda: {"ada", "bob"} <= results.finished.keys(), "their log-ins to finish")
    finally:
        waiting.close()
    assert passwords.asked.index("bob") <= logins.WORKERS + 2
    assert passwords.asked.index("ada") <= logins.WORKERS + 3


FLOOD = [f"{10 + number}.{number}.0.66" for number in range(100)]


def flood(waiting: LoginQueue, results: Results, first: int = 0) -> None:
    """Ten guesses from each of a hundred networks, all for other users."""
    for number in range(first, first + 10 * len(FLOOD)):
        waiting.add(results.attempt(FLOOD[number % len(FLOOD)], f"flood-{number}", b"wrong"))


async def test_wrong_passwords_from_a_hundred_networks_delay_nobody_by_more_than_a_few_checks() -> None:
    """Whoever was there before goes first, and then whoever comes from a network that gave none."""
    passwords, results = GatedPasswords(), Results()
    waiting = LoginQueue(passwords, lambda: 0.0)
    try:
        waiting.back_off.note("ada", "192.0.2.1", accepted=True, now=0.0)
        flood(waiting, results)
        waiting.add(results.attempt("192.0.2.1", "ada"))
        passwords.may_answer.set()
        await until(lambda: "ada" in results.finished, "ada's log-in to finish")
        # By now each of those networks has guessed wrong, or will have.
        await until(lambda: len(results.finished) > 2 * len(FLOOD), "the flood to go on")
        passwords.may_answer.clear()
        flood(waiting, results, first=1_000)
        before = len(passwords.asked)
        for number in range(5):
            waiting.add(results.attempt(f"198.{number}.2.1", f"bob-{number}"))
        passwords.may_answer.set()
        bobs = [f"bob-{number}" for number in range(5)]
        await until(lambda: all(bob in results.finished for bob in bobs), "the others' log-ins to finish")
    finally:
        passwords.may_answer.set()
        waiting.close()
    asked = passwords.asked
    assert asked.index("ada") <= logins.WORKERS + 2
    assert max(asked.index(bob) for bob in bobs) - before <= logins.WORKERS + 5 + 5 // (OTHERS_TURN - 1) + 1


async def test_a_network_that_floods_with_a_known_users_name_does_not_go_before_others() -> None:
    passwords, results = GatedPasswords(), Results()
    passwords.may_answer.set()
    waiting = LoginQueue(passwords, lambda: 0.0)
    try:
        waiting.back_off.note("mallory", "203.0.113.1", accepted=True, now=0.0)
        waiting.add(results.attempt("203.0.113.1", "first", b"wrong", user="mallory"))
        await until(lambda: "first" in results.finished, "the first one to finish")
        assert waiting.back_off.standing("mallory", "203.0.113.1", 0.0) > KNOWN + 1
        assert waiting.back_off.standing("bob", "192.0.2.1", 0.0) == KNOWN + 1
    finally:
        waiting.close()


async def test_a_password_that_was_right_there_before_does_not_wait_at_all() -> None:
    passwords, results = GatedPasswords(), Results()
    waiting = LoginQueue(passwords, lambda: 0.0)
    try:
        passwords.remembered.add("ada")
        waiting.back_off.note("ada", "192.0.2.1", accepted=True, now=0.0)
        flood(waiting, results)
        waiting.add(results.attempt("192.0.2.1", "ada"))
        await until(lambda: "ada" in results.finished, "ada's log-in to finish")
        assert "ada" not in passwords.asked
        # From elsewhere it waits as any other.
        waiting.add(results.attempt("192.0.2.2", "elsewhere", user="ada"))
        # And so does what comes beside a guess: a crowd of them would get as many looks for nothing.
        waiting.add(results.attempt("192.0.2.1", "guess", b"wrong", user="ada"))
        waiting.add(results.attempt("192.0.2.1", "beside", user="ada"))
        await asyncio.sleep(0)
        assert results.finished == {"ada": True}
        passwords.may_answer.set()
        await until(lambda: {"elsewhere", "guess", "beside"} <= results.finished.keys(), "the others")
    finally:
        passwords.may_answer.set()
        waiting.close()
    assert passwords.asked.count("ada") == 3
    assert not results.finished["guess"]


def fail(known: BackOff, user: str, site: str, times: int, now: float = 0.0) -> None:
    for _ in range(times):
        known.note(user, site, accepted=False, now=now)


def test_each_wrong_password_doubles_the_wait_up_to_a_bound_and_time_forgives() -> None:
    known = BackOff()
    fail(known, "ada", "192.0.2.66", PAIR.free - 1)
    assert known.wait_s("ada", "192.0.2.66", 0.0) == 0
    waits = []
    for _ in range(8):
        fail(known, "ada", "192.0.2.66", 1)
        waits.append(known.wait_s("ada", "192.0.2.66", 0.0))
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    assert known.wait_s("ada", "192.0.2.66", 59.0) == 1
    fail(known, "ada", "192.0.2.66", 1, now=30 * PAIR.forgive_s)
    assert known.wait_s("ada", "192.0.2.66", 30 * PAIR.forgive_s) == 0


def test_a_stranger_cannot_lock_a_user_out_from_another_site() -> None:
    known = BackOff()
    known.note("ada", "192.0.2.1", accepted=True, now=0.0)
    for n in range(1_000):
        fail(known, "ada", f"198.51.100.{n % 256}", 1)
    assert known.wait_s("ada", "192.0.2.1", 0.0) == known.delay_s("ada", "192.0.2.1", 0.0) == 0
    # From a site that is not known the user waits a little, and is not refused.
    assert known.wait_s("ada", "203.0.113.1", 0.0) == 0
    assert known.delay_s("ada", "203.0.113.1", 0.0) == USER.most_s < logins.MAX_HELD_S


def test_a_site_that_tries_many_users_waits_and_whoever_is_known_there_does_not() -> None:
    known = BackOff()
    known.note("ada", "192.0.2.66", accepted=True, now=0.0)
    for n in range(SITE.free + 20):
        fail(known, f"user-{n}", "192.0.2.66", 1)
    assert known.wait_s("bob", "192.0.2.66", 0.0) == SITE.most_s < logins.MAX_HELD_S
    assert known.wait_s("ada", "192.0.2.66", 0.0) == 0
    assert known.wait_s("bob", "192.0.2.1", 0.0) == 0


def test_a_right_password_resets_that_user_at_that_site_alone() -> None:
    known = BackOff()
    for user, site in (("ada", "192.0.2.1"), ("ada", "192.0.2.2"), ("bob", "192.0.2.1")):
        fail(known, user, site, PAIR.free)
    known.note("ada", "192.0.2.1", accepted=True, now=0.0)
    assert known.wait_s("ada", "192.0.2.1", 0.0) == 0
    assert known.wait_s("ada", "192.0.2.2", 0.0) > 0
    assert known.wait_s("bob", "192.0.2.1", 0.0) > 0


def test_the_tables_are_bounded_whatever_is_tried() -> None:
    known = BackOff(max_failing=50, max_known=50)
    for n in range(500):
        fail(known, f"user-{n}" * 1_000, f"site-{n}", 1)
        known.note(f"user-{n}", f"site-{n}", accepted=True, now=0.0)
        assert len(known) <= 50


async def test_mqtt_and_http_share_the_wait(tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    set_password(path, "ada", b"right", create=True, iterations=1)
    async with running(mqtt=LOOPBACK, passwords=path, anonymous=False) as node:
        users = part_of(node, Logins)
        assert await users.verify("127.0.0.1", "ada", b"right")
        for _ in range(PAIR.free):
            assert not await users.verify("127.0.0.1", "ada", b"wrong")
        fail(users.back_off, "ada", "127.0.0.1", 6, node.clock())
        with pytest.raises(TooManyError):
            await users.verify("127.0.0.1", "ada", b"right")
        async with raw_client(port_of(node)) as client:
            client.send(Connect("c", username="ada", password=b"right"))
            answer = await client.receive()
            assert isinstance(answer, Connack)
            assert answer.reason_code == Reason.CONNECTION_RATE_EXCEEDED
        async with raw_client(port_of(node)) as client:
            client.send(Connect("c", MQTT_3_1_1, username="ada", password=b"right"))
            assert await client.reader.read(100) == b"\x20\x02\x00\x03"  # server unavailable
        users.back_off.note("ada", "127.0.0.1", accepted=True, now=node.clock())
        async with connected(port_of(node), "c", username="ada", password=b"right"):
            pass
