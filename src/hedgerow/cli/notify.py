"""What a node tells the service manager that started it: systemd's notification protocol, sd_notify(3).

Datagrams to the socket that `NOTIFY_SOCKET` names: that the node serves, that it stops, and, if the manager
asks for it (`WATCHDOG_USEC`), again and again that its event loop turns. A node whose loop is stuck is then
ended and started again. Without a manager nothing is sent.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import suppress


class ServiceManager:
    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._watchdog_s = _watchdog_s(environment)
        self._timer: asyncio.TimerHandle | None = None

    def ready(self, status: str) -> None:
        """The node serves; `status` is what `systemctl status` shows. Needs a running loop."""
        self._send(f"READY=1\nSTATUS={status}")
        if self._watchdog_s and self._address:
            self._turn()

    def stopping(self) -> None:
        """From now on the manager's patience with a stop holds, not the watchdog's."""
        if self._timer is not None:
            self._timer.cancel()
        self._send("STOPPING=1\nSTATUS=stopping")

    def _turn(self) -> None:
        self._send("WATCHDOG=1")
        # Half of the time that it waits, as sd_watchdog_enabled(3) recommends.
        self._timer = asyncio.get_running_loop().call_later(self._watchdog_s / 2, self._turn)

    def _send(self, state: str) -> None:
        if not self._address:
            return
        # "@" stands for the NUL byte of the abstract namespace.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)  # a manager that does not read must not hold up the loop
            sender.sendto(state.encode(), address)


def _watchdog_s(environment: Mapping[str, str]) -> float:
    """0: nobody watches, or another process than this one."""
    try:
        if int(environment.get("WATCHDOG_PID", os.getpid())) == os.getpid():
            return max(0, int(environment.get("WATCHDOG_USEC", "0"))) / 1e6
    except ValueError:
        pass
    return 0.0
