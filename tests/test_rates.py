"""How often an address may do something."""

from __future__ import annotations

from hedgerow.rates import MAX_ADDRESSES, RatePerAddress


def test_a_rate_allows_its_burst_and_then_its_pace() -> None:
    rate = RatePerAddress(per_s=2, burst=4)
    assert [rate.allows("192.0.2.1", 100.0) for _ in range(6)] == [True] * 4 + [False] * 2
    assert rate.allows("192.0.2.2", 100.0)  # another address has its own
    assert not rate.allows("192.0.2.1", 100.4)
    assert rate.allows("192.0.2.1", 100.5)
    assert not rate.allows("192.0.2.1", 100.5)
    assert [rate.allows("192.0.2.1", 200.0) for _ in range(5)] == [True] * 4 + [False]


def test_refusals_do_not_lengthen_the_wait() -> None:
    rate = RatePerAddress(per_s=1, burst=1)
    assert rate.allows("192.0.2.1", 0.0)
    assert not any(rate.allows("192.0.2.1", n / 1000) for n in range(1, 1000))
    assert rate.allows("192.0.2.1", 1.0)


def test_zero_is_no_limit() -> None:
    rate = RatePerAddress(per_s=0, burst=0)
    assert all(rate.allows("192.0.2.1", 0.0) for _ in range(10_000))


def test_one_ipv6_site_is_one_address() -> None:
    rate = RatePerAddress(per_s=1, burst=1)
    assert rate.allows("2001:db8::1", 0.0)
    assert not rate.allows("2001:db8::ffff:2", 0.0)
    assert rate.allows("2001:db8:0:1::1", 0.0)
    assert rate.allows("fe80::1%eth0", 0.0)


def test_loopback_is_spared_only_when_asked() -> None:
    for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
        spared, held = RatePerAddress(1, 1, spare_loopback=True), RatePerAddress(1, 1)
        assert [spared.allows(address, 0.0), spared.allows(address, 0.0)] == [True, True]
        assert [held.allows(address, 0.0), held.allows(address, 0.0)] == [True, False]


def test_the_table_of_addresses_is_bounded() -> None:
    rate = RatePerAddress(per_s=1, burst=1)
    assert rate.allows("203.0.113.1", 0.0)
    for n in range(3 * MAX_ADDRESSES):
        assert rate.allows(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", 0.5)
        assert len(rate) <= MAX_ADDRESSES
    newest = f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}"
    assert not rate.allows(newest, 0.5)  # whoever was there just now is not forgotten
