"""What is found in very many items, a slice at a time."""

from __future__ import annotations

from hedgerow.web.scan import AT_ONCE, Scan


def test_a_scan_looks_at_what_it_must_though_its_slice_is_over() -> None:
    scan = Scan(range(10_000), lambda number: [number] * (number % 1_000 == 999), 100)
    scan.run(slice_s=0.0, at_least=2_000)
    assert scan.first == [999, 1_999]
    assert not scan.is_done


def test_a_scan_stops_after_its_slice_and_says_that_there_is_more() -> None:
    scan = Scan(range(10_000), lambda number: [number], 3)
    scan.run(slice_s=0.0)
    assert not scan.is_done
    assert scan.first == [0, 1, 2]
    assert scan.total == AT_ONCE + 1
    while not scan.is_done:
        scan.run()
    assert scan.total == 10_000
    assert scan.first == [0, 1, 2]
