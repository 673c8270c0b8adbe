"""Every section reads back as it was, and whatever else arrives is refused in words."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from hedgerow.bridges.options import MAX_INTEGER, UNSUPPORTED, WORDS
from hedgerow.bridges.section import Backoff, FarAddress, Section, TopicLine, read_section
from hedgerow.errors import ConfigError

MINIMAL = "connection b\naddress far\ntopic #\n"

FREE_TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc", "Cn")), min_size=1, max_size=12).filter(
    lambda text: text == text.strip(" ")
)
LEVEL = st.text(st.characters(exclude_categories=("Cs", "Cc", "Cn"), exclude_characters='/+# "'), max_size=5)
NAMES = st.lists(LEVEL, min_size=1, max_size=3).map("/".join).filter(bool)
PATTERNS = st.one_of(
    NAMES, st.just("#"), NAMES.map(lambda name: f"{name}/#"), NAMES.map(lambda name: f"+/{name}")
)
PREFIXES = st.one_of(st.just(""), NAMES.map(lambda name: f"{name}/"))
TOPIC_LINES = st.one_of(
    st.builds(
        TopicLine, PATTERNS, st.sampled_from(["out", "in", "both"]), st.integers(0, 2), PREFIXES, PREFIXES
    ),
    st.builds(TopicLine, st.just(""), st.just("both"), st.integers(0, 2), NAMES, NAMES),
)
ADDRESSES = st.builds(
    FarAddress,
    st.one_of(st.sampled_from(["far", "a.example"]), st.ip_addresses().map(str)),
    st.integers(1, 65_535),
)
OPTIONAL_TEXT = st.none() | FREE_TEXT
SECTIONS = st.builds(
    Section,
    name=LEVEL.filter(bool),
    addresses=st.lists(ADDRESSES, min_size=1, max_size=3).map(tuple),
    topics=st.lists(TOPIC_LINES, min_size=1, max_size=4).map(tuple),
    round_robin=st.booleans(),
    local_clientid=OPTIONAL_TEXT,
    local_cleansession=st.none() | st.booleans(),
    start_type=st.sampled_from(["automatic", "lazy", "once"]),
    idle_timeout_s=st.integers(1, MAX_INTEGER),
    restart_timeout=st.builds(Backoff, st.floats(0.01, 3_600), st.floats(3_600, 7_200)),
    keepalive_interval_s=st.integers(5, 65_535),
    notifications=st.booleans(),
    notification_topic=st.none() | NAMES,
    remote_username=FREE_TEXT,
    remote_password=OPTIONAL_TEXT,
    bridge_capath=OPTIONAL_TEXT,
    bridge_outgoing_retain=st.booleans(),
    queue_bytes=st.integers(1024, 2**40),
    queue_age_s=st.floats(0.001, 1e9),
    probe_interval_s=st.floats(0.01, 3_600),
    replace=st.booleans(),
)


@given(SECTIONS)
def test_every_section_reads_back_as_it_was(section: Section) -> None:
    assert read_section(section.to_text()) == section
    assert read_section(section.to_text().encode()) == section
    assert read_section(section.to_json()) == section
    assert read_section(section.to_text()).to_text() == section.to_text()


SCRAPS = st.one_of(
    st.sampled_from(
        [*WORDS, *UNSUPPORTED, "#", '""', "out", "both", "1", "a/", "true", "::1:5", "[", "far:0"]
    ),
    st.text(max_size=4),
)
LINES = st.lists(st.lists(SCRAPS, max_size=6).map(" ".join), max_size=6).map("\n".join)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | SCRAPS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SCRAPS, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.sampled_from([*WORDS]) | st.text(max_size=4), JSON_VALUES, max_size=5).map(
    json.dumps
)


@given(
    st.one_of(st.text(), st.binary(), LINES, LINES.map(MINIMAL.__add__), OBJECTS, st.text().map("{".__add__))
)
def test_arbitrary_input_is_read_or_refused_in_words(payload: str | bytes) -> None:
    try:
        section = read_section(payload)
    except ConfigError as error:
        reason = str(error).encode()  # It is sent to a client, so it has to be UTF-8.
    else:
        reason = b""
        assert read_section(section.to_text()) == section
        assert read_section(section.to_json()) == section
    assert len(reason) < 2_000
