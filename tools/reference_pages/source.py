"""What code says of itself beyond its values: comments behind constants and members, docstrings of fields.

And the little Markdown that all pages share.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Sequence
from enum import IntEnum, IntFlag
from struct import Struct, calcsize
from types import ModuleType
from typing import Any

MADE = "<!-- Made by tools/make_reference.py from the code. Change that, and run `make reference`. -->"


def head(title: str, *paragraphs: str) -> list[str]:
    return [f"# {title}", "", MADE, *(line for paragraph in paragraphs for line in ("", paragraph)), ""]


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Without columns that are empty in every row."""
    listed = [list(row) for row in rows]
    kept = [place for place in range(len(columns)) if any(row[place] for row in listed)]
    lines = [[columns[place] for place in kept], ["---"] * len(kept)]
    lines += [[_cell(row[place]) for place in kept] for row in listed]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def code(text: object) -> str:
    return f"`{text}`"


def plain_number(number: float) -> str:
    if number >= 2**32 and number == int(number):
        whole = int(number)
        if whole & (whole - 1) == 0:
            return f"2^{whole.bit_length() - 1}"
        if whole & (whole + 1) == 0:
            return f"2^{whole.bit_length()} − 1"
    return f"{number:,.15g}"


def docstring(thing: object) -> str:
    """Whole, without its indentation."""
    return inspect.cleandoc(inspect.getdoc(thing) or "")


def drawing(module: ModuleType, beginning: str) -> list[str]:
    """The indented block of a module's docstring one line of which begins so."""
    blocks = re.findall(r"(?:^(?: {4}.*|)\n)+", docstring(module) + "\n", re.MULTILINE)
    found = next(
        block for block in blocks if re.search(rf"^ {{4}}{re.escape(beginning)}", block, re.MULTILINE)
    )
    return ["```text", *(line[4:] for line in found.strip("\n").splitlines()), "```", ""]


def said_of(owner: type | ModuleType) -> dict[str, str]:
    """Of each name assigned in a class or module: the docstring below it, or the comment behind it."""
    source = inspect.cleandoc("\n" + inspect.getsource(owner))
    lines = source.splitlines()
    tree: Any = ast.parse(source)
    body: list[ast.stmt] = tree.body if isinstance(owner, ModuleType) else tree.body[0].body
    found: dict[str, str] = {}
    for statement, following in zip(body, [*body[1:], None], strict=True):
        for name in _assigned(statement):
            comment = re.search(r"  # (.*)$", lines[(statement.end_lineno or 1) - 1])
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                found[name] = str(following.value.value)
            elif comment:
                found[name] = comment[1]
    return {name: " ".join(text.split()) for name, text in found.items()}


def _assigned(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return [statement.target.id]
    if isinstance(statement, ast.Assign):
        return [target.id for target in statement.targets if isinstance(target, ast.Name)]
    return []


def kinds(enum: type[IntEnum] | type[IntFlag], extra: dict[Any, str] | None = None) -> list[str]:
    """A table of the members; `extra` is what else there is to say of some."""
    said = said_of(enum)
    rows = []
    for member in enum:
        number = f"{member.value:#06x}" if issubclass(enum, IntFlag) else str(member.value)
        texts = [said.get(str(member.name), "").rstrip("."), (extra or {}).get(member, "")]
        rows.append((number, code(member.name), "; ".join(filter(None, texts))))
    return table(("number", "name", ""), rows)


def limits(module: ModuleType, *prefixes: str, fields_of: type | None = None) -> list[str]:
    """A table of the module's numbers whose names begin so, and of what the fields of a class are unless
    they are set."""
    said = said_of(module)
    rows = [
        (code(name), plain_number(value), said.get(name, ""))
        for name, value in vars(module).items()
        if name.startswith(prefixes) and isinstance(value, int | float) and name in _own_names(module)
    ]
    if fields_of is not None:
        texts = said_of(fields_of)
        rows += [
            (code(f"{fields_of.__name__}.{name}"), plain_number(value), texts.get(name, ""))
            for name, value in fields_of()._asdict().items()
        ]
    return table(("limit", "value", ""), rows)


def _own_names(module: ModuleType) -> set[str]:
    return {name for statement in ast.parse(inspect.getsource(module)).body for name in _assigned(statement)}


def layout(struct: Struct, names: Sequence[str]) -> list[str]:
    """A table of the fields of a struct, in order. Fails if there are more names than fields, or fewer."""
    order = struct.format[0]
    fields = re.findall(r"[0-9]*s|[a-zA-Z]", struct.format[1:])
    rows, offset = [], 0
    for field, name in zip(fields, names, strict=True):
        size = calcsize(order + field)
        rows.append((str(offset), str(size), name))
        offset += size
    return table(("offset", "bytes", "field"), rows)
