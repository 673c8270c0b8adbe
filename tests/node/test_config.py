"""What rooms add to the configuration of a node, and how they get it back."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import pytest

from hedgerow.errors import ConfigError
from hedgerow.node.config import Chapter, Config, Given
from hedgerow.node.config_loading import NodeKind, add_arguments, from_arguments, make_config
from hedgerow.node.values import Key, read_boolean, read_text


@dataclass(frozen=True)
class Pond:
    name: str = "none"
    frozen: bool = False


def make_pond(given: Given) -> Pond:
    table = given.table("pond")
    if table.get("frozen") and "name" not in table:
        raise ConfigError(f"{given.where('pond.frozen')}: which pond?")
    return Pond(**table)


def check_pond(config: Config, given: Given) -> None:
    if config.of(Pond).name == config.id:
        raise ConfigError(f"{given.where('pond.name')}: is the node's own name")


KEYS = (
    Key("pond.name", "--pond", "NAME", read_text, "its name"),
    Key("pond.frozen", "--frozen", "", read_boolean, "in winter"),
)
CHAPTERS = (Chapter(Pond, KEYS, make_pond, check_pond),)
KIND = NodeKind("hedgerow test", CHAPTERS, Config())


def load(**values: object) -> Config:
    return make_config(values, None, KIND)


def error_of(**values: object) -> str:
    with pytest.raises(ConfigError) as raised:
        load(**values)
    return str(raised.value)


def test_settings_are_given_by_their_class() -> None:
    config = Config().with_rooms(Pond("duck"), 7)
    assert config.of(Pond) == Pond("duck")
    assert config.of(int) == 7
    assert config.with_rooms(Pond("frog")).of(Pond) == Pond("frog")


def test_settings_that_nobody_gave_are_those_of_the_class() -> None:
    assert Config().of(Pond) == load().of(Pond) == Pond()
    assert load() == Config()


def test_a_chapter_is_read_from_its_table_and_its_flags() -> None:
    assert load(pond={"name": "duck", "frozen": True}).of(Pond) == Pond("duck", True)
    parser = argparse.ArgumentParser()
    add_arguments(parser, KIND)
    given = parser.parse_args(["--pond", "duck", "--frozen"])
    assert from_arguments(given, KIND).of(Pond) == Pond("duck", True)


def test_a_chapter_is_checked_by_itself_and_with_the_rest() -> None:
    assert error_of(pond={"frozen": True}) == "pond.frozen: which pond?"
    assert error_of(id="duck", pond={"name": "duck"}) == "pond.name: is the node's own name"
    assert error_of(id="none") == "pond.name: is the node's own name"  # whether or not anything was given


def test_a_kind_may_not_have_every_key() -> None:
    kind = NodeKind("hedgerow test", CHAPTERS, Config(), takes=lambda name: name != "pond.frozen")
    with pytest.raises(ConfigError, match=r"^pond\.frozen: is no key of hedgerow test$"):
        make_config({"pond": {"frozen": True}}, None, kind)
    with pytest.raises(ConfigError, match=r"^pond: is a table: \[pond\], with its keys below$"):
        make_config({"pond": 3}, None, kind)
