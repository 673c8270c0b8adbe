"""The commands that the workshop adds to `hedgerow`, each a module here (`hedgerow.cli`)."""

from __future__ import annotations

from hedgerow.cli import Command

COMMANDS: dict[str, Command] = {
    "demo": Command(
        "begin", "a fabric on this machine, with everything to look at, in one command", "hedgerow demo"
    ),
    "bench": Command("measure", "measure this broker beside others", "hedgerow bench broker --quick"),
    "lab": Command(
        "measure", "experiments, and the links that they run on", "hedgerow lab run schmitt --fast"
    ),
}
"""By name; the workshop's entry points say where each is."""
