"""What experiments show their results with: plots, drawings of networks, and a page.

Pictures are PNG. The page is plain HTML with its style inside; pictures are files beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hedgerow.pipeline.report.charts import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Distinct for colour-blind people too (Okabe and Ito)."""
_STYLE = """\
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2rem auto; padding: 1rem }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { padding: .25rem .8rem; border-bottom: 1px solid #ddd; text-align: right }
th:first-child, td:first-child { text-align: left }
figure { margin: 1.5rem 0 } img { max-width: 100% } figcaption { color: #555 }
"""


# Pages


def html_table(lines: Sequence[Sequence[str]]) -> str:
    def line_of(tag: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    head, *body = lines
    return "\n".join(["<table>", line_of("th", head), *(line_of("td", each) for each in body), "</table>"])


def html_figure(picture: Path, caption: str) -> str:
    """A picture that lies beside the page."""
    text = escape(caption)
    return f'<figure><img src="{escape(picture.name)}" alt="{text}"><figcaption>{text}</figcaption></figure>'


def html_paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def html_page(title: str, parts: Iterable[str]) -> str:
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">',
            f"<title>{escape(title)}</title>\n<style>\n{_STYLE}</style>\n<h1>{escape(title)}</h1>",
            *parts,
            "</html>\n",
        ]
    )


def write_page(directory: Path, title: str, parts: Iterable[str]) -> Path:
    """The report of an experiment, into a directory that is there."""
    page = directory / "report.html"
    page.write_text(html_page(title, parts), encoding="utf-8")
    return page


# Pictures


def open_axes(size: tuple[float, float], box: tuple[float, float, float, float]) -> tuple[Figure, Axes]:
    """A figure of its own, on no screen and with nothing to be closed, and axes in a box of it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=100)
    FigureCanvasAgg(figure)
    return figure, figure.add_axes(box)


def plot_curve(axes: Axes, curve: Curve, **style: Any) -> None:
    """`style` as matplotlib has it."""
    axes.plot([x for x, _ in curve.points], [y for _, y in curve.points], label=curve.label, **style)


def plot_curves(
    path: Path,
    title: str,
    labels: tuple[str, str],
    curves: Sequence[Curve],
    marks: Mapping[str, float],
) -> None:
    """Curves over time; `marks` are named moments."""
    figure, axes = open_axes((9, 5), (0.09, 0.11, 0.89, 0.77))
    for curve, colour in zip(curves, cycle(COLOURS), strict=False):
        plot_curve(axes, curve, color=colour, linewidth=1.4)
    for name, at in marks.items():
        axes.axvline(at, color="#999", linewidth=0.8, linestyle="--")
        axes.annotate(name, (at, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom")
    axes.set_title(title, pad=18)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.legend(loc="upper left")
    figure.savefig(path)


@dataclass(frozen=True, slots=True)
class NetworkDrawing:
    title: str
    nodes: Mapping[str, bool]
    """Name → does it live. They are drawn on a circle, in this order."""
    links: Iterable[tuple[str, str]] = ()
    ghosts: Iterable[tuple[str, str]] = field(default_factory=tuple)


def draw_networks(path: Path, networks: Sequence[NetworkDrawing]) -> None:
    """Side by side: links as lines, ghosts dotted, the dead grey."""
    figure, axes = open_axes((2.4 * len(networks), 2.8), (0, 0, 1, 1))
    for index, network in enumerate(networks):
        places = {name: (3 * index + x, y) for name, (x, y) in _places(list(network.nodes)).items()}
        for pairs, style, colour in ((network.ghosts, ":", "#999"), (network.links, "-", COLOURS[0])):
            for a, b in pairs:
                axes.plot(*zip(places[a], places[b], strict=True), style, color=colour, linewidth=2, zorder=1)
        for name, place in places.items():
            lives = network.nodes[name]
            axes.plot(*place, "o", markersize=22, color=COLOURS[2] if lives else "#ddd", zorder=2)
            axes.annotate(name, place, ha="center", va="center", color="white" if lives else "#777", zorder=3)
        axes.annotate(network.title, (3 * index, 1.5), ha="center")
    axes.set_xlim(-1.5, 3 * len(networks) - 1.5)
    axes.set_ylim(-1.6, 1.9)
    axes.axis("off")
    figure.savefig(path)


def _places(names: list[str]) -> dict[str, tuple[float, float]]:
    return {
        name: (math.sin(2 * math.pi * index / len(names)), math.cos(2 * math.pi * index / len(names)))
        for index, name in enumerate(names)
    }
