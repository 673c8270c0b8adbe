"""`hedgerow doctor`: say what on this machine would be in the way, and what to do about it.

Every check runs at the same time as the others, in a thread of its own, and is left alone when it takes too
long: the answer comes in a few seconds whatever hangs. Nothing is changed, and no datagram leaves this
machine. Status 1 if something is a problem, 0 if there are warnings at most.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import queue
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from hedgerow import native
from hedgerow.cli import checks
from hedgerow.cli.checks import OK, PROBLEM, STATES, WARNING, Finding
from hedgerow.cli.open_listeners import open_listeners
from hedgerow.errors import ConfigError, HedgerowError, counted, printable, reason_of
from hedgerow.extras import install_command
from hedgerow.kinds import NODE, kind_of
from hedgerow.node.config import Config
from hedgerow.node.config_loading import load_config
from hedgerow.node.version import VERSION

PATIENCE_S = 3.0
SBIN = ("/usr/local/sbin", "/usr/sbin")  # Debian puts brokers where a user's PATH does not lead
JAVA_S = 10.0  # a Java that was not used for a while takes seconds to answer

EXAMPLES = """\
examples:
  hedgerow doctor                          what `hedgerow up` needs
  hedgerow doctor --config node.toml       what `hedgerow up --config node.toml` needs, or for a file that
                                           names a broker, what `hedgerow federate --config` needs
  hedgerow doctor --json | jq '.checks[] | select(.state != "ok")'
"""

EXTRAS: dict[str, tuple[str, tuple[str, ...]]] = {
    "dash": ("the dashboard updates itself in place", ("django_htmx",)),
    "spark": ("hedgerow pipeline", ("pyspark", "pyarrow", "pandas", "numpy")),
    "lake": ("hedgerow pipeline run --form delta or iceberg", ("deltalake", "pyiceberg")),
}
"""Extra → (what it is for, the modules that it brings)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="check what this node, or federator, needs (TOML)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def read_config(file: Path | None) -> tuple[Config, list[Finding]]:
    """A file that cannot be used is a finding; the rest is then checked for a node without one."""
    if file is None:
        return load_config(None, {}, NODE), []
    kind = NODE
    try:
        kind = kind_of(file)
        return load_config(file, {}, kind), [Finding(OK, f"{file} can be used by {kind.command}")]
    except ConfigError as error:
        advice = f"correct it; what follows is about {kind.command} without it"
        return kind.defaults, [Finding(PROBLEM, str(error), advice)]


# Checks of what this program uses besides the machine


def check_python(config: Config) -> list[Finding]:
    version = f"hedgerow {VERSION}, Python {platform.python_version()}, {platform.platform()}"
    if sys.platform != "linux":
        return [Finding(WARNING, version, "tested on Linux alone; multicast, for one, is made for it")]
    return [Finding(OK, version)]


def check_native(config: Config, state: native.State = native.STATE) -> list[Finding]:
    if state.is_stale:
        return [Finding(WARNING, f"not in use: {state.reason}", "compile it anew: make native")]
    if state.modules:
        return [Finding(OK, f"in use: {counted(len(state.modules), 'module')}")]
    return [Finding(OK, f"plain Python: {state.reason}")]


Find = Callable[[str], object | None]
"""A module, or a program, by its name; None: there is none."""


def check_extras(config: Config, find: Find = find_spec) -> list[Finding]:
    return [_check_extra(name, *EXTRAS[name], find) for name in EXTRAS]


def _check_extra(name: str, purpose: str, modules: tuple[str, ...], find: Find) -> Finding:
    missing = [module for module in modules if find(module) is None]
    if not missing:
        return Finding(OK, f"[{name}] is installed: {purpose}")
    install = install_command(name)
    if len(missing) < len(modules):
        return Finding(WARNING, f"[{name}] is incomplete, without {', '.join(missing)}: {purpose}", install)
    return Finding(OK, f"[{name}] is not installed: {purpose}; to have it: {install}")


def check_java(config: Config, find: Find = find_spec) -> list[Finding]:
    """What Spark would run on. It is asked for its version, and Spark for nothing."""
    from hedgerow.pipeline.java import find_java

    try:
        java = find_java()
    except HedgerowError as error:
        if find("pyspark") is None:
            return [Finding(OK, "none is needed: Spark is not installed")]
        return [Finding(WARNING, str(error), "hedgerow pipeline does not start without it")]
    return [Finding(OK, f"Java {java.version}, found by {java.found_by}: {java.program}")]


def find_program(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), *SBIN)))


def check_mosquitto(config: Config, find: Callable[[str], str | None] = find_program) -> list[Finding]:
    program = find("mosquitto")
    if program is None:
        return [Finding(OK, "not installed, and not needed; to compare with it: apt install mosquitto")]
    return [Finding(OK, program)]


def check_strangers(config: Config) -> list[Finding]:
    found = [Finding(WARNING, each.seen, each.advice) for each in open_listeners(config)]
    return found or [Finding(OK, "nothing is open to other machines without a password")]


class Check(NamedTuple):
    name: str
    run: Callable[[Config], list[Finding]]
    patience_s: float = PATIENCE_S


CHECKS: tuple[Check, ...] = (
    Check("program", check_python),
    Check("native code", check_native),
    Check("ports", checks.check_ports),
    Check("strangers", check_strangers),
    Check("multicast", checks.check_multicast),
    Check("IPv6", checks.check_ipv6),
    Check("mDNS", checks.check_mdns),
    Check("clock", checks.check_clock),
    Check("open files", checks.check_open_files),
    Check("UDP buffers", checks.check_receive_buffers),
    Check("permissions", checks.check_permissions),
    Check("disk", checks.check_disk),
    Check("backlogs", checks.check_backlogs),
    Check("Java", check_java, JAVA_S),
    Check("extras", check_extras),
    Check("Mosquitto", check_mosquitto),
)

Results = list[tuple[str, list[Finding]]]


def run(arguments: argparse.Namespace, table: tuple[Check, ...] = CHECKS) -> int:
    config, findings = read_config(arguments.config)
    results = [*([("configuration", findings)] if findings else []), *run_checks(config, table)]
    if arguments.json:
        print(to_json(results))
    else:
        print("\n".join(to_lines(results)))
    return int(any(finding.state == PROBLEM for _, found in results for finding in found))


def run_checks(
    config: Config,
    table: tuple[Check, ...] = CHECKS,
    start: Callable[[threading.Thread], None] = threading.Thread.start,
) -> Results:
    """What each check found, in the table's order."""
    done: queue.SimpleQueue[tuple[str, list[Finding]]] = queue.SimpleQueue()

    def give_up(check: Check, error: Exception) -> None:
        done.put((check.name, [Finding(WARNING, f"could not be checked: {reason_of(error)}")]))

    def carry_out(check: Check) -> None:
        try:
            done.put((check.name, check.run(config)))
        except Exception as error:  # one check that fails must not take the others along
            give_up(check, error)

    started_at = time.monotonic()
    for check in table:
        # A daemon: a disk that does not answer must not keep the program from ending.
        thread = threading.Thread(target=carry_out, args=(check,), name=f"doctor: {check.name}", daemon=True)
        try:
            start(thread)
        except RuntimeError as error:  # this user may have no more of them
            give_up(check, error)
    found: dict[str, list[Finding]] = {}
    for check in sorted(table, key=lambda each: each.patience_s):
        while check.name not in found:
            left_s = started_at + check.patience_s - time.monotonic()
            try:
                name, findings = done.get(timeout=max(0.0, left_s))
                found[name] = findings
            except queue.Empty:
                seen = f"could not be checked within {check.patience_s:g} s"
                found[check.name] = [Finding(WARNING, seen)]
    return [(check.name, found[check.name]) for check in table]


# What is printed


def to_json(results: Results) -> str:
    listed = [{"name": name, **finding._asdict()} for name, found in results for finding in found]
    return json.dumps({"checks": listed, **_counts(results)}, indent=2)


def to_lines(results: Results) -> list[str]:
    name_width, state_width = max(len(name) for name, _ in results), max(map(len, STATES))
    lines = []
    for name, found in results:
        for finding in found:  # Another program's command line, for one, may hold anything.
            lines.append(f"{finding.state:{state_width}}  {name:{name_width}}  {printable(finding.seen)}")
            if finding.advice:
                lines.append(f"{'':{state_width}}  {'':{name_width}}  → {printable(finding.advice)}")
    counts = _counts(results)
    bad = f"{counted(counts[WARNING], 'warning')}, {counted(counts[PROBLEM], 'problem')}"
    return [*lines, f"{counts[OK]} ok, {bad}"]


def _counts(results: Results) -> dict[str, int]:
    found_of = Counter(finding.state for _, found in results for finding in found)
    return {state: found_of[state] for state in STATES}
