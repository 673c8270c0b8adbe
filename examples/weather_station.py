"""A weather station over UDP: nine steps, six processes.

A broker, a laptop and a mobile that subscribe, and a temperature sensor, an anemometer and a hygrometer that
publish. Each is a process of its own on this machine, and each is a plain `hedgerow` command:

    broker      hedgerow up --udp 127.0.0.1:PORT
    laptop      hedgerow sub udp://127.0.0.1:PORT --ask
    sensors     hedgerow pub udp://127.0.0.1:PORT temperature 21.5

Run it with `.venv/bin/python examples/weather_station.py`. `--ports 12345 12346 12349` uses the ports of the
broker, the laptop and the mobile that the protocol's author chose; otherwise the system chooses. Each step
is printed when it has happened; the exit status is 0 if all nine have.
"""

from __future__ import annotations

import argparse
import queue
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from typing import IO

PATIENCE_S = 30.0
HEDGEROW = [sys.executable, "-m", "hedgerow"]


class StepError(Exception):
    pass


class Process:
    """A `hedgerow` command. Its lines are collected as they come."""

    def __init__(self, stack: ExitStack, *words: str) -> None:
        self._process = subprocess.Popen(
            [*HEDGEROW, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
        )
        stack.callback(self.end)
        self.lines: list[str] = []
        self._arriving: queue.SimpleQueue[str | None] = queue.SimpleQueue()  # None: there will be no more
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, output: IO[str]) -> None:
        for line in output:
            self._arriving.put(line.rstrip("\n"))
        self._arriving.put(None)

    def wait_for(self, pattern: str) -> str:
        """The first line with this pattern, whether it came already or comes soon."""
        expression = re.compile(pattern)
        give_up_at = time.monotonic() + PATIENCE_S
        looked_at = 0
        while True:
            for line in self.lines[looked_at:]:
                if expression.search(line):
                    return line
            looked_at = len(self.lines)
            try:
                line_or_end = self._arriving.get(timeout=max(give_up_at - time.monotonic(), 0))
            except queue.Empty:
                line_or_end = None
            if line_or_end is None:
                raise StepError(f'no line with "{pattern}", but {self.lines}')
            self.lines.append(line_or_end)

    def type(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def wait(self) -> None:
        status = self._process.wait(PATIENCE_S)
        while (line := self._arriving.get()) is not None:
            self.lines.append(line)
        if status:
            raise StepError(f"it ended with status {status}: {self.lines}")

    def end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


class Station:
    def __init__(self, stack: ExitStack, ports: list[int]) -> None:
        self._stack = stack
        broker_port, laptop_port, mobile_port = ports
        options = ["--mqtt", "127.0.0.1:0", "--ws", "off", "--http", "127.0.0.1:0"]
        self.broker = Process(stack, "up", "--udp", f"127.0.0.1:{broker_port}", *options)
        self.url = self.broker.wait_for("^listening udp://").split()[1]
        self._metrics = self.broker.wait_for("^listening http://").split()[1] + "/metrics"
        self.laptop = self._subscriber(laptop_port)
        self.mobile = self._subscriber(mobile_port)

    def _subscriber(self, port: int) -> Process:
        own_port = f"?port={port}" if port else ""
        subscriber = Process(self._stack, "sub", f"{self.url}{own_port}", "-v", "--ask")
        subscriber.wait_for("Which topic")
        return subscriber

    def subscribe(self, subscriber: Process, topic: str, subscriptions: int) -> None:
        """The user types a topic; the step has happened when the broker has so many subscriptions."""
        subscriber.type(topic)
        subscriber.wait_for(f"^Asked for {topic}")
        self._wait_for_count("hedgerow_sensor_subscriptions", subscriptions)

    def publish(self, topic: str, value: str, packets: int) -> None:
        """A sensor measures once, and the broker has taken so many packets."""
        Process(self._stack, "pub", self.url, topic, value).wait()
        self._wait_for_count("hedgerow_sensor_packets_published_total", packets)

    def _wait_for_count(self, name: str, value: int) -> None:
        give_up_at = time.monotonic() + PATIENCE_S
        while (found := self._count(name)) != value:
            if time.monotonic() > give_up_at:
                raise StepError(f"the broker's {name} is {found}, not {value}")
            time.sleep(0.02)

    def _count(self, name: str) -> float:
        with urllib.request.urlopen(self._metrics, timeout=PATIENCE_S) as answer:  # noqa: S310 - our own broker's
            text = answer.read().decode()
        found = re.search(rf"^{name} (.+)$", text, re.MULTILINE)
        return float(found[1]) if found else -1.0


def steps(station: Station) -> list[tuple[str, Callable[[], object]]]:
    laptop, mobile = station.laptop, station.mobile
    return [
        (
            "the laptop user subscribes to temperature",
            lambda: station.subscribe(laptop, "temperature", 1),
        ),
        (
            "the mobile user subscribes to wind speed",
            lambda: station.subscribe(mobile, "wind speed", 2),
        ),
        (
            "the temperature sensor publishes to the broker",
            lambda: station.publish("temperature", "21.5 °C", 1),
        ),
        (
            "the broker forwards temperature to the laptop",
            lambda: laptop.wait_for("^temperature 21.5 °C$"),
        ),
        (
            "the anemometer publishes to the broker",
            lambda: station.publish("wind speed", "4.2 m/s", 2),
        ),
        (
            "the broker forwards wind speed to the mobile user",
            lambda: mobile.wait_for("^wind speed 4.2 m/s$"),
        ),
        (
            "the laptop user makes another subscription, to humidity",
            lambda: station.subscribe(laptop, "humidity", 3),
        ),
        (
            "the hygrometer publishes to the broker",
            lambda: station.publish("humidity", "61 %", 3),
        ),
        (
            "the broker forwards humidity to the laptop user",
            lambda: laptop.wait_for("^humidity 61 %$"),
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Nine steps of a weather station, with six processes.")
    parser.add_argument(
        "--ports",
        nargs=3,
        type=int,
        default=[0, 0, 0],
        metavar=("BROKER", "LAPTOP", "MOBILE"),
        help="UDP ports; 0: the system chooses (default)",
    )
    ports = parser.parse_args().ports
    try:
        with ExitStack() as stack:
            station = Station(stack, ports)
            print(f"the broker serves {station.url}", flush=True)
            for number, (text, happen) in enumerate(steps(station), 1):
                try:
                    happen()
                except (StepError, OSError, subprocess.TimeoutExpired) as error:
                    print(f"{number}. did not happen: {text}: {error}", flush=True)
                    return 1
                print(f"{number}. {text}", flush=True)
            # Nobody got what was not subscribed to.
            for name, subscriber, strange in (
                ("laptop", station.laptop, "wind speed"),
                ("mobile", station.mobile, "temperature|humidity"),
            ):
                if any(re.match(rf"({strange}) ", line) for line in subscriber.lines):
                    print(f"the {name} got {strange}, to which it did not subscribe", flush=True)
                    return 1
    except StepError as error:
        print(f"the station did not start: {error}", flush=True)
        return 1
    except KeyboardInterrupt:
        return 130
    print("all nine steps happened", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
