"""The wire vectors against the broker machine; tests/node/test_vectors.py runs them over TCP."""

from __future__ import annotations

import pytest

from tests.broker.vectors import Core, Run, Vector, agrees, build, load, parse

VECTORS = load()


@pytest.mark.parametrize("vector", VECTORS, ids=str)
async def test_vector(vector: Vector) -> None:
    await Run(vector, Core(), "tag0").run()


def test_there_are_many_and_each_has_its_own_name() -> None:
    names = [str(vector) for vector in VECTORS]
    assert len(names) > 250
    assert len(set(names)) == len(names)
    assert {vector.version for vector in VECTORS} == {3, 4, 5}


def test_the_notation() -> None:
    items = parse('10 [ @ 02 003c % "~a" { `xy` } 00*3 ]', 5, "T")
    assert build(items) == bytes.fromhex("1016 0004 4d515454 05 02 003c 00 0002 5461 0002 7879 000000")
    assert build(parse("@ %", 4, "")) == bytes.fromhex("0004 4d515454 04")
    assert build(parse("@ %", 3, "")) == bytes.fromhex("0006 4d5149736470 03")
    assert build(parse("[ 00*200 ]", 5, "")) == b"\xc8\x01" + bytes(200)


@pytest.mark.parametrize(
    ("expected", "data", "is_right"),
    [
        ("20 [ 00 00 ... ]", "20 02 00 00", True),
        ("20 [ 00 00 ... ]", "20 04 00 00 01 02", True),
        ("20 [ 00 00 ... ]", "20 01 00", False),
        ("20 [ 00 .. ]", "20 02 00 77", True),
        ("20 [ 00 .. ]", "20 01 00", False),
        ("20 [ 00 00 ]", "20 03 00 00 00", False),
        ("20 [ 00 00 ]", "20 02 00 00 00", False),
        ("30 [ [ 01 ... ] 05 ]", "30 04 02 01 ff 05", True),
        ("30 [ [ 01 ... ] 05 ]", "30 04 01 01 ff 05", False),
        ("30 { 01 }", "30 00 01 01", True),
        ("30 [ 00*130 ]", "30 82 01" + " 00" * 130, True),
        ("30 ...", "30", True),
        ("30 ..", "30", False),
    ],
)
def test_matching(expected: str, data: str, is_right: bool) -> None:
    assert agrees(parse(expected, 5, ""), bytes.fromhex(data)) is is_right
