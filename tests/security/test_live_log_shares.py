"""A real node with users and a small log, killed while one of them fills it: the others do not notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from hedgerow.node.passwords import set_password
from tests.faults.client import PersistentClient, running, until
from tests.programs import Node, run_node

MIB = 1024 * 1024
USERS = ("hub", "hoarder", "victim")
ROUNDS = 60
AT_ONCE = 20
PAYLOAD = bytes(8 * 1024)


def client(node: Node, name: str, user: str, *filters: str) -> PersistentClient:
    subscriptions = tuple((each, 2) for each in filters)
    return PersistentClient(node.port(), name, subscriptions=subscriptions, username=user, password=user)


async def leave_away(*clients: PersistentClient) -> None:
    async with running(*clients):
        await until(lambda: all(each.is_connected for each in clients), "the sessions")


@pytest.mark.parametrize("mode", ["wait", "drop-oldest"])
async def test_whoever_stays_away_holds_nobody_up(mode: str, tmp_path: Path) -> None:
    users = tmp_path / "users"
    for user in USERS:
        set_password(users, user, user.encode(), create=not users.exists())
    options = ("--passwords", str(users), "--data", "data", "--data-bytes", "2MiB", "--data-full", mode)
    with run_node(tmp_path, *options) as node:
        hoarder, victim = client(node, "hoarder", "hoarder", "#"), client(node, "victim", "victim", "rare")
        await leave_away(hoarder, victim)
        hub, reader = client(node, "hub", "hub"), client(node, "reader", "victim", "often")
        async with running(hub, reader):
            for number in range(ROUNDS):
                if number in (20, 40):
                    node.kill9()
                    node.start()
                for each in range(AT_ONCE):
                    hub.publish("often", b"%d-%d " % (number, each) + PAYLOAD, 1 + each % 2)
                hub.publish("rare", b"%d" % number, 1 + number % 2)
                await until(lambda: not hub.outgoing, f"the acknowledgements of round {number}")
            await until(
                lambda: set(hub.sent["often"]) <= set(reader.arrived["often"]), "what the reader gets"
            )
            log_bytes = sum(path.stat().st_size for path in (tmp_path / "data/log").iterdir())
            assert log_bytes < 4 * MIB, "of 9 MiB that were published"
            assert "sessions of user:hoarder" in node.log
            assert "user:victim" not in node.log
        back = client(node, "victim", "victim", "rare")
        async with running(back):
            await until(lambda: set(hub.sent["rare"]) <= set(back.arrived["rare"]), "all that was rare")
            for qos in (1, 2):  # Each has an order of its own.
                sent = hub.sent["rare"][qos - 1 :: 2]
                assert [each for each in dict.fromkeys(back.arrived["rare"]) if each in sent] == sent
