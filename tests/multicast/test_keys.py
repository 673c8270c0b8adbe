"""Keys are read, sealed with and opened with as docs/multicast.md says; what is not genuine is refused."""

from __future__ import annotations

import gc
import random
import tracemalloc

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.errors import ConfigError
from hedgerow.multicast import frame
from hedgerow.multicast.frame import Flags, FrameError, FrameKind
from hedgerow.multicast.keys import MAX_COUNTER, REPLAY_WINDOW, Keyring, ReplayWindow, SealError
from tests.multicast.frames import SENDER

FIRST, SECOND = "ab" * 32, "CD" * 32
OTHER_SENDER = b"another!"
HEADER = frame.pack_header(FrameKind.DATA, frame.RETAIN, 0x01020304, SENDER, 5, 6)


def ring(*lines: str) -> Keyring:
    return Keyring.parse("\n".join(lines), "keys")


def test_keys_are_read_in_order_with_comments_and_blanks() -> None:
    keyring = ring("# the garden", "", f"7 {FIRST}  # since May", f"  4294967295\t{SECOND}", f"0 {'00' * 32}")
    assert keyring.key_ids == [7, 4_294_967_295, 0]
    assert keyring.sealer(SENDER).key_id == 7


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "keys: no key in it"),
        ("# nothing\n", "keys: no key in it"),
        (f"\n1 {FIRST} x", "keys:2: a line is a number"),
        (FIRST, "keys:1: a line is a number"),
        (f"4294967296 {FIRST}", "keys:1: the key id is not a number from 0 to 4294967295"),
        (f"-1 {FIRST}", "keys:1: the key id is not a number"),
        (f"1_0 {FIRST}", "keys:1: the key id is not a number"),
        (f"٣ {FIRST}", "keys:1: the key id is not a number"),
        (f"{'9' * 5_000} {FIRST}", "keys:1: the key id is not a number"),
        (f"1 {FIRST[:-1]}", "keys:1: the key is not hexadecimal"),
        (f"1 {FIRST[:-2]}", "keys:1: the key has 62 hexadecimal digits, not 64"),
        (f"1 {FIRST}00", "keys:1: the key has 66 hexadecimal digits, not 64"),
        (f"1 {'xy' * 32}", "keys:1: the key is not hexadecimal"),
        (f"1 {FIRST}\n2 {SECOND}\n1 {SECOND}", "keys:3: key 1 is in line 1 already"),
        ("\n".join(f"{n} {FIRST}" for n in range(17)), "keys:17: more than 16 keys"),
    ],
)
def test_what_is_no_key_file_is_refused_by_line(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as refusal:
        Keyring.parse(text, "keys")
    assert FIRST[:-2] not in str(refusal.value), "a key must not get into a log"


def test_a_key_is_not_shown() -> None:
    keyring = ring(f"1 {FIRST}")
    assert FIRST not in repr(keyring) + repr(keyring.sealer(SENDER))


def test_a_sealed_datagram_is_what_the_document_says() -> None:
    sealed = ring(f"258 {FIRST}").sealer(SENDER).seal(HEADER, b"home")
    clear = bytes.fromhex(f"0101 0081 01020304 {SENDER.hex()} {5:016x} {6:016x} 00000102 {1:016x}")
    key = HKDF(SHA256(), 32, SENDER, b"hedgerow multicast 1").derive(bytes.fromhex(FIRST))
    assert sealed == clear + AESGCM(key).encrypt(bytes(4) + (1).to_bytes(8, "big"), b"home", clear)
    assert len(sealed) == len(HEADER) + frame.SEAL_BYTES + len(b"home")


def test_a_sealed_datagram_is_these_bytes() -> None:
    """A fixed vector: what one version seals, every other one opens."""
    sealed = ring(f"1 {FIRST}").sealer(SENDER).seal(HEADER, b"home")
    assert sealed[44:].hex() == "1b5575534a719cd120de168fa920399744ecfc87"


@given(st.binary(max_size=100), st.integers(0, 5))
def test_what_is_sealed_is_opened(rest: bytes, frames_before: int) -> None:
    sealer = ring(f"1 {FIRST}").sealer(SENDER)
    for _ in range(frames_before):
        sealer.seal(HEADER, b"before")
    sealed = sealer.seal(HEADER, rest)
    assert ring(f"2 {SECOND}", f"1 {FIRST}").open(SENDER, sealed) == (frames_before + 1, rest)
    assert frame.parse_header(sealed).flags == Flags.RETAIN | Flags.SEALED


def test_the_same_frame_is_never_sealed_the_same_way_twice() -> None:
    keyring = ring(f"1 {FIRST}")
    sealer, other = keyring.sealer(SENDER), keyring.sealer(OTHER_SENDER)
    assert len({sealer.seal(HEADER, b"x")[44:] for _ in range(100)} | {other.seal(HEADER, b"x")[44:]}) == 101


def test_a_key_that_comes_back_does_not_bring_its_nonces_back() -> None:
    first, second = ring(f"1 {FIRST}"), ring(f"2 {SECOND}", f"1 {FIRST}")
    sealer = first.sealer(SENDER)
    before = [sealer.seal(HEADER, b"x") for _ in range(3)]
    sealer = second.sealer(SENDER, after=sealer)
    sealer.seal(HEADER, b"x")
    sealer = first.sealer(SENDER, after=sealer)
    after = [sealer.seal(HEADER, b"x") for _ in range(3)]
    assert [first.open(SENDER, data)[0] for data in before + after] == [1, 2, 3, 5, 6, 7]


def test_a_counter_at_its_end_seals_nothing_more() -> None:
    sealer = ring(f"1 {FIRST}").sealer(SENDER)
    sealer.counter = MAX_COUNTER - 1
    assert ring(f"1 {FIRST}").open(SENDER, sealer.seal(HEADER, b""))[0] == MAX_COUNTER
    for _ in range(2):
        with pytest.raises(OverflowError, match="new id"):
            sealer.seal(HEADER, b"")


def test_what_is_not_genuine_is_refused_with_the_reason() -> None:
    sealed = ring(f"1 {FIRST}").sealer(SENDER).seal(HEADER, b"x")
    with pytest.raises(SealError, match="unknown key id 1"):
        ring(f"2 {FIRST}").open(SENDER, sealed)
    with pytest.raises(SealError, match="tag is wrong under key 1"):
        ring(f"1 {SECOND}").open(SENDER, sealed)
    with pytest.raises(SealError, match="tag is wrong"):
        ring(f"1 {FIRST}").open(OTHER_SENDER, sealed)
    assert issubclass(SealError, FrameError)


def test_a_truncated_sealed_datagram_is_refused() -> None:
    keyring = ring(f"1 {FIRST}")
    sealed = keyring.sealer(SENDER).seal(HEADER, b"home")
    for size in range(len(sealed)):
        with pytest.raises(SealError):
            keyring.open(SENDER, sealed[:size])
    with pytest.raises(SealError):
        keyring.open(SENDER, sealed + b"\0")


def test_invented_senders_do_not_fill_memory() -> None:
    keyring = ring(f"1 {FIRST}")
    sealed = keyring.sealer(SENDER).seal(HEADER, b"x")
    chance = random.Random(1)
    tracemalloc.start()
    try:
        forge(keyring, sealed, chance, 100)
        before = tracemalloc.get_traced_memory()[0]
        forge(keyring, sealed, chance, 2_000)
        assert tracemalloc.get_traced_memory()[0] - before < 10_000
    finally:
        tracemalloc.stop()


def test_invented_senders_do_not_push_a_true_one_out(monkeypatch: pytest.MonkeyPatch) -> None:
    keyring = Keyring({1: bytes.fromhex(FIRST)}, max_derived=2)
    sealed = keyring.sealer(SENDER).seal(HEADER, b"x")
    keyring.open(SENDER, sealed)
    forge(keyring, sealed, random.Random(1), 10)
    monkeypatch.delattr(Keyring, "_derive")  # What was derived before is still there.
    assert keyring.open(SENDER, sealed) == (1, b"x")


def forge(keyring: Keyring, sealed: bytes, chance: random.Random, count: int) -> None:
    opened = 0
    for _ in range(count):
        try:
            keyring.open(chance.randbytes(8), sealed)
            opened += 1
        except SealError:
            pass
    gc.collect()
    assert not opened


def test_of_many_true_senders_the_latest_keep_their_derived_keys() -> None:
    keyring = Keyring({1: bytes.fromhex(FIRST)}, max_derived=4)
    sealed = {
        sender: ring(f"1 {FIRST}").sealer(sender).seal(HEADER[:8] + sender + HEADER[16:], sender)
        for sender in (n.to_bytes(8, "big") for n in range(9))
    }
    for _ in range(2):
        for sender, data in sealed.items():
            assert keyring.open(sender, data) == (1, sender)
    assert keyring.derived == 4


def test_the_window_takes_each_counter_once_in_any_order() -> None:
    window = ReplayWindow()
    counters = list(range(1, 1_000))
    random.Random(2).shuffle(counters)
    assert all(window.accepts(counter) for counter in counters)
    assert not any(window.accepts(counter) for counter in counters)


def test_what_is_older_than_the_window_is_refused_unseen() -> None:
    window = ReplayWindow()
    assert window.accepts(5_000)
    assert not window.accepts(5_000 - REPLAY_WINDOW - 1)
    assert window.accepts(5_000 - REPLAY_WINDOW)
    assert not window.accepts(0)
    assert not ReplayWindow().accepts(0), "no sender counts from 0"


def test_a_leap_to_the_highest_counter_costs_nothing() -> None:
    window = ReplayWindow()
    assert window.accepts(1)
    assert window.accepts(MAX_COUNTER)
    assert window.accepts(MAX_COUNTER - 1)
    assert not window.accepts(MAX_COUNTER)
    assert not window.accepts(1)


@given(st.lists(st.integers(0, 3 * REPLAY_WINDOW) | st.integers(0, MAX_COUNTER), max_size=60))
def test_the_window_is_a_set_of_the_latest_counters(counters: list[int]) -> None:
    window, seen, highest = ReplayWindow(), {0}, 0
    for counter in counters:
        expected = counter not in seen and counter >= highest - REPLAY_WINDOW
        assert window.accepts(counter) == expected
        seen.add(counter)
        highest = max(highest, counter)
