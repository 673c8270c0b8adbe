"""Curves in the manner of the document's Figures 9 and 10: a mark at each point, four curves in one plot."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

from hedgerow.pipeline.report.charts import Curve
from hedgerow_workshop.lab.harness.figures import COLOURS, open_axes, plot_curve

MARKS = ("s", "D", "^", "o")


def draw_curves(path: Path, title: str, labels: tuple[str, str], curves: Sequence[Curve], log: bool) -> None:
    """`log`: of the horizontal axis, whose points keep their own numbers."""
    figure, axes = open_axes((8, 5), (0.1, 0.12, 0.87, 0.78))
    for curve, colour, mark in zip(curves, cycle(COLOURS), cycle(MARKS), strict=False):
        plot_curve(axes, curve, color=colour, marker=mark)
    if log:
        axes.set_xscale("log")
    ticks = sorted({x for curve in curves for x, _ in curve.points})
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_title(title)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.grid(color="#ddd")
    if curves:
        axes.legend()
    figure.savefig(path)
