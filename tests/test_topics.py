"""Validation by clause; matching, alone and in the tree, against a naive model."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.errors import TopicError
from hedgerow.topics import (
    FilterTable,
    TopicTree,
    covers,
    is_wildcard,
    matches,
    split_shared,
    validate_filter,
    validate_name,
)

GOOD_NAMES = [
    "a",
    "/",
    "//",
    "a/b",
    "/a",
    "a/",
    " ",
    "a b/ü/漢/😀",
    "$SYS/broker",
    "$",
    "\ufeffa",
    "\x01",
    "x" * 65_535,
    "/" * 65_535,
]

# (what is wrong, topic, clause)
BAD_IN_BOTH = [
    ("empty", "", "MQTT-4.7.3-1"),
    ("null", "a\0b", "MQTT-4.7.3-2"),
    ("surrogate", "a/\ud800", "MQTT-1.5.4-1"),
    ("too long", "x" * 65_536, "MQTT-4.7.3-3"),
    ("too long in bytes", "ü" * 32_768, "MQTT-4.7.3-3"),
]
BAD_NAMES = [
    *BAD_IN_BOTH,
    ("hash", "a/#", "MQTT-3.3.2-2"),
    ("plus", "+", "MQTT-3.3.2-2"),
    ("plus in a level", "a+b", "MQTT-3.3.2-2"),
]
BAD_FILTERS = [
    *BAD_IN_BOTH,
    ("hash not last", "a/#/b", "MQTT-4.7.1-1"),
    ("hash not alone", "a/b#", "MQTT-4.7.1-1"),
    ("hash before text", "#a", "MQTT-4.7.1-1"),
    ("two hashes", "##", "MQTT-4.7.1-1"),
    ("hash first", "#/a", "MQTT-4.7.1-1"),
    ("plus not alone", "a/b+", "MQTT-4.7.1-2"),
    ("plus before text", "+a/b", "MQTT-4.7.1-2"),
    ("two pluses", "++", "MQTT-4.7.1-2"),
]


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_good_name_is_returned_and_is_a_filter_too(name: str) -> None:
    assert validate_name(name) == name
    assert validate_filter(name) == name
    assert matches(name, name)


@pytest.mark.parametrize(
    "topic_filter", ["#", "+", "+/+", "/+", "+/#", "a/+/b/#", "$SYS/#", "$share/g/a/#", "+/a/+"]
)
def test_good_filter_is_returned(topic_filter: str) -> None:
    assert validate_filter(topic_filter) == topic_filter
    assert is_wildcard(topic_filter)


@pytest.mark.parametrize(
    ("name", "clause"), [case[1:] for case in BAD_NAMES], ids=[f"{case[2]}-{case[0]}" for case in BAD_NAMES]
)
def test_bad_name_says_which_rule_it_breaks(name: str, clause: str) -> None:
    with pytest.raises(TopicError, match=clause):
        validate_name(name)


@pytest.mark.parametrize(
    ("topic_filter", "clause"),
    [case[1:] for case in BAD_FILTERS],
    ids=[f"{case[2]}-{case[0]}" for case in BAD_FILTERS],
)
def test_bad_filter_says_which_rule_it_breaks(topic_filter: str, clause: str) -> None:
    with pytest.raises(TopicError, match=clause):
        validate_filter(topic_filter)


@pytest.mark.parametrize(
    ("topic_filter", "group", "rest"),
    [
        ("$share/g/a/b", "g", "a/b"),
        ("$share/g//", "g", "/"),
        ("$share/g/$SYS/#", "g", "$SYS/#"),
        ("a/b", None, "a/b"),
        ("$share", None, "$share"),
        ("$shared/g/a", None, "$shared/g/a"),
        ("/$share/g/a", None, "/$share/g/a"),
    ],
)
def test_shared_filter_is_split(topic_filter: str, group: str | None, rest: str) -> None:
    assert split_shared(topic_filter) == (group, rest)


@pytest.mark.parametrize(
    ("topic_filter", "clause"),
    [
        ("$share/", "MQTT-4.8.2-1"),
        ("$share//a", "MQTT-4.8.2-1"),
        ("$share/g", "MQTT-4.8.2-2"),
        ("$share/g/", "MQTT-4.8.2-2"),
        ("$share/+/a", "MQTT-4.8.2-2"),
        ("$share/a#/b", "MQTT-4.8.2-2"),
    ],
)
def test_shared_filter_without_a_name_or_filter(topic_filter: str, clause: str) -> None:
    with pytest.raises(TopicError, match=clause):
        split_shared(topic_filter)


@pytest.mark.parametrize(
    ("topic_filter", "name", "expected"),
    [
        # §4.7.1.2
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/tennis/player1/#", "sport/tennis/player10", False),
        ("sport/#", "sport", True),
        ("#", "a/b", True),
        ("#", "/", True),
        # §4.7.1.3
        ("sport/tennis/+", "sport/tennis/player1", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        # §4.7.2: wildcards do not reach into topics that begin with $.
        ("#", "$SYS/a", False),
        ("+/monitor/Clients", "$SYS/monitor/Clients", False),
        ("$SYS/#", "$SYS/a", True),
        ("$SYS/#", "$SYS", True),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
        ("a/+", "a/$SYS", True),
        ("a/#", "a/$SYS", True),
        # §4.7.3: case and spaces count, levels are compared whole.
        ("ACCOUNTS", "Accounts", False),
        ("Accounts payable", "Accounts payable", True),
        ("/finance", "finance", False),
        ("a/b", "a/b/c", False),
        ("a/b/c", "a/b", False),
    ],
)  # fmt: skip
def test_examples_of_the_specification(topic_filter: str, name: str, expected: bool) -> None:
    assert matches(topic_filter, name) is expected
    filters: TopicTree[str, int] = TopicTree()
    filters.set(topic_filter, "key", 1)
    assert filters.match(name) == ([("key", 1)] if expected else [])
    names: TopicTree[str, int] = TopicTree()
    names.set(name, "key", 1)
    assert list(names.match_filter(topic_filter)) == ([("key", 1)] if expected else [])


# Few letters and few levels, so that filters and names often meet.
levels = st.sampled_from(["", "a", "b", "$x"])
names = st.lists(levels, min_size=1, max_size=4).map("/".join).filter(bool)
filters = (
    st.tuples(st.lists(levels | st.just("+"), max_size=3), st.sampled_from([[], ["#"], ["a"], ["+"]]))
    .map(lambda parts: "/".join([*parts[0], *parts[1]]))
    .filter(bool)
)
keys = st.sampled_from("kl")


def naive_match(pattern: list[str], name: list[str]) -> bool:
    """§4.7.1 as a recursion over levels."""
    if pattern == ["#"]:
        return True
    if not pattern or not name:
        return pattern == name
    return pattern[0] in ("+", name[0]) and naive_match(pattern[1:], name[1:])


@settings(max_examples=500)
@given(filters, names)
def test_matches_agrees_with_the_naive_model(topic_filter: str, name: str) -> None:
    hidden = name.startswith("$") and topic_filter[0] in "+#"
    expected = not hidden and naive_match(topic_filter.split("/"), name.split("/"))
    assert matches(topic_filter, name) == expected


@given(st.dictionaries(st.tuples(filters, keys), st.integers(), max_size=12), names)
def test_tree_of_filters_finds_each_that_matches_once(entries: dict[tuple[str, str], int], name: str) -> None:
    tree: TopicTree[tuple[str, str], int] = TopicTree()
    for (topic_filter, key), value in entries.items():
        assert tree.set(topic_filter, (topic_filter, key), value)
    expected = [(place, value) for place, value in entries.items() if matches(place[0], name)]
    assert sorted(tree.match(name)) == sorted(expected)


@given(st.dictionaries(st.tuples(names, keys), st.integers(), max_size=12), filters)
def test_tree_of_names_finds_each_that_the_filter_matches_once(
    entries: dict[tuple[str, str], int], topic_filter: str
) -> None:
    tree: TopicTree[tuple[str, str], int] = TopicTree()
    for (name, key), value in entries.items():
        tree.set(name, (name, key), value)
    expected = [(place, value) for place, value in entries.items() if matches(topic_filter, place[0])]
    assert sorted(tree.match_filter(topic_filter)) == sorted(expected)


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        ("a", "a", True),
        ("#", "a/+/b/#", True),
        ("#", "#", True),
        ("+", "#", False),
        ("#", "+/#", True),
        ("+/#", "#", False),
        ("a/#", "a", True),
        ("a/#", "a/#", True),
        ("a/+", "a/#", False),
        ("a/+", "a/+", True),
        ("a/b", "a/+", False),
        ("+/+", "a/+", True),
        ("+/+", "a/b/c", False),
        ("a/+/#", "a/b", True),
        ("a/+/#", "a", False),
        ("a/+/#", "a/#", False),
        # §4.7.2
        ("#", "$SYS/a", False),
        ("+/a", "$SYS/a", False),
        ("$SYS/#", "$SYS/+", True),
        ("a/#", "a/$x", True),
    ],
)
def test_a_filter_covers_another(wide: str, narrow: str, expected: bool) -> None:
    assert covers(wide, narrow) is expected


# They match the same names, since no name is empty.
NOT_SAID_TO_COVER = (("+/#", "#"), ("/+/#", "/#"), ("+/+/#", "/#"))


@settings(max_examples=500)
@given(filters, filters)
def test_covers_is_what_matching_says(wide: str, narrow: str) -> None:
    """A level "z" stands for any text: what no filter names, only a wildcard matches."""
    endings = ["", "/z", "/z/z", "/a", "/a/b"] if narrow.endswith("#") else [""]
    stem = narrow.removesuffix("#").removesuffix("/") if narrow.endswith("#") else narrow
    spelled = [(stem + ending).replace("+", "z").lstrip("/" if narrow == "#" else "") for ending in endings]
    spelled = [name for name in spelled if name and matches(narrow, name)]
    expected = all(matches(wide, name) for name in spelled) and (wide, narrow) not in NOT_SAID_TO_COVER
    assert covers(wide, narrow) == expected


@pytest.mark.parametrize(("wide", "narrow"), NOT_SAID_TO_COVER)
def test_what_could_be_said_to_cover_and_is_not(wide: str, narrow: str) -> None:
    assert not covers(wide, narrow)


@given(st.sets(filters, max_size=12), filters)
def test_tree_finds_each_wider_filter_once(stored: set[str], narrow: str) -> None:
    tree: TopicTree[str, None] = TopicTree()
    for topic_filter in stored:
        tree.set(topic_filter, topic_filter, None)
    expected = [topic_filter for topic_filter in stored if covers(topic_filter, narrow)]
    assert sorted(key for key, _ in tree.match_wider(narrow)) == sorted(expected)


def test_a_filter_of_many_wildcards_is_looked_up_quickly() -> None:
    tree: TopicTree[str, None] = TopicTree()
    wildcards = "/".join(["+"] * 100)
    tree.set(wildcards, "key", None)
    assert tree.match_wider(wildcards) == [("key", None)]
    assert tree.visited == 100


# Few places, so that what is removed is often there, beside a neighbour that must stay.
places = st.sampled_from(["a", "a/b", "a/b/c", "a/+", "a/#", "/", "b"])
steps = st.lists(st.tuples(st.sampled_from(["set", "remove"]), places, keys), max_size=40)


@given(steps)
def test_tree_behaves_like_a_dictionary_and_keeps_no_empty_node(
    sequence: list[tuple[str, str, str]],
) -> None:
    tree: TopicTree[str, int] = TopicTree()
    model: dict[tuple[str, str], int] = {}
    for number, (step, topic, key) in enumerate(sequence):
        if step == "set":
            assert tree.set(topic, key, number) == ((topic, key) not in model)
            model[topic, key] = number
        else:
            assert tree.remove(topic, key) == model.pop((topic, key), None)
        assert all(tree.get(*place) == value for place, value in model.items())
        assert tree.get(topic, key) == model.get((topic, key))
        assert len(tree) == len(model)
        assert count_nodes(tree) == len(
            {
                tuple(topic.split("/")[:depth])
                for topic, _ in model
                for depth in range(1, topic.count("/") + 2)
            }
        )
    for topic, key in list(model):
        tree.remove(topic, key)
    assert count_nodes(tree) == 0


@given(steps, names)
def test_table_of_filters_behaves_like_a_dictionary_and_finds_each_that_matches(
    sequence: list[tuple[str, str, str]], name: str
) -> None:
    table: FilterTable[str, int] = FilterTable()
    model: dict[tuple[str, str], int] = {}
    for number, (step, topic_filter, key) in enumerate(sequence):
        if step == "set":
            assert table.replace(topic_filter, key, number) == model.get((topic_filter, key))
            model[topic_filter, key] = number
        else:
            assert table.remove(topic_filter, key) == model.pop((topic_filter, key), None)
        assert all(table.get(*place) == value for place, value in model.items())
        assert table.get(topic_filter, key) == model.get((topic_filter, key))
        assert len(table) == len(model)
        for each in (name, "a/b", "b"):
            found = [(place[1], value) for place, value in model.items() if matches(place[0], each)]
            visited = table.visited
            assert sorted(table.match(each)) == sorted(found)
            assert table.visited >= visited + len(found)


def count_nodes(tree: TopicTree[str, int]) -> int:
    """Nodes below the root; a table that holds nothing is None, never empty."""
    count = -1
    stack = [tree.root]
    while stack:
        node = stack.pop()
        count += 1
        assert node.children is None or node.children
        assert node.values is None or node.values
        stack.extend((node.children or {}).values())
    return count
