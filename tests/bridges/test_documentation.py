"""docs/bridges.md says what the code does."""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, fields

from hedgerow.bridges.options import OPTIONS, UNSUPPORTED
from hedgerow.bridges.section import Section, read_section
from tests.docs.markdown import read_blocks
from tests.programs import ROOT

PAGE = ROOT / "docs/bridges.md"
DOCUMENTATION = PAGE.read_text()


def documented_options() -> dict[str, str]:
    """The defaults of the table, by word."""
    table = DOCUMENTATION.split("| word | default | |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \|(.*?)\| .+ \|$", table, re.MULTILINE)
    return {word: default.strip() for words, default in rows for word in re.findall("`([a-z_]+)`", words)}


def test_every_option_is_there_in_order_and_nothing_else() -> None:
    assert list(documented_options()) == list(OPTIONS)


def test_defaults_are_the_defaults() -> None:
    documented = documented_options()
    defaults = {field.name: field.default for field in fields(Section)}
    for word, option in OPTIONS.items():
        default = defaults[option.field]
        if default is not MISSING and default is not None:
            assert documented[word] == f"`{option.kind.write(default)}`", word


def test_what_is_not_supported_is_named() -> None:
    refused = DOCUMENTATION.split("refused by name:")[1].split("\n\n")[0]
    assert set(re.findall(r"`([a-z_.0-9]+)`", refused)) == set(UNSUPPORTED)


def test_the_sections_can_be_read() -> None:
    blocks = read_blocks(PAGE, "docs/bridges.md")
    (text,) = (block.text for block in blocks if block.options.get("file") == "north.conf")
    as_json, result, state = (json.loads(block.text) for block in blocks if block.language == "json")
    assert read_section(json.dumps(as_json)).topics == read_section(text).topics
    assert result.keys() == {"command", "connection", "ok", "reason"}
    for direction in ("out", "in"):
        published = state[direction].pop("published")
        assert published == sum(state[direction].values())
