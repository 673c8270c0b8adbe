"""What every bench shares: rows, the table and the JSON they become, and progress while it runs.

A row is one figure of ours beside each peer's, with the ratios ours / peer. The table goes to
standard output, progress to standard error: a bar on a terminal (with rich, of the `bench` extra),
plain lines elsewhere.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from hedgerow import native
from hedgerow.errors import ConfigError

Better = Literal["higher", "lower"]


@dataclass(frozen=True)
class BenchRow:
    name: str
    unit: str
    better: Better
    ours: float
    peers: dict[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> dict[str, float]:
        """Ours / peer; a peer that measured zero has none."""
        return {name: self.ours / value for name, value in self.peers.items() if value}

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "unit": self.unit,
            "better": self.better,
            "ours": self.ours,
            "peers": self.peers,
            "ratio": self.ratio,
        }


@dataclass(frozen=True)
class BenchRequest:
    """What a bench is asked for."""

    quick: bool = False
    only: tuple[str, ...] = ()
    """Names of rows; none: all."""
    peers: tuple[str, ...] | None = None
    """None: the bench's own choice."""

    def check(self, rows: Sequence[str], peers: Sequence[str]) -> None:
        """Raise ConfigError for a row or a peer that the bench has not."""
        asked = (("--only: no row", self.only, rows), ("--peers: no peer", self.peers or (), peers))
        for complaint, names, known in asked:
            unknown = [name for name in names if name not in known]
            if unknown:
                raise ConfigError(f"{complaint} {', '.join(unknown)}; there are {', '.join(known)}")


@dataclass(frozen=True)
class BenchResult:
    ours: str
    peers: list[str]
    rows: list[BenchRow]
    about: dict[str, object]
    """How the rows came to be: versions, machine, notes."""


def make_result(
    ours: str,
    peers: list[str],
    rows: Iterable[BenchRow],
    only: Collection[str],
    versions: Mapping[str, str | None],
    notes: list[str],
    **about: object,
) -> BenchResult:
    """Of the rows, those that were asked for; `about` is what else tells how they came to be."""
    wanted = [row for row in rows if not only or row.name in only]
    known = {name: version for name, version in versions.items() if version}
    return BenchResult(
        ours, peers, wanted, {"versions": known, "machine": machine(), **about, "notes": notes}
    )


def write_json(path: Path, result: BenchResult) -> None:
    """The rows, and beside them what `about` says."""
    document = {"rows": [row.as_json() for row in result.rows], **result.about}
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def machine() -> dict[str, object]:
    """Where the figures were taken, without which they say little."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "hedgerow": str(native.STATE),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def table(result: BenchResult) -> str:
    """Aligned columns; each peer's figure is followed by the ratio ours / peer."""
    titles = [title for peer in result.peers for title in (peer, "ratio")]
    lines = [["", "unit", "better", result.ours, *titles]]
    for row in result.rows:
        cells = [row.name, row.unit, row.better, _figure(row.ours)]
        for peer in result.peers:
            value, ratio = row.peers.get(peer), row.ratio.get(peer)
            cells += ["–" if value is None else _figure(value), "" if ratio is None else f"{_figure(ratio)}×"]
        lines.append(cells)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left_aligned = 3
    return "\n".join(
        "  ".join(
            f"{cell:<{width}}" if index < left_aligned else f"{cell:>{width}}"
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _figure(value: float) -> str:
    """Three significant digits, and never fewer than the digits before the point."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 1 or value == 0 else f"{value:.3f}"


class Progress(Protocol):
    def begin(self, title: str, steps: int) -> None:
        """One of the stages counted at the start begins; `step` will be called so many times."""

    def step(self, text: str) -> None:
        """What is being done now."""

    def note(self, text: str) -> None:
        """A line that stays."""


class _Lines:
    def begin(self, title: str, steps: int) -> None:
        self.note(f"{title} …")

    def step(self, text: str) -> None:
        pass

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


@contextmanager
def progress(stages: int, is_terminal: bool | None = None) -> Iterator[Progress]:
    """Progress over so many stages, on standard error: by itself it sees whether that is a terminal."""
    if not (sys.stderr.isatty() if is_terminal is None else is_terminal):
        yield _Lines()
        return
    try:
        from hedgerow_workshop.bench.bar import ProgressBar
    except ImportError:
        yield _Lines()
        return
    with ProgressBar(stages) as bar:
        yield bar


@contextmanager
def measuring(stages: int) -> Iterator[tuple[Path, Progress]]:
    """A directory that is gone afterwards, and the progress over so many stages."""
    with tempfile.TemporaryDirectory(prefix="hedgerow-bench-") as directory, progress(stages) as shown:
        yield Path(directory), shown
