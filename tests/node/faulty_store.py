"""A node's store that is slow, or fails, when a test wants it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from hedgerow.errors import StoreError
from hedgerow.node.committer import Committer
from hedgerow.node.store import Store
from tests.node.peers import with_part


class FaultyStore(Store):
    """Commits while it may, and when it has failed as often as it is to."""

    failures = 0
    attempts = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.may_commit = threading.Event()
        self.may_commit.set()

    def commit(self) -> None:
        assert self.may_commit.wait(10)
        self.attempts += 1
        if self.failures:
            self.failures -= 1
            self.abandon()
            raise StoreError("disk full")
        super().commit()


class FaultyCommitter(Committer):
    store: FaultyStore

    def store_in(self, directory: Path) -> Store:
        self.store = FaultyStore.open(directory)
        return self.store


FAULTY_STORE = with_part("store", FaultyCommitter)
