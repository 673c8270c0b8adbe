"""Whatever anybody is called: nobody's ids pass for those of a part of a node that has a kind of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.broker.ids import ALIAS, BROKER, KIND, alias_of, alias_of_broker, alias_of_link, alias_of_topic
from hedgerow.errors import ConfigError
from hedgerow.federation.document.numbers import PublicationId, fabric_id, is_of_gateway
from hedgerow.node.values import read_node_id
from hedgerow.origins import KINDS, OF_GATEWAY, OF_TOPIC

PREFIXES = tuple(f"{BROKER}{kind}{KIND}" for kind in KINDS)
GATEWAY = fabric_id("t", PublicationId(9, 1), b"x").origin

# Names that look like one of them, in whole and in part, and any others.
NAMES = st.one_of(
    st.sampled_from(
        [*KINDS, *PREFIXES, GATEWAY, "document:gateway", "document:gateway~#00000009", "gateway"]
    ),
    st.text("!:~@#/asdocumentgtwy0123", max_size=20),
    st.lists(st.sampled_from([BROKER, KIND, ALIAS, "@", "#", *KINDS, "gateway"]), max_size=6).map("".join),
    st.text(max_size=80),
)


def reserved(alias: str | None) -> str | None:
    return next((prefix for prefix in PREFIXES if alias is not None and alias.startswith(prefix)), None)


def test_each_kind_has_one_line() -> None:
    assert len(set(KINDS)) == len(KINDS)
    assert GATEWAY.startswith(f"{BROKER}{OF_GATEWAY}{KIND}")
    assert is_of_gateway(GATEWAY)


@given(NAMES, NAMES, NAMES)
def test_no_user_mobile_broker_or_link_is_called_so_that_its_ids_are_of_a_kind(
    name: str, node_id: str, origin: str
) -> None:
    for alias in (
        alias_of(name, origin),
        alias_of_broker(name, origin),
        alias_of_link(name, node_id, origin),
    ):
        assert reserved(alias) is None
        assert alias is None or not is_of_gateway(alias)


@given(st.sampled_from(KINDS), NAMES, NAMES, NAMES)
def test_a_link_of_one_kind_is_of_no_other(kind: str, name: str, node_id: str, origin: str) -> None:
    alias = alias_of_link(name, node_id, origin, kind)
    assert alias is None or reserved(alias) == f"{BROKER}{kind}{KIND}"
    assert alias is None or not is_of_gateway(alias)  # It would say at which node the link ends.


@given(st.text("ab/", min_size=1, max_size=6), st.text("ab/", min_size=1, max_size=6), NAMES, NAMES)
def test_another_topic_makes_no_id_of_another_kind(was: str, now: str, user: str, origin: str) -> None:
    """There and back again, too."""
    for given_origin in (alias_of(user, origin), alias_of_broker(user, origin)):
        if given_origin is None:
            continue
        there = alias_of_topic(was, now, given_origin)
        assert reserved(there) in (None, f"{BROKER}{OF_TOPIC}{KIND}")
        back = None if there is None else alias_of_topic(now, was, there)
        assert reserved(back) in (None, f"{BROKER}{OF_TOPIC}{KIND}")


@pytest.mark.parametrize("name", [*PREFIXES, GATEWAY, f"x{ALIAS}", f"{BROKER}x", f"x{KIND}"])
def test_no_node_is_called_so(name: str) -> None:
    with pytest.raises(ConfigError):
        read_node_id(name, Path())


def test_a_mobile_broker_called_document_has_another_origin_than_a_gateway() -> None:
    for name in ("document", "document:gateway", "!document:gateway"):
        for origin in ("#00000009", GATEWAY, GATEWAY.removeprefix(BROKER)):
            alias = alias_of_broker(name, origin)
            assert alias is not None
            assert not is_of_gateway(alias)
