"""The sections of an agent's bridges."""

from __future__ import annotations

import pytest

from hedgerow.agent.io.broker_list import read_words
from hedgerow.agent.io.sections import (
    BridgeSettings,
    bridge_name,
    check_sections,
    far_of,
    from_local_side,
    make_section,
    mirrored,
)
from hedgerow.bridges.topic_line import TopicLine, read_topic_line
from hedgerow.errors import ConfigError


def test_users_binds_and_options_are_in_the_section() -> None:
    (far,) = read_words(["far=mqtt://user:pass@10.0.0.7:1885"])
    settings = BridgeSettings(options=(("restart_timeout", "3"),))
    section = make_section(
        "agent.far", far, settings.topics, settings, bind="127.0.0.2", further=(("restart_timeout", "9"),)
    )
    assert str(section.addresses[0]) == "10.0.0.7:1885"
    assert (section.remote_username, section.remote_password) == ("user", "pass")
    assert section.bridge_bind_address == "127.0.0.2"
    assert section.restart_timeout.base_s == 3
    assert section.topics == (TopicLine("#", "both", 1),)
    assert section.replace


def test_contradictions_are_found_before_any_bridge_is_made() -> None:
    entries = read_words(["a=mqtts://h"])
    with pytest.raises(
        ConfigError, match=r"^bridges to a: mqtts:// needs ca_file, or the option bridge_cafile"
    ):
        check_sections(entries, BridgeSettings())
    check_sections(entries, BridgeSettings(options=(("bridge_capath", "/etc/ssl/certs"),)))


def test_names() -> None:
    assert far_of(bridge_name("x.y")) == "x.y"
    assert far_of("mine") is None


@pytest.mark.parametrize("text", ["# both 1", "x/# out 2 here/ there/", "x in 0", '"" both 1 here there'])
def test_a_mirrored_line_carries_the_same_the_other_way(text: str) -> None:
    line = read_topic_line(text)
    other = mirrored(line)
    assert mirrored(other) == line
    assert (other.is_in, other.is_out) == (line.is_out, line.is_in)
    for topic in ("x", "x/y", "here/x/y", "here", "there/x/y"):
        assert other.to_local(topic) == line.to_remote(topic)


@pytest.mark.parametrize("text", ["# both 1", "x/# out 2 here/ there/", "x in 0", '"" both 1 here there'])
def test_two_lines_with_a_node_between_them_are_as_one(text: str) -> None:
    line = read_topic_line(text)
    inner = from_local_side(line)
    assert (inner.is_in, inner.is_out) == (line.is_out, line.is_in)
    for topic in ("x", "x/y", "here/x/y", "here", "there/x/y"):
        between = inner.to_local(topic)
        assert (None if between is None else line.to_remote(between)) == line.to_remote(topic)
