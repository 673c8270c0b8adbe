"""Topic lines: what they say, which topics they carry, and what those are called on the other side."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.bridges.topic_line import TopicLine, read_topic_line
from hedgerow.errors import ConfigError
from hedgerow.topics import MAX_TOPIC_BYTES, matches

LEVELS = st.sampled_from(["", "a", "b", "$SYS", "ü", "a b"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
PREFIXES = st.sampled_from(["", "a", "a/", "a/b/", "/", "$SYS/", "b/"])
PATTERNS = st.sampled_from(["", "#", "+", "/#", "a", "+/a", "a/#", "+/+", "b/+/a"])


@pytest.mark.parametrize(
    ("text", "line", "local_filter", "remote_filter"),
    [
        ("#", TopicLine("#", "out", 0, "", ""), "#", "#"),
        ("# in", TopicLine("#", "in", 0, "", ""), "#", "#"),
        ("# BOTH 2", TopicLine("#", "both", 2, "", ""), "#", "#"),
        ("a/+  both   1 L/", TopicLine("a/+", "both", 1, "L/", ""), "L/a/+", "a/+"),
        ("p out 0 L/ R/", TopicLine("p", "out", 0, "L/", "R/"), "L/p", "R/p"),
        ('p out 0 L/ ""', TopicLine("p", "out", 0, "L/", ""), "L/p", "p"),
        ('p out 0 "" R/', TopicLine("p", "out", 0, "", "R/"), "p", "R/p"),
        ('p out 0 "" ""', TopicLine("p", "out", 0, "", ""), "p", "p"),
        ('"" in 1 local remote', TopicLine("", "in", 1, "local", "remote"), "local", "remote"),
        (
            "clients/total in 0 test/mosquitto/org/ $SYS/broker/",
            TopicLine("clients/total", "in", 0, "test/mosquitto/org/", "$SYS/broker/"),
            "test/mosquitto/org/clients/total",
            "$SYS/broker/clients/total",
        ),
    ],
)
def test_lines_of_the_manual(text: str, line: TopicLine, local_filter: str, remote_filter: str) -> None:
    assert read_topic_line(text) == line
    assert (line.local_filter, line.remote_filter) == (local_filter, remote_filter)
    assert read_topic_line(str(line)) == line


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (TopicLine("#"), "#"),
        (TopicLine("#", "both"), "# both"),
        (TopicLine("#", "out", 1), "# out 1"),
        (TopicLine("#", "out", 0, "", "r/"), '# out 0 "" r/'),
        (TopicLine("", "in", 0, "l", "r"), '"" in 0 l r'),
    ],
)
def test_a_line_is_written_without_the_defaults_at_its_end(line: TopicLine, text: str) -> None:
    assert str(line) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no pattern"),
        ("# sideways", '"sideways" is none of out, in, both'),
        ("# out 3", '"3" is not a whole number from 0 to 2'),
        ("# out -1", '"-1" is not a whole number from 0 to 2'),
        ("# out one", '"one" is not a whole number from 0 to 2'),
        ("# out 0 a/ b/ c/", '"c/" is one word too many'),
        ("a#", "local side: '#' is not alone"),
        ("a+/b", "local side: '+' shares a level"),
        ("# out 0 a", "local side: '#' is not alone in the last level of \"a#\""),
        ("# out 0 a/ b", "remote side: '#' is not alone in the last level of \"b#\""),
        ("a out 0 +/", 'local side: topic name "+/" contains a wildcard'),
        ("a out 0 l/ #", 'remote side: topic name "#" contains a wildcard'),
        ('"" out 0 local', 'an empty pattern "" needs a local and a remote prefix'),
        ('"" out 0 "" remote', 'an empty pattern "" needs a local and a remote prefix'),
        ('""', 'an empty pattern "" needs a local and a remote prefix'),
        ('"a b" out', '"b"" is none of out, in, both'),
        ('"a" out', "begins with a quotation mark"),
        ("$share/group/a in", "a shared subscription"),
        ("a in 0 l/ $share/group/", "remote side: a shared subscription"),
        ("/" * 65_536, "local side: topic filter of 65536 bytes is longer than 65535"),
    ],
)
def test_a_wrong_line_is_told_in_words(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_topic_line(text)
    assert reason in str(caught.value)


def test_what_a_section_cannot_write_is_no_line() -> None:
    with pytest.raises(ConfigError, match="contains a blank"):
        TopicLine("a b")
    with pytest.raises(ConfigError, match="U\\+000A is not allowed"):
        TopicLine("a", local_prefix="l\ntopic #")


@pytest.mark.parametrize(
    ("text", "local", "remote"),
    [
        ("#", "a/b", "a/b"),
        ("# both 0 L/ R/", "L/a/b", "R/a/b"),
        ("# both 0 L/", "L/a", "a"),
        ('# both 0 "" R/', "a", "R/a"),
        ("# both 0 L/ R/", "L", "R"),  # L/# matches L
        ("# both 0 L/ R/", "L/", "R/"),
        ("/# both 0 L R", "L", "R"),
        ("+/t both 0 L/ R/s/", "L/x/t", "R/s/x/t"),
        ("x both 0 pre post", "prex", "postx"),
        ('"" both 0 one two', "one", "two"),
        ("clients/total in 0 m/ $SYS/broker/", "m/clients/total", "$SYS/broker/clients/total"),
    ],
)
def test_a_topic_has_a_name_on_each_side(text: str, local: str, remote: str) -> None:
    line = read_topic_line(text)
    assert (line.to_remote(local), line.to_local(remote)) == (remote, local)


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("a", "b"),
        ("#", "$SYS/broker/uptime"),
        ("# out 0 L/", "M/a"),
        ("# out 0 L/", "L"),  # it would have no name there
        ("# out 0 L/", "L/"),
        ("# out 0 L/", "L/$SYS/broker/bridge/new"),
        ("+/+ out 0 L/", "L/$SYS/a"),
        ("+ out 0 L/ " + "r" * 100 + "/", "L/" + "x" * (MAX_TOPIC_BYTES - 50)),
        ('"" out 0 one two', "one/more"),
    ],
)
def test_a_topic_that_is_not_of_the_line_has_none(text: str, local: str) -> None:
    assert read_topic_line(text).to_remote(local) is None


@given(PATTERNS, PREFIXES, PREFIXES, TOPICS)
def test_names_are_one_to_one_and_within_the_filters(
    pattern: str, local: str, remote: str, topic: str
) -> None:
    try:
        line = TopicLine(pattern, "both", 0, local, remote)
    except ConfigError:
        return
    for there, back, its, other in (
        (line.to_remote, line.to_local, line.local_filter, line.remote_filter),
        (line.to_local, line.to_remote, line.remote_filter, line.local_filter),
    ):
        name = there(topic)
        if name is not None:
            assert matches(its, topic)
            assert matches(other, name)
            assert back(name) == topic
        elif matches(its, topic) and local == remote:
            pytest.fail(f"{topic!r} has no name though nothing is renamed by {line}")


@pytest.mark.parametrize(
    ("direction", "is_out", "is_in"), [("out", True, False), ("in", False, True), ("both", True, True)]
)
def test_directions(direction: str, is_out: bool, is_in: bool) -> None:
    line = TopicLine("#", direction)
    assert (line.is_out, line.is_in) == (is_out, is_in)
