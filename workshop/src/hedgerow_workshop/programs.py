"""Programs that benches, experiments and tests run beside themselves: where they are, free ports, and what
the kernel knows of them. `hedgerow.pipeline.program` starts and ends them."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

ATTEMPTS = 100
# Debian puts brokers where a user's PATH does not lead.
SBIN = ("/usr/local/sbin", "/usr/sbin")
# What the system lacks may have been fetched here (`tools/install-strangers`).
FETCHED = (Path.cwd() / ".cache", Path(__file__).parents[3] / ".cache")


def find_program(name: str, sbin: Sequence[str] = SBIN, caches: Sequence[Path] = FETCHED) -> str | None:
    """Its path; None where it is not installed."""
    fetched = (str(cache / "strangers/bin") for cache in caches)
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), *sbin, *fetched)))


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port of loopback that nobody listens on now. Another may take it before it is used."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def free_udp_port(count: int = 2) -> int:
    """A UDP port that is free now, and the ones after it, `count` in all; a multicast member takes two."""
    failure = OSError("no UDP ports side by side are free")
    for _ in range(ATTEMPTS):
        with ExitStack() as probes, suppress(OverflowError):
            try:
                port = 0
                for number in range(count):
                    probe = probes.enter_context(socket.socket(type=socket.SOCK_DGRAM))
                    probe.bind(("", port + number if port else 0))
                    port = port or int(probe.getsockname()[1])
                return port
            except OSError as error:
                failure = error
    raise failure


def processor_s(pid: int) -> float:
    """Processor time that it has used so far, user and system."""
    # The second field, the program's name, may contain spaces; it ends with the last bracket.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> Iterator[int]:
    """The processes that it has started, and those that these have."""
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            for child in map(int, file.read_text().split()):
                yield child
                yield from descendants(child)
