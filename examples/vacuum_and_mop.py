"""A robot vacuum tells a robot mop that it has finished. Neither knows the other, and there is no server.

    .venv/bin/python examples/vacuum_and_mop.py             both, as two programs on this machine
    .venv/bin/python examples/vacuum_and_mop.py vacuum      on one machine,
    .venv/bin/python examples/vacuum_and_mop.py mop         and on another one of the same network

The vacuum publishes the state of its mission. The mop listens to the missions of all robots in the home,
and mops where one has vacuumed; the vacuum waits to hear that the floor is clean. They may be started in
any order: states are retained, so whoever comes later hears the last one. The same program runs over a
broker with `--url mqtt://HOST`.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import subprocess
import sys
from typing import TextIO

import hedgerow

MISSIONS = "home/+/mission"


def say(text: str, stream: TextIO = sys.stdout) -> None:
    """In one call, the newline too: two robots may share a terminal, and `print` may write twice."""
    stream.write(f"{text}\n")
    stream.flush()


async def vacuum(bus: hedgerow.Bus, work_s: float) -> None:
    mission = secrets.token_hex(4)
    async with bus.subscribe(MISSIONS, qos=1) as states:
        await bus.publish("home/vacuum/mission", f"running {mission}", qos=1, retain=True)
        say("vacuum: vacuuming the floor")
        await asyncio.sleep(work_s)
        await bus.publish("home/vacuum/mission", f"completed {mission}", qos=1, retain=True)
        say("vacuum: done, back to the dock")
        async for state in states:
            if state.topic == "home/mop/mission" and state.payload.decode() == f"completed {mission}":
                break
    # A broker would keep the state for the next robot that comes, long after the floor is dirty again.
    await bus.publish("home/vacuum/mission", b"", qos=1, retain=True)
    say("vacuum: the floor is clean")


async def mop(bus: hedgerow.Bus, work_s: float) -> None:
    say("mop: waiting for a floor that has been vacuumed")
    async for state in bus.subscribe(MISSIONS, qos=1):
        _, robot, _ = state.topic.split("/")
        status, _, mission = state.payload.decode().partition(" ")
        if robot == "mop" or status != "completed":
            continue
        say(f"mop: the {robot} has finished, mopping")
        await asyncio.sleep(work_s)
        await bus.publish("home/mop/mission", f"completed {mission}", qos=1)
        say("mop: the floor is clean")
        return


async def run(arguments: argparse.Namespace) -> int:
    robot = {"vacuum": vacuum, "mop": mop}[arguments.robot]
    try:
        async with asyncio.timeout(arguments.timeout), hedgerow.connect(arguments.url) as bus:
            await robot(bus, arguments.work)
    except TimeoutError:
        say(f"{arguments.robot}: nobody answered within {arguments.timeout:g} s", sys.stderr)
        return 1
    except hedgerow.HedgerowError as error:
        say(f"{arguments.robot}: {error}", sys.stderr)
        return 1
    return 0


def run_both(arguments: argparse.Namespace) -> int:
    """The mop first, to show that it waits."""
    words = ["--url", arguments.url, "--work", str(arguments.work), "--timeout", str(arguments.timeout)]
    robots = [subprocess.Popen([sys.executable, __file__, robot, *words]) for robot in ("mop", "vacuum")]
    try:
        return max(robot.wait() for robot in robots)
    finally:
        for robot in robots:
            robot.terminate()
            robot.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("robot", nargs="?", choices=("vacuum", "mop"), help="which one to be; none: both")
    parser.add_argument("--url", default="multicast://", help="how to talk (multicast://)")
    parser.add_argument("--work", type=float, default=1.0, metavar="S", help="seconds that a floor takes (1)")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="give up after this (60)")
    arguments = parser.parse_args()
    try:
        return run_both(arguments) if arguments.robot is None else asyncio.run(run(arguments))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
