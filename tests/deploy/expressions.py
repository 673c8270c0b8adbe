"""As much of PromQL as the dashboard and the alerts use, evaluated over one scrape of real nodes.

A counter's rate is its value, and a comparison leaves out nothing: what is asked is not how much, but whether
an expression is one, names metrics and labels that there are, and joins what can be joined.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import NamedTuple

TOKEN = re.compile(r"\s*(\"[^\"]*\"|\[[^\]]*\]|[A-Za-z_]\w*|\d+(?:\.\d+)?|=~|!~|!=|==|[(){},+\-*/><=])")
RANGE = re.compile(r"\[(\d+[smhd]|\$__rate_interval)\]")
OF_RANGES = ("rate", "increase", "changes")
AGGREGATIONS = ("sum", "count")
OPERATORS: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda left, right: left / right if right else float("nan"),
    ">": lambda left, right: left,
    "==": lambda left, right: left,
}
LEVELS = ((">", "=="), ("+", "-"), ("*", "/"))


class Line(NamedTuple):
    labels: dict[str, str]
    value: float


Value = list[Line] | float
Samples = dict[str, list[Line]]
"""By name, with the labels that Prometheus adds."""


class ExpressionError(Exception):
    pass


def evaluate(expression: str, samples: Samples) -> Value:
    """Raises ExpressionError."""
    evaluator = _Evaluator(expression, samples)
    value = evaluator.binary(0)
    if evaluator.token is not None:
        raise ExpressionError(f"what is {evaluator.token!r}?")
    return value


class _Evaluator:
    def __init__(self, expression: str, samples: Samples) -> None:
        self.samples = samples
        self.tokens: list[str] = []
        position = 0
        while position < len(expression.rstrip()):
            if (found := TOKEN.match(expression, position)) is None:
                raise ExpressionError(f"what is {expression[position:]!r}?")
            self.tokens.append(found[1])
            position = found.end()

    @property
    def token(self) -> str | None:
        return self.tokens[0] if self.tokens else None

    def take(self, *wanted: str) -> str:
        if not self.tokens or (wanted and self.tokens[0] not in wanted):
            raise ExpressionError(f"{self.token!r}, and not {' or '.join(wanted)}")
        return self.tokens.pop(0)

    def binary(self, level: int) -> Value:
        if level == len(LEVELS):
            return self.primary()
        left = self.binary(level + 1)
        while self.token in LEVELS[level]:
            sign = self.take()
            on = self.labels() if self.token == "on" and self.take() else None
            joined = self.labels() if self.token == "group_left" and self.take() else None
            left = combine(OPERATORS[sign], left, self.binary(level + 1), on, joined)
        return left

    def primary(self) -> Value:
        token = self.take()
        if token == "(":
            value = self.binary(0)
            self.take(")")
            return value
        if re.fullmatch(r"[\d.]+", token):
            return float(token)
        if token in AGGREGATIONS:
            return self.aggregate()
        if token == "time":
            self.take("(")
            self.take(")")
            return 2e9
        if token in OF_RANGES:
            self.take("(")
            lines = self.selector(self.take())
            if not self.tokens or not RANGE.fullmatch(self.take()):
                raise ExpressionError(f"{token} of what time?")
            self.take(")")
            return lines
        return self.selector(token)

    def aggregate(self) -> Value:
        by = self.labels() if self.token == "by" and self.take() else []
        self.take("(")
        lines = self.binary(0)
        self.take(")")
        if isinstance(lines, float):
            raise ExpressionError("a sum of one number")
        sums: dict[tuple[str, ...], float] = {}
        for line in lines:
            key = key_of(line, by)
            sums[key] = sums.get(key, 0.0) + line.value
        return [Line(dict(zip(by, key, strict=True)), value) for key, value in sums.items()]

    def selector(self, name: str) -> list[Line]:
        if name not in self.samples:
            raise ExpressionError(f"no node has {name}")
        lines = self.samples[name]
        if self.token == "{":
            self.take()
            while self.token != "}":
                label, sign, text = self.take(), self.take("=", "=~", "!=", "!~"), self.take().strip('"')
                pattern = ".*" if text.startswith("$") else text if "~" in sign else re.escape(text)
                lines = [
                    line
                    for line in lines
                    if (re.fullmatch(pattern, key_of(line, [label])[0]) is None) is sign.startswith("!")
                ]
                if self.token == ",":
                    self.take()
            self.take("}")
        return lines

    def labels(self) -> list[str]:
        self.take("(")
        names = []
        while self.token != ")":
            names.append(self.take())
            if self.token == ",":
                self.take()
        self.take(")")
        return names


def key_of(line: Line, labels: list[str]) -> tuple[str, ...]:
    if missing := set(labels) - line.labels.keys():
        raise ExpressionError(f"no such label: {missing}")
    return tuple(line.labels[label] for label in labels)


def combine(
    calculate: Callable[[float, float], float],
    left: Value,
    right: Value,
    on: list[str] | None,
    joined: list[str] | None,
) -> Value:
    if isinstance(left, float) and isinstance(right, float):
        return calculate(left, right)
    if isinstance(right, float):
        assert isinstance(left, list)
        return [Line(line.labels, calculate(line.value, right)) for line in left]
    if isinstance(left, float):
        return [Line(line.labels, calculate(left, line.value)) for line in right]
    ones = {}
    for line in right:
        key = key_of(line, on if on is not None else sorted(line.labels))
        if key in ones:
            raise ExpressionError(f"more than one on the right for {key}")
        ones[key] = line
    found: list[Line] = []
    keys: set[tuple[str, ...]] = set()
    for line in left:
        key = key_of(line, on if on is not None else sorted(line.labels))
        if joined is None and key in keys:
            raise ExpressionError(f"more than one on the left for {key}")
        keys.add(key)
        if (one := ones.get(key)) is not None:
            labels = (
                dict(line.labels) if joined is not None or on is None else dict(zip(on, key, strict=True))
            )
            labels |= dict(zip(joined or (), key_of(one, joined or []), strict=True))
            found.append(Line(labels, calculate(line.value, one.value)))
    return found
