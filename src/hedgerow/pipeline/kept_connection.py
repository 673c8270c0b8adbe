"""Plans and progress to a broker over one connection, which stays open while a pipeline runs.

Every few seconds there is something to tell. With a connection for each, a broker's log and its dashboard
would show little else than that somebody has come and gone. The connection lives on a loop of its own thread:
who publishes has no loop, and is one of Spark's threads or of ours.

What fails fails as with a connection of its own (`plan.to_broker`), and nothing is sent later of which the
caller was told that it was not. A connection that was lost meanwhile is no failure: another takes its place,
and what was sent on it without an answer is sent again, which changes no retained message.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import hedgerow
from hedgerow.errors import ConnectError, HedgerowError
from hedgerow.message import Message
from hedgerow.pipeline.plan import PATIENCE_S


class KeptConnection:
    """Call it with messages, from any thread; `options` are those of `hedgerow.connect`.

    HedgerowError or OSError: not all of them are there.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self.patience_s = PATIENCE_S
        self._url = url
        self._options = options
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._bus: hedgerow.Bus | None = None

    def __call__(self, messages: Sequence[Message]) -> None:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="broker", daemon=True)
                self._thread.start()
            result = asyncio.run_coroutine_threadsafe(self._publish(messages), self._loop)
            try:
                result.result()
            except TimeoutError as error:
                raise ConnectError(f"{self._url} has not taken them within {self.patience_s:g} s") from error
            finally:
                result.cancel()  # if a signal has ended the wait

    def close(self) -> None:
        """Leave the broker. The next call would connect again."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
            if loop is None or thread is None:
                return
            asyncio.run_coroutine_threadsafe(self._drop(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    async def _publish(self, messages: Sequence[Message]) -> None:
        try:
            async with asyncio.timeout(self.patience_s):
                if self._bus is not None and await self._has_sent(self._bus, messages):
                    return
                # Not one that connects again by itself: it would try for ever where nobody listens any more.
                self._bus = await hedgerow.connect(self._url, follow=False, reconnect=False, **self._options)
                await _send(self._bus, messages)
        except BaseException:
            await self._drop()
            raise

    async def _has_sent(self, bus: hedgerow.Bus, messages: Sequence[Message]) -> bool:
        try:
            await _send(bus, messages)
        except (HedgerowError, OSError):
            await self._drop()
            return False
        return True

    async def _drop(self) -> None:
        bus, self._bus = self._bus, None
        if bus is not None:
            # At once: what has no answer by now is not waited for.
            error = ConnectError("the connection is given up")
            await bus.__aexit__(ConnectError, error, None)


async def _send(bus: hedgerow.Bus, messages: Sequence[Message]) -> None:
    for message in messages:
        await bus.send(message)
