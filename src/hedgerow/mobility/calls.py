"""Whom a mobile broker dials, and when: one fixed broker at a time, the first that answers."""

from __future__ import annotations

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 5.0


class Calls:
    """`urls` in order of preference."""

    def __init__(self, urls: tuple[str, ...], now: float) -> None:
        self._urls = urls
        self._turn = 0
        self._pause_s = FIRST_PAUSE_S
        self._under_way: str | None = None
        self._linked: dict[str, bool] = {}  # by URL: has it proved to be of use?
        self._due_at = now

    @property
    def deadline(self) -> float:
        """When there is somebody to dial; not while an attempt is under way: its end is waited for."""
        return self._due_at if self._under_way is None and self._urls else float("inf")

    def lists(self, url: str) -> bool:
        return url in self._urls

    def take(self, now: float) -> list[str]:
        if now < self.deadline:
            return []
        self._due_at = float("inf")
        self._under_way = self._urls[self._turn % len(self._urls)]
        return [self._under_way]

    def answered(self, url: str) -> None:
        """There is a link; whether it is of use is yet to be seen."""
        if url == self._under_way:
            self._under_way = None
        self._linked[url] = False
        if url in self._urls:
            # Also where it was dialled before another link to it was lost: a second one would take its place.
            self._due_at = float("inf")

    def proved(self, url: str) -> None:
        """It is: when it is lost, it is the first to be dialled."""
        self._linked[url] = True
        self._turn = self._urls.index(url) if url in self._urls else 0
        self._pause_s = FIRST_PAUSE_S

    def failed(self, url: str, now: float) -> None:
        """It could not be dialled, or its link is lost. That of a broker which was left is no loss."""
        is_proved = self._linked.pop(url, None)
        if url == self._under_way:
            self._under_way = None
            self._turn += 1
        elif url not in self._urls or is_proved is None:
            return
        elif not is_proved:
            self._turn += 1
        if not any(each in self._linked for each in self._urls):
            self._due_at = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def again(self, url: str, now: float) -> None:
        """It answered, and is to be asked in other words."""
        if url == self._under_way:
            self._under_way = None
            self._due_at = now

    def set_urls(self, urls: tuple[str, ...], linked: set[str]) -> None:
        self._urls = urls
        self._turn = 0
        if self._under_way not in urls:
            self._under_way = None  # It may hang for long, and its answer is of no use.
        if not any(url in linked for url in urls):
            self._under_way = None
            self._due_at = 0.0
