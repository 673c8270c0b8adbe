"""Who is at a fixed broker: clients of mobile brokers that came here, or are said to be on their way.

A client is known by its id and by the user that it logs in as. One id is one mobile broker's: whoever
announces a client that another one has announced, or that is here, is not heeded. Otherwise a mobile broker
could take the session of another one's client by naming it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from typing import NamedTuple

from hedgerow.broker.pool import Pool
from hedgerow.mobility.delegation import addresses
from hedgerow.mobility.delegation.limits import MIN_EXPECTED, ORDINARY_CHARS, DelegationLimits


class ExpectedClient(NamedTuple):
    callback: str
    username: str | None
    """As whom it logged in at its mobile broker. Whoever comes as another user is another client."""
    whose: str
    """The user or address that its mobile broker is of."""

    @property
    def weight(self) -> int:
        return 1 + len(self.username or "") // ORDINARY_CHARS


class Attached:
    """`whose`: the user or address that a mobile broker is of."""

    def __init__(self, limits: DelegationLimits, whose: Callable[[str], str] = lambda broker_id: "") -> None:
        self._whose = whose
        self._room = Pool(limits.expected, MIN_EXPECTED, 1)
        self.expected: dict[str, ExpectedClient] = {}
        """By client id, those on their way."""
        self._callbacks: set[str] = set()
        self.generation = 0
        """Grows when somebody comes or goes."""
        self._by_client_id: dict[str, str] = {}
        self._by_owner: dict[str | None, set[str]] = {}
        """None: those under a network address, which any mobile broker may have named."""

    def __contains__(self, callback: object) -> bool:
        return callback in self._callbacks

    def __iter__(self) -> Iterator[str]:
        return iter(self._callbacks)

    def __len__(self) -> int:
        return len(self._callbacks)

    def of(self, broker_id: str) -> list[str]:
        """The clients of this mobile broker, in order."""
        return sorted(self._by_owner.get(broker_id, ()))

    def may_be_of(self, broker_id: str) -> Set[str]:
        """All who are here and may be its subscribers."""
        own, others = self._by_owner.get(broker_id), self._by_owner.get(None)
        return own | others if own and others else own or others or frozenset()

    def callback_of(self, client_id: str) -> str | None:
        """Of a client that is here, or on its way."""
        expected = self.expected.get(client_id)
        return self._by_client_id.get(client_id) or (expected.callback if expected is not None else None)

    def is_here(self, client_id: str) -> bool:
        return client_id in self._by_client_id

    def add(self, callback: str) -> None:
        if callback in self._callbacks:
            return
        self._callbacks.add(callback)
        self.generation += 1
        owner, client_id = addresses.owner_of(callback), addresses.client_id_of(callback)
        self._by_owner.setdefault(owner, set()).add(callback)
        if client_id is not None:
            self._by_client_id[client_id] = callback
            self.take_expected(client_id)

    def discard(self, callback: str) -> None:
        if callback not in self._callbacks:
            return
        self._callbacks.discard(callback)
        self.generation += 1
        owner, client_id = addresses.owner_of(callback), addresses.client_id_of(callback)
        clients = self._by_owner[owner]
        clients.discard(callback)
        if not clients:
            del self._by_owner[owner]
        if client_id is not None and self._by_client_id.get(client_id) == callback:
            del self._by_client_id[client_id]

    def expect(self, callback: str, username: str | None = None) -> bool:
        """It is on its way. False: its id is somebody else's, or too many are expected."""
        client_id = addresses.client_id_of(callback)
        if client_id is None or self.callback_of(client_id) not in (None, callback):
            return False
        if callback in self._callbacks:
            return True
        whose = self._whose(addresses.owner_of(callback) or "")
        client, known = ExpectedClient(callback, username, whose), self.take_expected(client_id)
        has_room = self._room.has_room(whose, client.weight)
        kept = client if has_room else known
        if kept is not None:
            self.expected[client_id] = kept
            self._room.change(kept.whose, kept.weight)
        return has_room

    def take_expected(self, client_id: str) -> ExpectedClient | None:
        """It is on its way no longer."""
        expected = self.expected.pop(client_id, None)
        if expected is not None:
            self._room.change(expected.whose, -expected.weight)
        return expected

    def expect_no_more(self, callback: str) -> None:
        client_id = addresses.client_id_of(callback) or ""
        expected = self.expected.get(client_id)
        if expected is not None and expected.callback == callback:
            self.take_expected(client_id)

    def expect_none_of(self, broker_id: str) -> None:
        for expected in list(self.expected.values()):
            if addresses.owner_of(expected.callback) == broker_id:
                self.expect_no_more(expected.callback)
