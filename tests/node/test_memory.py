"""Memory that nobody uses is given back, and not all the time."""

from __future__ import annotations

from pathlib import Path

from hedgerow.node.memory import QUIET_S, SpareMemory, give_back

MIB = 1024 * 1024


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4_096


def test_what_was_freed_is_given_back() -> None:
    blocks = [bytes(2_000) for _ in range(30_000)]
    before = resident_bytes()
    del blocks[:-1]  # The last one is behind all others.
    assert give_back()
    assert resident_bytes() < before - 40 * MIB


def test_it_is_due_when_many_are_free_and_no_more_come() -> None:
    spare = SpareMemory(100)
    spare.note(99, 0.0)
    assert spare.deadline == float("inf")
    spare.note(150, 1.0)
    spare.note(200, 1.5)
    spare.note(200, 3.0)
    assert spare.deadline == 1.5 + QUIET_S
    assert not spare.is_due(3.4)
    assert spare.is_due(3.5)
    assert not spare.is_due(4.0)


def test_it_is_due_again_when_as_many_were_freed_once_more() -> None:
    spare = SpareMemory(100)
    spare.note(500, 0.0)
    assert spare.is_due(QUIET_S)
    spare.note(550, 10.0)
    spare.note(20, 11.0)
    assert spare.deadline == float("inf")
    spare.note(120, 12.0)
    assert spare.is_due(12.0 + QUIET_S)
