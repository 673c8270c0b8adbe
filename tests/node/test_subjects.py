"""Subjects as text, beside what OpenSSL writes."""

from __future__ import annotations

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from hedgerow.node.subjects import write_subject


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        (((("commonName", "phone"),),), "CN=phone"),
        (
            ((("countryName", "DE"),), (("organizationName", "farm"),), (("commonName", "x"),)),
            "CN=x,O=farm,C=DE",
        ),
        (((("commonName", "a"), ("userId", "b")),), "UID=b+CN=a"),
        (((("commonName", 'a,b+"c";<>\\'),),), 'CN=a\\,b\\+\\"c\\"\\;\\<\\>\\\\'),
        (((("commonName", " a b "),),), "CN=\\ a b\\ "),
        (((("commonName", "#1"),),), "CN=\\#1"),
        (((("commonName", "ü\n"),),), "CN=\\C3\\BC\\0A"),
        (((("emailAddress", "a@b"),),), "emailAddress=a@b"),
    ],
)
def test_subject_as_text(subject: tuple[tuple[tuple[str, str], ...], ...], text: str) -> None:
    assert write_subject(subject) == text


def test_the_order_is_that_of_another_library() -> None:
    pairs = ((NameOID.COUNTRY_NAME, "DE"), (NameOID.ORGANIZATION_NAME, "a, b"), (NameOID.COMMON_NAME, "c"))
    theirs = x509.Name([x509.NameAttribute(oid, value) for oid, value in pairs]).rfc4514_string()
    names = (("countryName", "DE"), ("organizationName", "a, b"), ("commonName", "c"))
    assert write_subject([[pair] for pair in names]) == theirs


def test_no_value_forges_another_attribute() -> None:
    assert write_subject([[("commonName", "x,O=farm")]]) != write_subject(
        [[("organizationName", "farm")], [("commonName", "x")]]
    )
