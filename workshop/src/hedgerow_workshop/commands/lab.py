"""`hedgerow lab COMMAND`: experiments on one machine, and the links that they run on.

`hedgerow lab link LISTEN TARGET` passes on what comes to LISTEN, under the conditions asked for in both
directions, until SIGINT or SIGTERM. SIGUSR1 cuts it silently, SIGUSR2 restores it. Standard output says
`listening tcp://127.0.0.1:4000` when it takes connections, `cut` and `restored` when it has been, and at the
end what each direction carried.

`hedgerow lab run NAME` carries an experiment out. Standard output is the table of its rows, standard error
what is being done. A run that fails says why and ends with status 1; whatever it started is ended.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from hedgerow.cli.long_runs import signals_as_exceptions
from hedgerow.cli.option_values import duration, positive, real, whole
from hedgerow.cli.parsing import UsageError
from hedgerow.errors import ConfigError
from hedgerow.node.authority import authority
from hedgerow.node.values import Address, number_within, read_addresses
from hedgerow_workshop.commands.json_files import check_json_file
from hedgerow_workshop.lab.conditions import Conditions
from hedgerow_workshop.lab.experiments import EXPERIMENTS
from hedgerow_workshop.lab.harness.experiment import Request, Result, write_json
from hedgerow_workshop.lab.links import Link
from hedgerow_workshop.lab.storm.settings import MIN_SUBSCRIBERS

WORDS_AFTER = {"run": tuple(EXPERIMENTS)}
"""What a shell completes."""

BANDWIDTH_UNITS = {"bit": 1, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
MAX_DELAY_S = 3_600

STORM_SETTINGS: tuple[tuple[str, Callable[[str], float], str, str], ...] = (
    ("--subscribers", whole(MIN_SUBSCRIBERS), "N", "of all kinds together"),
    (
        "--share",
        real(0, 1),
        "SHARE",
        "of the subscribers, those on the topic that goes hot and cold, such as 0.9",
    ),
    ("--rate", positive(), "N", "publications a second, on all topics together"),
    ("--storm-rate", positive(), "N", "of these, those on the topic that goes hot and cold"),
    ("--seconds", positive(), "S", "how long each run lasts"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "hedgerow lab link LISTEN TARGET [OPTIONS]\n       hedgerow lab run NAME [OPTIONS]"
    experiments = [f"  {name:<10}{text}" for name, (_, text) in EXPERIMENTS.items()]
    lines = ["commands:", *(f"  {text}" for _, text in COMMANDS.values()), "", "experiments:", *experiments]
    parser.epilog = "\n".join(lines)
    parser.add_argument("command", metavar="COMMAND", choices=COMMANDS, help=f"one of: {', '.join(COMMANDS)}")
    parser.add_argument("words", metavar="WORD", nargs="*", help="what the command is about")
    link = parser.add_argument_group("link", "a link's conditions, in each direction")
    link.add_argument("--udp", action="store_true", help="carry datagrams; without it, TCP connections")
    link.add_argument(
        "--delay", type=duration(0, MAX_DELAY_S), metavar="TIME", default="0", help="such as 5ms"
    )
    link.add_argument(
        "--jitter",
        type=duration(0, MAX_DELAY_S),
        metavar="TIME",
        default="0",
        help="on top of the delay, from 0 to this",
    )
    link.add_argument(
        "--loss",
        type=_read_share,
        metavar="SHARE",
        default="0%",
        help="of datagrams or TCP segments, such as 5%%",
    )
    link.add_argument(
        "--bandwidth",
        type=_read_bandwidth,
        metavar="RATE",
        default="unlimited",
        help="per second, such as 1Mbit",
    )
    link.add_argument("--seed", metavar="N", type=int, help="of its chances, to repeat a run")
    experiment = parser.add_argument_group("run", "how an experiment is carried out")
    experiment.add_argument("--fast", action="store_true", help="within a minute, and less exact")
    experiment.add_argument("--json", metavar="FILE", type=Path, help="also write the rows to FILE")
    experiment.add_argument("--out", metavar="DIR", type=Path, help="also write a report with pictures there")
    experiment.add_argument(
        "--broker", metavar="KIND", default="hedgerow", help="hedgerow (default), or mosquitto for stock ones"
    )
    experiment.add_argument("--timeline", metavar="FILE", type=Path, help="what happens when (TOML)")
    experiment.add_argument(
        "--part",
        metavar="PART",
        action="append",
        default=[],
        help="of backlog or morales, this part alone; may be repeated",
    )
    storm = parser.add_argument_group("run storm", "what the storm is made of")
    for flag, kind, metavar, text in STORM_SETTINGS:
        storm.add_argument(flag, metavar=metavar, type=kind, help=text)
    storm.add_argument("--durable", action="store_true", default=None, help="nodes keep sessions on the disk")


IN_PARTS = ("backlog", "morales")


def run(arguments: argparse.Namespace) -> int:
    start, _ = COMMANDS[arguments.command]
    return start(arguments)


def run_link(arguments: argparse.Namespace) -> int:
    if len(arguments.words) != 2:
        raise UsageError(f"link takes LISTEN and TARGET, not {len(arguments.words)} words")
    listen, target = map(_read_address, ("LISTEN", "TARGET"), arguments.words)
    if target.port == 0:
        raise ConfigError(f"TARGET: {target} has no port to connect to")
    conditions = read_conditions(arguments)
    link = Link(
        (listen.bind_hosts[0], listen.port),
        (target.bind_hosts[0], target.port),
        forward=conditions,
        backward=conditions,
        udp=arguments.udp,
        seed=arguments.seed,
    )
    asyncio.run(_carry(link, "udp" if arguments.udp else "tcp"))
    return 0


def run_experiment(arguments: argparse.Namespace) -> int:
    if len(arguments.words) != 1:
        raise UsageError(f"run takes the NAME of an experiment, not {len(arguments.words)} words")
    (name,) = arguments.words
    if name not in EXPERIMENTS:
        from hedgerow.cli.mistakes import did_you_mean

        known = f"there are {', '.join(EXPERIMENTS)}"
        raise UsageError(f'no experiment "{name}"; {known}{did_you_mean(name, EXPERIMENTS)}')
    file: Path | None = arguments.json
    check_json_file(file)
    experiment = import_module(EXPERIMENTS[name][0])
    settings = _read_settings(arguments)
    if settings and name != "storm":
        raise ConfigError(f"{name} takes no --{next(iter(settings)).replace('_', '-')}")
    if arguments.part and name not in IN_PARTS:
        raise ConfigError(f"{name} takes no --part")
    request = Request(
        arguments.fast, arguments.out, arguments.broker, arguments.timeline, _tell, settings, arguments.part
    )
    with signals_as_exceptions():
        result: Result = experiment.run(request)
    if file is not None:
        write_json(file, result)
    from hedgerow_workshop.lab.harness.rows import row_cells, text_table

    print(text_table(row_cells(result.rows)))
    for note in result.notes:
        print(note)
    if result.report is not None:
        print(f"report: {result.report}")
    return 0


def _read_settings(arguments: argparse.Namespace) -> dict[str, float]:
    names = [flag[2:].replace("-", "_") for flag, *_ in STORM_SETTINGS]
    given = {name: getattr(arguments, name) for name in (*names, "durable")}
    return {name: value for name, value in given.items() if value is not None}


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def read_conditions(arguments: argparse.Namespace) -> Conditions:
    return Conditions(
        delay_s=arguments.delay,
        jitter_s=arguments.jitter,
        loss=arguments.loss,
        bandwidth_bits_per_s=arguments.bandwidth,
    )


def _read_share(text: str) -> float:
    if not text.endswith("%"):
        raise ConfigError(f'"{text}" is not a share such as 5%')
    try:
        return number_within(text[:-1], {}, "a number", 0, 100) / 100
    except ConfigError:
        raise ConfigError(f'"{text}" is not a share from 0% to 100%') from None


def _read_bandwidth(text: str) -> float:
    if text == "unlimited":
        return math.inf
    return number_within(text, BANDWIDTH_UNITS, "a rate such as 1Mbit", 1, 1e12)


def _read_address(what: str, text: str) -> Address:
    if text == "off":
        raise ConfigError(f'{what}: "off" is not HOST:PORT')
    try:
        return read_addresses(text, Path())[0]
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from None


async def _carry(link: Link, scheme: str) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with link:
        loop.add_signal_handler(signal.SIGUSR1, _switch, link.cut, "cut")
        loop.add_signal_handler(signal.SIGUSR2, _switch, link.restore, "restored")
        print(f"listening {scheme}://{authority(*link.address)} seed {link.seed}", flush=True)
        await stop.wait()
    for name, direction in (("forward", link.forward), ("backward", link.backward)):
        counted = direction.counters
        parts = f"{counted.datagrams} datagrams, {counted.dropped} dropped"
        if scheme == "tcp":
            parts = f"{counted.retransmitted} retransmitted"
        print(f"{name}: {counted.bytes} bytes, {parts}")


def _switch(change: Callable[[], None], said: str) -> None:
    change()
    print(said, flush=True)


COMMANDS: dict[str, tuple[Callable[[argparse.Namespace], int], str]] = {
    "link": (run_link, "link LISTEN TARGET   pass on what comes to LISTEN (HOST:PORT), as a link would"),
    "run": (run_experiment, "run NAME             carry out an experiment, and print its rows"),
}
