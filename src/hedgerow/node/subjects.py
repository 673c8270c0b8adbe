"""The subject of a certificate as text: RFC 2253, as OpenSSL writes it, and Mosquitto for users' names."""

from __future__ import annotations

from collections.abc import Sequence

# From the names that Python's ssl uses to those that stand in a subject.
SHORT = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "givenName": "GN",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "street",
    "surname": "SN",
    "userId": "UID",
}
_SPECIAL = ',+"\\<>;'
_BACKSLASH = "\\"

Subject = Sequence[Sequence[tuple[str, str]]]


def write_subject(subject: Subject) -> str:
    """As in "CN=phone,O=farm": what stands last in the certificate comes first."""
    return ",".join("+".join(map(_write, reversed(part))) for part in reversed(subject))


def _write(attribute: tuple[str, str]) -> str:
    name, value = attribute
    return f"{SHORT.get(name, name)}={_escape(value)}"


def _escape(value: str) -> str:
    last = len(value) - 1
    return "".join(
        _BACKSLASH + each if each in _SPECIAL or _is_edge(each, at, last) else _printable(each)
        for at, each in enumerate(value)
    )


def _is_edge(each: str, at: int, last: int) -> bool:
    return (each == " " and at in (0, last)) or (each == "#" and at == 0)


def _printable(each: str) -> str:
    return each if " " <= each <= "~" else "".join(f"{_BACKSLASH}{byte:02X}" for byte in each.encode())
