"""The bytes of the document's wire, as its public implementations write them."""

from __future__ import annotations

from contextlib import suppress
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.federation.document.limits import MAX_NUMBER
from hedgerow.federation.document.wire import (
    Beacon,
    CoreAnn,
    DocumentEntry,
    DocumentWireError,
    FederatedPublication,
    MembAnn,
    RoutedPublication,
    decode,
    encode,
    is_federated,
)

numbers = st.integers(0, MAX_NUMBER)
entries: st.SearchStrategy[DocumentEntry] = st.one_of(
    st.builds(CoreAnn, numbers, numbers, numbers, numbers),
    st.builds(MembAnn, numbers, numbers, numbers),
    st.builds(RoutedPublication, numbers, numbers, numbers, st.binary(max_size=300)),
    st.builds(Beacon),
    st.builds(FederatedPublication, st.binary(max_size=300)),
)
topics = st.text(st.sampled_from("abc/ é$"), min_size=1, max_size=30)
PREFIXES = (
    "federator/core_ann/",
    "federator/memb_ann/",
    "federator/routing/",
    "federator/beacon/",
    "federated/",
)

VECTORS = [
    ("federator/core_ann/a/b", bytes.fromhex("02000000 07000000 01000000 05000000"), CoreAnn(2, 7, 1, 5)),
    ("federator/memb_ann/a/b", bytes.fromhex("02000000 07000000 05000000"), MembAnn(2, 7, 5)),
    (
        "federator/routing/a/b",
        bytes.fromhex("06000000 01020000 05000000 0200000000000000") + b"hi",
        RoutedPublication(6, 0x201, 5, b"hi"),
    ),
    ("federator/beacon/a/b", b"", Beacon()),
    ("federated/a/b", b"hi", FederatedPublication(b"hi")),
]


@pytest.mark.parametrize(("name", "payload", "entry"), VECTORS)
def test_vectors(name: str, payload: bytes, entry: DocumentEntry) -> None:
    assert decode(name, payload) == ("a/b", entry)
    assert encode("a/b", entry) == (name, payload)


@given(topics, entries)
def test_what_is_encoded_is_decoded(topic: str, entry: DocumentEntry) -> None:
    assert decode(*encode(topic, entry)) == (topic, entry)


@given(st.sampled_from(PREFIXES), topics, st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(prefix: str, topic: str, payload: bytes) -> None:
    try:
        name, entry = decode(prefix + topic, payload)
    except DocumentWireError:
        return
    assert name == topic
    if not isinstance(entry, Beacon):
        assert encode(topic, entry) == (prefix + topic, payload)


@given(st.text(max_size=40), st.binary(max_size=40))
def test_any_topic_is_read_or_refused(name: str, payload: bytes) -> None:
    with suppress(DocumentWireError):
        topic, entry = decode(name, payload)
        assert encode(topic, entry)[0] == name


@given(numbers, numbers, numbers, st.integers(0, 2**64 - 1), st.binary(max_size=40))
def test_a_length_that_is_not_that_of_the_payload_is_refused(
    origin: int, sequence: int, sender: int, length: int, payload: bytes
) -> None:
    if length == len(payload):
        length += 1
    with pytest.raises(DocumentWireError, match="malformed"):
        decode("federator/routing/t", pack("<3IQ", origin, sequence, sender, length) + payload)


@pytest.mark.parametrize(
    "name", ["federator/core_ann/", "federator/core_ann", "federated/a/+", "federated/#"]
)
def test_without_a_topic_it_is_nothing(name: str) -> None:
    with pytest.raises(DocumentWireError):
        decode(name, b"")


def test_what_federators_say_is_no_topic_of_a_mesh() -> None:
    assert is_federated("farm/7")
    for topic in ("$SYS/x", "hedgerow/x", "federator/beacon/x", "federated/x"):
        assert not is_federated(topic)
