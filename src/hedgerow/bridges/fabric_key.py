"""What nodes prove to each other by the key that they share, on links and at foreign brokers.

**Links.** A bridge says a number in CONNECT, with a proof over the whole CONNECT. A node that can check it
says another number in CONNACK, with a proof over both packets, and what follows CONNACK is sealed both ways
(`broker/seal.py`) with keys from the same words. Whoever carries CONNECT and CONNACK between two nodes, or
says them again, can neither read nor write the rest. Without the key, or with another, the link works too,
unproven and in clear (`roles.py`).

**Ids at foreign brokers.** `hedgerow-id` has `hedgerow-mac` behind it there, over the id and all else of the
message that brokers pass on unchanged. A copy is a duplicate; whoever has not the key can make nothing else.

**Words between carriers** (`stamps.py`, `admission.py`) end with who said them, when, and a MAC over all of
it and the topic. Each sender's must be later than the one before, and of the last minutes: nobody says again
what a carrier said that is gone since. Only the identity of a broker is retained, and of any time.
"""

from __future__ import annotations

from binascii import hexlify
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from struct import Struct
from typing import TYPE_CHECKING, TypeVar

from hedgerow.digests import blake2b, compare_digest
from hedgerow.message import Properties
from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.ids import MAC_PROPERTY
from hedgerow.mqtt.packets import MQTT_5, PUBLISH, Connack, Connect
from hedgerow.mqtt.properties import encode_body

if TYPE_CHECKING:
    from hedgerow.broker.seal import RecordSeal

NONCE_PROPERTY = "hedgerow-nonce"
PROOF_PROPERTY = "hedgerow-proof"
MAC_BYTES = 16
NO_PROOF = (PROOF_PROPERTY, "0" * 2 * MAC_BYTES)  # holds its place
SEAL_KEY_BYTES = 32
MAX_NONCE = 64  # characters of what a stranger calls one
FRESH_S = 300.0  # How far clocks may differ; and for how long a dead carrier's words can be said again.
MAX_SENDERS = 256  # whose last time is known: more than there are carriers, in all their lives
_TAIL = Struct("!QQ16s")  # who, when in microseconds, MAC
_NUMBERS = Struct("!HBI")
NOTHING_CARRIED = b"\0\0\0\0"  # the length of that, in what is proved
# Of a message, what a broker passes on as it came, in this order. Its expiry counts down on the way.
_CARRIED = ("payload_format_indicator", "content_type", "response_topic", "correlation_data", "user_property")
_MAC_HEAD = b"\x26" + len(MAC_PROPERTY).to_bytes(2, "big") + MAC_PROPERTY.encode() + b"\0\x21"
SEAL_BYTES = len(_MAC_HEAD) + 1 + 2 * MAC_BYTES  # of what `seal` returns


Proved = TypeVar("Proved", Connect, Connack)


class FabricKey:
    """The keys of each purpose, of the one that nodes share."""

    def __init__(self, secret: bytes) -> None:
        self._links, self._ids, self.controls = (
            blake2b(secret, person=person).digest() for person in (b"links", b"ids", b"controls")
        )

    def prove_bridge(self, connect: Connect) -> str:
        return self._tell(b"bridge", _unproved(connect)).hex()

    def prove_node(self, connect: Connect, connack: Connack) -> str:
        return self._tell(b"node", encode(connect, MQTT_5), _unproved(connack)).hex()

    def link_seal(self, connect: Connect, connack: Connack, is_bridge: bool) -> RecordSeal:
        # It loads OpenSSL: 6 MiB that a node without such links need not have.
        from hedgerow.broker.seal import RecordSeal

        words = encode(connect, MQTT_5), encode(connack, MQTT_5)
        keys = [self._tell(label, *words, size=SEAL_KEY_BYTES) for label in (b"from bridge", b"from node")]
        return RecordSeal(*(keys if is_bridge else reversed(keys)))

    def _tell(self, label: bytes, *words: bytes, size: int = MAC_BYTES) -> bytes:
        digest = blake2b(key=self._links, digest_size=size, person=label)
        for word in words:
            digest.update(len(word).to_bytes(4, "big") + word)
        return digest.digest()

    def seal(
        self, topic: bytes, qos: int, retain: bool, block: bytes, carried: bytes, payload: bytes
    ) -> bytes:
        """The user property that proves the others before it, which `block` has as they are encoded.

        `carried` has the rest that counts (`encode_carried`).
        """
        return _MAC_HEAD + self.mac(topic, qos, retain, block, carried, payload).encode()

    def mac(self, topic: bytes, qos: int, retain: bool, block: bytes, carried: bytes, payload: bytes) -> str:
        digest = blake2b(
            _NUMBERS.pack(len(topic), retain | qos << 1, len(block)), key=self._ids, digest_size=MAC_BYTES
        )
        digest.update(topic + block + len(carried).to_bytes(4, "big") + carried)
        digest.update(payload)
        return f"{qos}{digest.hexdigest()}"

    def seal_run(
        self,
        topic: bytes,
        qos: int,
        head: bytes,
        digits: Sequence[bytes],
        rest: bytes,
        payloads: Sequence[bytes],
        before: bytes,
    ) -> list[bytes]:
        """As `seal` for each of a run without RETAIN, whose block is `head`, its digits, all of one size, and
        `rest`. What is returned has `before` and the block in front of the proof."""
        numbers = _NUMBERS.pack(len(topic), qos << 1, len(head) + len(digits[0]) + len(rest))
        begun = blake2b(numbers, key=self._ids, digest_size=MAC_BYTES)
        begun.update(topic + head)
        copy, after = begun.copy, rest + NOTHING_CARRIED
        begin, end = before + head, rest + _MAC_HEAD + b"%d" % qos
        sealed = []
        for each, payload in zip(digits, payloads, strict=True):
            digest = copy()
            digest.update(each + after + payload)
            sealed.append(begin + each + end + hexlify(digest.digest()))
        return sealed


def _unproved(packet: Connect | Connack) -> bytes:
    """As it is without its proof, the last of its user properties."""
    pairs = packet.properties.get("user_property", ())[:-1]
    return encode(replace(packet, properties={**packet.properties, "user_property": pairs}), MQTT_5)


def with_proof(packet: Proved, proof: str) -> Proved:
    """With this one in the place of the last of its user properties."""
    pairs = (*packet.properties.get("user_property", ())[:-1], (PROOF_PROPERTY, proof))
    return replace(packet, properties={**packet.properties, "user_property": pairs})


def encode_carried(properties: Properties, pairs: tuple[tuple[str, str], ...]) -> bytes:
    """Of a message's properties those that count, with these user properties."""
    if not properties:
        return b""
    counted: Properties = {**properties, "user_property": pairs}
    ordered = {name: counted[name] for name in _CARRIED if counted.get(name) not in (None, ())}  # type: ignore[literal-required]
    return encode_body(ordered, PUBLISH)  # type: ignore[arg-type]


def same(one: str, other: str) -> bool:
    return compare_digest(one.encode(errors="replace"), other.encode(errors="replace"))


def make_nonce(token: Callable[[], int]) -> str:
    """`token` gives numbers of 48 bits."""
    return "".join(f"{token():012x}" for _ in range(3))


def nonce_of(properties: Properties) -> str:
    return _value_of(properties, NONCE_PROPERTY)[:MAX_NONCE]


def proof_of(properties: Properties) -> str:
    """What the last of the user properties proves."""
    name, value = next(reversed(properties.get("user_property", ())), ("", ""))
    return value if name == PROOF_PROPERTY else ""


def _value_of(properties: Properties, wanted: str) -> str:
    return next((value for name, value in properties.get("user_property", ()) if name == wanted), "")


class Envelopes:
    """What one carrier says and hears: `life` is its own among all. What others forged is counted, and what
    is of another time by our clock."""

    def __init__(self, key: FabricKey, life: int) -> None:
        self.forged = 0
        self.untimely = 0
        self._key = key.controls
        self._life = life
        self._said_at = 0
        self._heard_at: OrderedDict[int, int] = OrderedDict()  # by life of who said it

    def wrap(self, topic: str, payload: bytes, now: float) -> bytes:
        self._said_at = max(self._said_at + 1, int(now * 1e6))
        mac = self._mac(topic, payload, self._life, self._said_at)
        return payload + _TAIL.pack(self._life, self._said_at, mac)

    def unwrap(self, topic: str, payload: bytes, now: float, is_retained: bool = False) -> bytes | None:
        """What was said; None: nothing that counts."""
        if len(payload) < _TAIL.size:
            self.forged += 1
            return None
        body = payload[: -_TAIL.size]
        life, said_at, mac = _TAIL.unpack(payload[-_TAIL.size :])
        if not compare_digest(mac, self._mac(topic, body, life, said_at)):
            self.forged += 1
            return None
        if is_retained:
            return body
        if abs(said_at / 1e6 - now) > FRESH_S:
            self.untimely += 1
            return None
        if said_at <= self._heard_at.get(life, 0):
            return None
        self._heard_at[life] = said_at
        self._heard_at.move_to_end(life)
        if len(self._heard_at) > MAX_SENDERS:
            self._heard_at.popitem(last=False)
        return body

    def _mac(self, topic: str, body: bytes, life: int, said_at: int) -> bytes:
        name = topic.encode(errors="surrogatepass")
        head = len(name).to_bytes(2, "big") + name + life.to_bytes(8, "big") + said_at.to_bytes(8, "big")
        return blake2b(head + body, key=self._key, digest_size=MAC_BYTES).digest()
