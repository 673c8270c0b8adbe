"""What the rows are held against."""

from __future__ import annotations

from hedgerow_workshop.lab.bars import Bar, Bars

BARS = Bars(
    {
        "ratio/biased90/lte": Bar(0.25),
        "ratio/biased90/wimax": Bar(0.25),
        "ratio/random/lte": Bar(1.05, least=0.95),
        "ratio/burst/best": Bar(0.6),
        "ratio/burst/20s": Bar(1.1, least=0.9),
        "lost": Bar(0),
        "doubled": Bar(0),
        "farm/lost": Bar(0),
        "farm/doubled": Bar(0),
    }
)
