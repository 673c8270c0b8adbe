"""What has just flowed between brokers at QoS 1 and 2, for a peer that comes a moment too late.

When links are rearranged a message may reach a new hub before another broker has subscribed there, while the
old way is gone already: nobody would send it again. So a broker keeps for a few seconds what came from a
peer or went to one, and a subscription that is new gets what matches (`late.py`). Who has it already knows
it by its id.

Whether a way was lost, or somebody has just subscribed behind that peer, this broker cannot know. So what it
sends once more says its age (`ids.py`), and whichever broker has clients for it gives it to those alone who
were subscribed when it was published.
"""

from __future__ import annotations

from collections import deque

from hedgerow.message import Message

KEEP_S = 10.0  # An agent that finds a broker gone has given its last command long before.
MAX_MESSAGES = 10_000
MAX_BYTES = 8 * 1024 * 1024
MESSAGE_BYTES = 300  # What one takes beside its bytes.


class Recent:
    def __init__(self) -> None:
        self._runs: deque[tuple[float, list[Message], int]] = deque()  # when, what, and its bytes
        self._count = 0
        self._bytes = 0

    def __len__(self) -> int:
        return self._count

    def add(self, message: Message, now: float) -> None:
        self.add_run([message], message.size, now)

    def add_run(self, messages: list[Message], size: int, now: float) -> None:
        """Messages of one topic, that take so many bytes together."""
        runs = self._runs
        size += MESSAGE_BYTES * len(messages)
        runs.append((now, messages, size))
        self._count += len(messages)
        self._bytes += size
        while runs and (runs[0][0] + KEEP_S <= now or self._count > MAX_MESSAGES or self._bytes > MAX_BYTES):
            _, oldest, oldest_size = runs.popleft()
            self._count -= len(oldest)
            self._bytes -= oldest_size

    def runs(self, now: float) -> list[tuple[float, list[Message]]]:
        """Messages of one topic each, with the time at which they were here."""
        return [(at, messages) for at, messages, _ in self._runs if at + KEEP_S > now]
