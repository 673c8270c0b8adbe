"""A plan is published as JSON, and read within bounds, whatever is published there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.hot.plan import MAX_PLAN_TOPICS, HotPlan
from hedgerow.hot.plan_codec import MAX_PLAN_BYTES, decode_plan, encode_plan

NOW = 1_000_000.0


def _document(**changes: Any) -> bytes:
    document = {"version": 1, "plan": 7, "expires_at": NOW + 60, "keep": ["farm/soil", "farm/wind"]}
    return json.dumps(document | changes).encode()


def test_what_is_written_is_read() -> None:
    plan = HotPlan(frozenset({"farm/soil", "farm/é"}), 7, NOW + 60)
    payload = encode_plan(plan, NOW)
    assert json.loads(payload) == {
        "version": 1,
        "plan": 7,
        "expires_at": NOW + 60,
        "keep": ["farm/soil", "farm/é"],
    }
    assert decode_plan(payload, NOW + 20) == plan


def test_unknown_keys_are_passed_over() -> None:
    assert decode_plan(_document(by="the pipeline"), NOW) == HotPlan(
        frozenset({"farm/soil", "farm/wind"}), 7, NOW + 60
    )


def test_a_plan_may_keep_nothing() -> None:
    assert decode_plan(_document(keep=[]), NOW) == HotPlan(frozenset(), 7, NOW + 60)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "it is not JSON"),
        (b"\xff\xfe", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[]", "it is not a JSON object"),
        (b" " * (MAX_PLAN_BYTES + 1), f"{MAX_PLAN_BYTES + 1} bytes, over {MAX_PLAN_BYTES}"),
        (_document(version=2), "the format's version is not 1"),
        (_document(version=True), "the format's version is not 1"),
        (_document(version=1.0), "the format's version is not 1"),
        (_document(plan=-1), "plan is not a whole number of at most 63 bits"),
        (_document(plan=2**63), "plan is not a whole number of at most 63 bits"),
        (_document(plan=7.0), "plan is not a whole number of at most 63 bits"),
        (_document(plan=True), "plan is not a whole number of at most 63 bits"),
        (_document(expires_at=float("nan")), "expires_at is not a time"),
        (_document(expires_at=float("inf")), "expires_at is not a time"),
        (_document(expires_at=10**400), "expires_at is not a time"),
        (_document(expires_at="tomorrow"), "expires_at is not a time"),
        (_document(expires_at=True), "expires_at is not a time"),
        (_document(expires_at=NOW), "it has expired"),
        (_document(keep="farm/soil"), "keep is not a list"),
        (_document(keep=["farm/soil", 7]), "keep has something that is not a string"),
        (_document(keep=["farm/#"]), "keep has something that is not a topic name"),
        (_document(keep=[""]), "keep has something that is not a topic name"),
        (_document(keep=["\ud800"]), "keep has something that is not a topic name"),
        (
            _document(keep=[str(number) for number in range(MAX_PLAN_TOPICS + 1)]),
            f"{MAX_PLAN_TOPICS + 1} topics, over {MAX_PLAN_TOPICS}",
        ),
    ],
)
def test_what_is_no_plan_is_refused_with_the_reason(payload: bytes, reason: str) -> None:
    assert decode_plan(payload, NOW) == reason


@pytest.mark.parametrize("key", ["version", "plan", "expires_at", "keep"])
def test_every_key_is_needed(key: str) -> None:
    document = json.loads(_document())
    del document[key]
    assert isinstance(decode_plan(json.dumps(document).encode(), NOW), str)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["version", "plan", "expires_at", "keep"]), JSON))
def test_no_document_raises(changes: dict[str, Any]) -> None:
    read = decode_plan(_document(**changes), NOW)
    assert isinstance(read, str) or decode_plan(encode_plan(read, NOW), NOW) == read


@given(st.binary())
def test_no_bytes_raise(payload: bytes) -> None:
    assert isinstance(decode_plan(payload, NOW), str)


@pytest.mark.parametrize(
    "plan",
    [
        HotPlan(frozenset({"farm/#"}), 1, NOW + 1),
        HotPlan(frozenset({"\ud800"}), 1, NOW + 1),
        HotPlan(frozenset(), -1, NOW + 1),
        HotPlan(frozenset(), 1, NOW),
        HotPlan(frozenset(), 1, float("inf")),
    ],
)
def test_what_nobody_would_follow_is_not_written(plan: HotPlan) -> None:
    with pytest.raises(ValueError, match="not a plan"):
        encode_plan(plan, NOW)


def test_the_largest_number_of_topics_fits() -> None:
    keep = frozenset(f"{number:0128}" for number in range(MAX_PLAN_TOPICS))
    payload = encode_plan(HotPlan(keep, 1, NOW + 1), NOW)
    assert len(payload) <= MAX_PLAN_BYTES
    assert decode_plan(payload, NOW) == HotPlan(keep, 1, NOW + 1)
