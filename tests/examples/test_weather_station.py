"""The weather station's nine steps, with its six processes."""

from __future__ import annotations

import socket
import subprocess
import sys

from hedgerow_workshop.programs import free_udp_port
from tests.programs import ROOT
from tests.waiting import PATIENCE_S

EXAMPLE = ROOT / "examples/weather_station.py"

STEPS = [
    "1. the laptop user subscribes to temperature",
    "2. the mobile user subscribes to wind speed",
    "3. the temperature sensor publishes to the broker",
    "4. the broker forwards temperature to the laptop",
    "5. the anemometer publishes to the broker",
    "6. the broker forwards wind speed to the mobile user",
    "7. the laptop user makes another subscription, to humidity",
    "8. the hygrometer publishes to the broker",
    "9. the broker forwards humidity to the laptop user",
    "all nine steps happened",
]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLE), *words],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )


def test_all_nine_steps_happen() -> None:
    done = run()
    assert done.stdout.splitlines()[1:] == STEPS, done
    assert (done.returncode, done.stderr) == (0, "")


def test_the_ports_may_be_chosen() -> None:
    first = free_udp_port(3)
    ports = [str(first + number) for number in range(3)]
    done = run("--ports", *ports)
    assert done.stdout.splitlines() == [f"the broker serves udp://127.0.0.1:{ports[0]}", *STEPS], done
    assert done.returncode == 0


def test_a_station_that_cannot_start_says_so() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        done = run("--ports", str(taken.getsockname()[1]), "0", "0")
    assert done.returncode == 1
    assert "the station did not start" in done.stdout
    assert "the port is in use" in done.stdout
