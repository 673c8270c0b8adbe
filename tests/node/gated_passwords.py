"""Passwords that nobody has looked at before a test says so."""

from __future__ import annotations

import threading


class GatedPasswords:
    """Verifies only when told to, and notes in which order it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_answer = threading.Event()
        self.remembered: set[str] = set()
        """Users whose right password was looked at."""

    def verify(self, username: str, password: bytes | None) -> bool:
        self.asked.append(username)
        assert self.may_answer.wait(10)
        if password == b"right":
            self.remembered.add(username)
        return password == b"right"

    def remembers(self, username: str, password: bytes) -> bool:
        return username in self.remembered and password == b"right"
