"""Rights to any topic of a filter, beside the rights to each topic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.broker.access import Access, Acl
from hedgerow.broker.filter_rights import in_common
from hedgerow.topics import TopicTree, covers, matches

LEVELS = ("a", "b", "$c", "")
TOPICS = list(LEVELS[:3])
TOPICS += [f"{first}/{second}" for first in LEVELS[:3] for second in LEVELS]
TOPICS += [f"{first}/{second}/{third}" for first in LEVELS[:3] for second in "ab" for third in "ab"]

filters = st.builds(
    lambda levels, end: "/".join(levels + end) or "#",
    st.lists(st.sampled_from(["a", "b", "$c", "+"]), max_size=3),
    st.sampled_from([[], ["#"]]),
)


@given(filters, filters)
def test_what_two_filters_have_in_common(one: str, other: str) -> None:
    common = in_common(one, other)
    both = [topic for topic in TOPICS if matches(one, topic) and matches(other, topic)]
    assert [topic for topic in TOPICS if common is not None and matches(common, topic)] == both
    assert in_common(other, one) == common


@given(st.sets(filters, max_size=6), filters)
def test_a_tree_finds_those_with_something_in_common(stored: set[str], asked: str) -> None:
    tree: TopicTree[str, None] = TopicTree()
    for each in stored:
        tree.set(each, each, None)
    found = [key for key, _ in tree.match_common(asked)]
    assert sorted(found) == sorted(each for each in stored if in_common(each, asked) is not None)


lines = st.lists(
    st.tuples(st.sampled_from(["read", "write", "readwrite", "deny"]), filters), min_size=1, max_size=6
)


@given(lines, filters)
def test_whoever_has_a_right_to_a_topic_has_one_to_its_filters(
    rules: list[tuple[str, str]], asked: str
) -> None:
    text = "user u\n" + "\n".join(f"topic {word} {each}" for word, each in rules)
    access = Access(Acl.parse(text, "acl"))
    rights = access.filter_rights("u", "c")
    has_any = rights is None or rights.has_any(asked)
    allowed = [
        topic
        for topic in TOPICS
        if matches(asked, topic) and (access.may_read("u", "c", topic) or access.may_write("u", "c", topic))
    ]
    assert has_any or not allowed
    denied = [each for word, each in rules if word == "deny"]
    if any(covers(each, asked) for each in denied) or all(word == "deny" for word, _ in rules):
        assert not has_any


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("farm/1/soil", True),
        ("farm/#", True),
        ("#", True),
        ("+/secret", True),
        ("home/safe", False),
        ("home/#", False),
        ("farm/safe/code", False),
        ("own/u/c/x", True),
        ("own/+/c/x", True),
        ("own/other/c/x", False),
        ("own/u/denied", False),
    ],
)
def test_lines_of_topics_and_patterns(asked: str, expected: bool) -> None:
    acl = "\n".join(
        (
            "topic read other/#",
            "user u",
            "topic read farm/#",
            "topic deny farm/safe/#",
            "topic write up",
            "user v",
            "topic readwrite home/#",
            "pattern write own/%u/#",
            "pattern deny own/%u/denied",
        )
    )
    rights = Access(Acl.parse(acl, "acl")).filter_rights("u", "c")
    assert rights is not None
    assert rights.has_any(asked) is expected


@pytest.mark.parametrize("acl", [None, "user u\ntopic readwrite #", "pattern read #"])
def test_whoever_has_a_right_to_everything(acl: str | None) -> None:
    access = Access(Acl.parse(acl, "acl") if acl is not None else None)
    assert access.filter_rights("u", "c") is None
    assert (access.filter_rights("v", "c") is None) is (acl is None or "pattern" in acl)
