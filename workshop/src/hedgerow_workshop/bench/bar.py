"""The progress bar on a terminal. It is drawn only between measurements: a bar that refreshed itself
from a thread would take its share of the loader's core."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


class ProgressBar:
    def __init__(self, stages: int) -> None:
        columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self._progress = Progress(
            *columns, console=Console(stderr=True, force_terminal=True), auto_refresh=False, transient=True
        )
        self._task = self._progress.add_task("", total=stages)
        self._begun = 0
        self._title = ""
        self._share = 0.0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, title: str, steps: int) -> None:
        self._title = title
        self._share = 1 / max(steps, 1)
        self._progress.update(self._task, completed=self._begun, description=title)
        self._progress.refresh()
        self._begun += 1

    def step(self, text: str) -> None:
        self._progress.update(self._task, advance=self._share, description=f"{self._title}: {text}")
        self._progress.refresh()

    def note(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)
