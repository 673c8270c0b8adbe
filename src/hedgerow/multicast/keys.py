"""Shared keys: frames that only their holders can write or read, and none of which counts twice.

A keyring holds a few keys, each with an id that travels in clear. The first one seals; all of them open,
so that a key is changed by adding the new one everywhere, then putting it first, then taking the old one
out. A frame is sealed with AES-256-GCM under a key derived for its sender alone: senders count their
frames from 1 each, and still no pair of key and nonce is ever used twice, because a sender's id is new
with every start. `ReplayWindow` refuses a frame that came before.

The key is the group's: it says that *a* holder wrote a frame, not which one.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from hedgerow.errors import ConfigError
from hedgerow.multicast.frame import HEADER_BYTES, SEAL, SEALED, TAG_BYTES, FrameError

KEY_BYTES = 32
MAX_KEYS = 16
MAX_KEY_ID = 0xFFFF_FFFF
MAX_COUNTER = 0xFFFF_FFFF_FFFF_FFFF
REPLAY_WINDOW = 2_048  # Frames overtake each other by tens; a repeated one comes sealed anew.

# Derived keys that are kept. Only a frame whose tag was right puts one there: whoever has no key can make
# us derive (8 µs a frame, measured), but can neither fill the table nor push a true sender out of it.
MAX_DERIVED = 1_024

_INFO = b"hedgerow multicast 1"
_PRINT_INFO = b"hedgerow multicast group 1 "
_NONCE_PREFIX = bytes(4)
_BODY_AT = HEADER_BYTES + SEAL.size
_FLAGS_AT = 2  # of the header, two bytes


class SealError(FrameError):
    """A sealed frame that no key of ours opens, or that was changed on its way."""


class Sealer:
    """Seals the frames of one sender, and counts them."""

    def __init__(self, key_id: int, cipher: AESGCM, counter: int) -> None:
        self.key_id = key_id
        self.counter = counter
        """Of the last frame that was sealed; 0 before the first."""
        self._cipher = cipher

    def seal(self, header: bytes, rest: bytes) -> bytes:
        """The whole datagram of a frame in clear. OverflowError when the counter has come to its end."""
        if self.counter >= MAX_COUNTER:
            raise OverflowError("this sender has sealed as many frames as its key can; it needs a new id")
        self.counter += 1
        flags = int.from_bytes(header[_FLAGS_AT : _FLAGS_AT + 2], "big") | SEALED
        clear = b"".join(
            (
                header[:_FLAGS_AT],
                flags.to_bytes(2, "big"),
                header[_FLAGS_AT + 2 :],
                SEAL.pack(self.key_id, self.counter),
            )
        )
        return clear + self._cipher.encrypt(_nonce(self.counter), rest, clear)


class Keyring:
    """The keys of one group of members, by id, in the order of preference."""

    def __init__(self, keys: dict[int, bytes], max_derived: int = MAX_DERIVED) -> None:
        self._keys = dict(keys)
        self._max_derived = max_derived
        self._ciphers: dict[tuple[int, bytes], AESGCM] = {}

    @classmethod
    def parse(cls, text: str, where: str) -> Keyring:
        """The keys of a file: a line `ID HEX64` each. ConfigError names `where`, the line and the reason."""
        keys: dict[int, bytes] = {}
        lines: dict[int, int] = {}
        for number, line in enumerate(text.splitlines(), 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            try:
                key_id, key = _parse_key(words)
                if key_id in keys:
                    raise ConfigError(f"key {key_id} is in line {lines[key_id]} already")
                if len(keys) == MAX_KEYS:
                    raise ConfigError(f"more than {MAX_KEYS} keys")
            except ConfigError as problem:
                raise ConfigError(f"{where}:{number}: {problem}") from None
            keys[key_id] = key
            lines[key_id] = number
        if not keys:
            raise ConfigError(f"{where}: no key in it; a line is ID and 64 hexadecimal digits")
        return cls(keys)

    @property
    def key_ids(self) -> list[int]:
        """In order: the first one seals."""
        return list(self._keys)

    @property
    def derived(self) -> int:
        """How many senders' keys are at hand."""
        return len(self._ciphers)

    def sealer(self, sender: bytes, after: Sealer | None = None) -> Sealer:
        """What seals the frames of `sender` with the first key.

        `after` is the sealer that this sender had before, under whatever key: its counter is carried on.
        A key may come back, and to count from 1 again would use its nonces twice, which gives GCM away.
        """
        key_id = next(iter(self._keys))
        return Sealer(key_id, self._derive(key_id, sender), after.counter if after else 0)

    def open(self, sender: bytes, data: bytes) -> tuple[int, bytes]:
        """(counter, the rest in clear) of a sealed datagram. SealError when it is not genuine."""
        if len(data) < _BODY_AT + TAG_BYTES:
            raise SealError(f"{len(data)} bytes are no sealed frame")
        key_id, counter = SEAL.unpack_from(data, HEADER_BYTES)
        cipher = self._ciphers.get((key_id, sender))
        is_new = cipher is None
        if cipher is None:
            if key_id not in self._keys:
                raise SealError(f"unknown key id {key_id}")
            cipher = self._derive(key_id, sender)
        try:
            rest = cipher.decrypt(_nonce(counter), data[_BODY_AT:], data[:_BODY_AT])
        except InvalidTag:
            raise SealError(f"the tag is wrong under key {key_id}") from None
        if is_new:
            self._keep(key_id, sender, cipher)
        return counter, rest

    def prints(self, topic: str) -> list[int]:
        """A number for the topic and each key, in order, which only holders of that key know."""
        info = _PRINT_INFO + topic.encode()
        derived = [
            HKDF(algorithm=SHA256(), length=8, salt=None, info=info).derive(key)
            for key in self._keys.values()
        ]
        return [int.from_bytes(each, "big") for each in derived]

    def _derive(self, key_id: int, sender: bytes) -> AESGCM:
        derivation = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=sender, info=_INFO)
        return AESGCM(derivation.derive(self._keys[key_id]))

    def _keep(self, key_id: int, sender: bytes, cipher: AESGCM) -> None:
        if len(self._ciphers) >= self._max_derived:
            del self._ciphers[next(iter(self._ciphers))]
        self._ciphers[key_id, sender] = cipher


def _parse_key(words: list[str]) -> tuple[int, bytes]:
    # The words may be a key in the wrong place: no message repeats them.
    if len(words) != 2:
        raise ConfigError("a line is a number and 64 hexadecimal digits, such as 1 3f9a…")
    digits, key = words
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 10 and int(digits) <= MAX_KEY_ID):
        raise ConfigError(f"the key id is not a number from 0 to {MAX_KEY_ID}")
    try:
        decoded = bytes.fromhex(key)
    except ValueError:
        raise ConfigError("the key is not hexadecimal") from None
    if len(decoded) != KEY_BYTES:
        raise ConfigError(f"the key has {len(key)} hexadecimal digits, not {2 * KEY_BYTES}")
    return int(digits), decoded


def _nonce(counter: int) -> bytes:
    return _NONCE_PREFIX + counter.to_bytes(8, "big")


class ReplayWindow:
    """Which counters of one sender have come: those up to `REPLAY_WINDOW` below the highest are known one by
    one, and what is older is refused unseen."""

    __slots__ = ("_highest", "_seen")

    def __init__(self) -> None:
        self._highest = 0
        self._seen = 1  # Bit n: the counter n below the highest has come. No sender counts from 0.

    def accepts(self, counter: int) -> bool:
        """Is it new? From now on it is not."""
        ahead = counter - self._highest
        if ahead > 0:
            # A counter may leap by 2^63, and a shift by that many bits would ask for as much memory.
            if ahead > REPLAY_WINDOW:
                self._seen = 1
            else:
                self._seen = (self._seen << ahead | 1) & _WINDOW_BITS
            self._highest = counter
            return True
        bit = 1 << -ahead if -ahead <= REPLAY_WINDOW else 0
        if not bit or self._seen & bit:
            return False
        self._seen |= bit
        return True


_WINDOW_BITS = (1 << REPLAY_WINDOW + 1) - 1
