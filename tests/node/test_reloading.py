"""Which changes of a configuration take effect at once, and which wait for a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from hedgerow.federation.config import FederationConfig
from hedgerow.kinds import NODE
from hedgerow.node.config import Config
from hedgerow.node.config_loading import make_config
from hedgerow.node.reloading import ConfigChanges, changed_files, find_changes, merge, prints_of, settle_rooms
from hedgerow.node.values import AT_RELOAD, AT_RESTART, FOR_NEW, IF_RAISED
from hedgerow.parts import PARTS


def config(**values: object) -> Config:
    return make_config({name.replace("__", "."): value for name, value in values.items()}, None, NODE)


def changes(old: Config, new: Config) -> tuple[list[str], list[str]]:
    found = find_changes(old, new, PARTS)
    return [change.name for change in found.now], found.at_restart


def test_each_key_says_when_it_takes_effect() -> None:
    assert {key.takes_effect for key in NODE.known_keys} == {AT_RELOAD, AT_RESTART, FOR_NEW, IF_RAISED}


@pytest.mark.parametrize("name", ["packet_bytes", "receive_maximum", "topic_alias_maximum"])
def test_what_clients_were_told_may_only_grow(name: str) -> None:
    less, more = config(**{f"limits__{name}": 1000}), config(**{f"limits__{name}": 2000})
    assert changes(less, more) == ([f"limits.{name}"], [])
    assert changes(more, less) == ([], [f"limits.{name}"])
    kept = merge(more, less, find_changes(more, less, PARTS))
    assert getattr(kept.limits, name) == 2000
    assert changes(kept, less) == ([], [f"limits.{name}"])  # told again
    assert changes(kept, more) == ([], [])


def test_tls_that_comes_or_goes_waits() -> None:
    here, plain = __file__, config()
    tls = config(tls__certificate=here, tls__key=here)
    assert changes(plain, tls) == ([], ["tls.certificate", "tls.key"])
    assert merge(plain, tls, find_changes(plain, tls, PARTS)).tls is None
    assert changes(tls, plain)[1] == ["tls.certificate", "tls.key"]
    assert merge(tls, plain, find_changes(tls, plain, PARTS)).tls == tls.tls


def test_passwords_that_go_wait_and_strangers_stay_out() -> None:
    guarded, open_ = config(access__passwords=__file__), config(access__anonymous=True)
    found = find_changes(guarded, open_, PARTS)
    assert found == ConfigChanges([], ["access.passwords", "access.anonymous"])
    kept = merge(guarded, open_, found)
    assert kept.passwords == Path(__file__)
    assert not kept.anonymous


def test_a_room_of_which_something_waits_is_as_it_was() -> None:
    def room(neighbour: str, redundancy: int) -> Config:
        return config(federation__neighbours=[neighbour], federation__redundancy=redundancy)

    old = room("mqtt://a", 2)
    for new, expected in ((room("mqtt://b", 2), "mqtt://b"), (room("mqtt://b", 3), "mqtt://a")):
        found = find_changes(old, new, PARTS)
        assert [change.name for change in found.now] == ["federation.neighbours"]
        merged = merge(old, new, found)
        assert merged.of(FederationConfig).redundancy == new.of(FederationConfig).redundancy
        settled = settle_rooms(old, merged, found, PARTS).of(FederationConfig)
        assert str(settled.neighbours[0]).startswith(expected)
        assert settled.redundancy == 2


def test_a_part_that_is_new_waits() -> None:
    new = config(federation__neighbours=["mqtt://a"])
    assert changes(config(), new) == ([], ["federation.neighbours"])
    assert changes(new, config()) == ([], ["federation.neighbours"])


def test_files_are_known_by_what_is_in_them(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.write_text("topic read a\n")
    it = config(access__acl=str(rules))
    before = prints_of(it)
    rules.touch()
    assert changed_files(before, prints_of(it), ConfigChanges([], [])) == []
    rules.write_text("topic read b\n")
    assert [str(each) for each in changed_files(before, prints_of(it), ConfigChanges([], []))] == [
        "access.acl (its file)"
    ]
    rules.unlink()
    assert len(changed_files(before, prints_of(it), ConfigChanges([], []))) == 1


def test_secrets_are_not_shown() -> None:
    old, new = (
        config(),
        config(limits__connections=5, access__administrators=["ada"], access__passwords=__file__),
    )
    assert [str(change) for change in find_changes(old, new, PARTS).now] == [
        "access.administrators",
        "limits.connections (10000, now 5)",
    ]
