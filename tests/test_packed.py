"""A packed mapping is a dictionary, whatever is done to it."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.packed import PackedMap, PartlyPacked

KEYS = st.text("abcä/+", max_size=4)
VALUES = st.binary(max_size=3)
STEPS = st.lists(st.tuples(st.sampled_from(["set", "pop", "pack", "unpack"]), KEYS, VALUES), max_size=80)


@settings(max_examples=200)
@given(STEPS)
def test_it_has_what_was_put_into_it(steps: list[tuple[str, str, bytes]]) -> None:
    packed, model = PackedMap(), dict[str, bytes]()
    for step, key, value in steps:
        if step == "pop":
            assert packed.pop(key) == model.pop(key, None)
        else:
            packed.set(key, value)
            model[key] = value
        assert packed.get(key) == model.get(key)
        assert (key in packed) == (key in model)
    assert len(packed) == len(model)
    assert sorted(packed) == sorted(model)


@settings(max_examples=200)
@given(STEPS)
def test_packing_changes_nothing_that_is_seen(steps: list[tuple[str, str, bytes]]) -> None:
    partly: PartlyPacked[bytes] = PartlyPacked(bytes, lambda key, data: data)
    model: dict[str, bytes] = {}
    does: dict[str, Any] = {"pack": partly.pack, "unpack": partly.unpack}
    for step, key, value in steps:
        if step == "set":
            partly[key] = model[key] = value
        elif step == "pop":
            assert partly.pop(key, None) == model.pop(key, None)
        else:
            does[step](key)
        assert partly.get(key) == model.get(key)
    assert dict(partly) == model
    assert len(partly) == len(model)


def test_the_order_is_that_in_which_the_keys_came() -> None:
    packed = PackedMap()
    for number in range(1_000):
        packed.set(str(number), b"")
    for number in range(0, 1_000, 3):
        packed.pop(str(number))
    assert list(packed) == [str(number) for number in range(1_000) if number % 3]


def test_values_of_another_length_time_and_again_take_no_more_room() -> None:
    packed = PackedMap()
    for number in range(10_000):
        packed.set("key", bytes(number % 7))
    assert packed.get("key") == bytes(9_999 % 7)
    assert packed.__sizeof__() < 1_000
