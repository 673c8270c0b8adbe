"""Random stories: lists of steps, made from a seed, that strangers and victims go through in a scene."""

from __future__ import annotations

from random import Random
from typing import Any

from hedgerow.federation.neighbours import NEIGHBOUR_PREFIX
from hedgerow.mobility.roles import MOBILE_PREFIX
from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import MQTT_3_1_1, Publish, Will
from tests.security.hostile import Rogue, Thief
from tests.security.oracle import DOMAIN
from tests.security.scene import Peer, Scene

Step = tuple[Any, ...]

STEPS = 22
STRANGERS = 4
ORIGINS = ("hill", "mill", "meter")  # of ids that victims give

FORGERS = ("client", "bridge", "mobile")

USERS = (None, "bob", "mallory", "forger")
CLIENT_IDS = (
    "s-1",
    "s-2",
    "alice-phone",
    "carol-log",
    "dave-1",
    "relay-1",
    "meter-1",
    "hedgerow-federation-hill",
    "hedgerow-federation-node",
    "hedgerow-mobile-tractor",
    "hedgerow-mobile-crook",
    "hedgerow-kept-tractor",
    "alice",
    "+",
    "own/alice",
)
NODES = (None, None, "hill", "mill", "meter", "node", "tractor", "crook")
# Client ids that are those of nodes.
CLAIMED = ("hill", "node", "tractor", "crook")
TOPICS = ("house/door", "house/safe", "house/deep/x", "public/a", "public/b", "inbox/1", "meter/1")
CONTROL = (
    "$hedgerow/federation/mesh",
    "$hedgerow/federation/overlay",
    "$hedgerow/federation/introduction",
    "$hedgerow/federation/alive",
    "$hedgerow/status/node",
    "$hedgerow/status/hill",
    "$SYS/broker/bridge/new",
    "$SYS/broker/uptime",
    f"{DOMAIN}/tractor/delegate",
    f"{DOMAIN}/crook/delegate",
    f"{DOMAIN}/node/delegate",
    "hedgerow/bridge/stamp",
)
PERSONAL = ("own/alice/alice-phone", "own/alice/s-1", "own/mallory/s-1", "own/bob/s-2", "own//s-1")
FILTERS = ("#", "+/#", "$SYS/#", "$hedgerow/#", "$hedgerow/federation/#", "$share/g/house/#", "$share/g/#")
WANTED = (*FILTERS, "own/#", "own/alice/#", "house/#", "house/+", "public/#", f"{DOMAIN}/#")
FORGED = ("", "", "id", "time", "age", "all")


def tell(seed: int) -> list[Step]:
    """The story of this seed. In each, someone claims ids that a victim gives later."""
    random = Random(seed)
    story = [_step(random) for _ in range(STEPS)]
    story.insert(random.randrange(STEPS // 2), ("forge", random.choice(ORIGINS), random.choice(FORGERS)))
    return [*story, ("relay", "house/door"), ("hill", "house/door"), ("meter", "meter/1")]


def _step(random: Random) -> Step:
    who = random.randrange(STRANGERS)
    pick = random.choice
    match random.randrange(24):
        case 0 | 1 | 2 | 3:
            client_id, node = pick(CLIENT_IDS), pick(NODES)
            if random.random() < 0.3:  # It says who it is as a node does.
                node = pick(CLAIMED)
                client_id = pick((NEIGHBOUR_PREFIX, MOBILE_PREFIX)) + node
            user = pick(USERS)
            is_relay = random.random() < 0.5
            kind = pick(("plain", "plain", "old", "foreign", "guess", "kept"))
            will_topic = pick((None, None, *TOPICS, *CONTROL))
            return ("connect", who, user, client_id, node, is_relay, kind, will_topic)
        case 4 | 5:
            return ("subscribe", who, pick(WANTED), random.randrange(3))
        case 6 | 7 | 8:
            topic = pick((*TOPICS, *PERSONAL, *CONTROL))
            is_value = random.random() < 0.4
            qos = 1 if is_value else random.randrange(3)
            return (
                "publish",
                who,
                topic,
                qos,
                is_value,
                is_value and random.random() < 0.5,
                pick(FORGED),
                random.randrange(20),
            )
        case 9:
            return ("garbage", who, random.randbytes(random.randrange(1, 30)))
        case 10:
            return ("half", who, random.random())
        case 11:
            return ("replay", who, random.randrange(50), random.random() < 0.5)
        case 12:
            return ("leave", who, random.random() < 0.5)
        case 13:
            return ("unsubscribe", who, pick(WANTED))
        case 14:
            return ("sensor",)
        case 15:
            return (
                "alice",
                pick(("house/door", "house/safe", "house/deep/x", "public/a")),
                random.random() < 0.5,
                random.random() < 0.2,
            )
        case 16:
            return ("carol",)
        case 17:
            return ("relay", pick(("house/door", "public/b")))
        case 18:
            return pick((("hill", "house/door"), ("hill", "public/a"), ("meter", "meter/1")))
        case 19 | 20:
            return ("thief", random.getrandbits(32))
        case 21 | 22:
            return ("rogue", random.getrandbits(32))
        case _:
            return ("advance", pick((0.05, 0.5, 2.0)))


class Story:
    """Plays it. After each step those who mind their business are looked after."""

    def __init__(self, seed: int, *, is_open: bool = False, is_keyed: bool = True) -> None:
        self.scene = Scene(seed, is_open, is_keyed)
        self.strangers: dict[int, Peer] = {}
        self.thief: Thief | None = None
        self.rogue: Rogue | None = None

    def play(self, story: list[Step]) -> None:
        for name, *arguments in story:
            getattr(self, f"_{name}")(*arguments)
            self.scene.check_victims()
        for who in list(self.strangers):
            self._leave(who, False)
        self.scene.finish()

    # Strangers

    def _connect(
        self,
        who: int,
        user: str | None,
        client_id: str,
        node: str | None,
        is_relay: bool,
        kind: str,
        will_topic: str | None,
    ) -> None:
        scene = self.scene
        if scene.is_open and client_id in scene.names:
            return  # Where nobody has a name, a client id is whoever's says it (MQTT-3.1.4-3).
        self._leave(who, False)
        fields: dict[str, Any] = {"kept": kind == "kept"}
        if kind == "old":
            fields["protocol_version"] = MQTT_3_1_1
        elif kind == "foreign":
            fields |= {"protocol_version": MQTT_3_1_1, "is_bridge": True}
        elif kind == "guess":
            user, fields["is_known"] = "alice", False
        if will_topic is not None:
            name = None if scene.is_open else user
            fields["will"] = Will(will_topic, scene.payload(name, client_id, will_topic), 1)
        self.strangers[who] = Peer(scene, user, client_id, node=node, is_relay=is_relay, **fields)

    def _subscribe(self, who: int, topic_filter: str, qos: int) -> None:
        if peer := self._ready(who):
            peer.subscribe(topic_filter, qos)

    def _unsubscribe(self, who: int, topic_filter: str) -> None:
        if peer := self._ready(who):
            peer.unsubscribe(topic_filter)

    def _publish(
        self, who: int, topic: str, qos: int, retain: bool, is_empty: bool, forged: str, number: int
    ) -> None:
        peer = self._ready(who)
        if peer is None:
            return
        pairs = {
            "": [],
            "id": [("hedgerow-id", f"{ORIGINS[number % 3]}/1/{number}")],
            "time": [("hedgerow-time", "4000000000.0")],
            "age": [("hedgerow-age", "600000")],
        }
        pairs["all"] = [pair for each in pairs.values() for pair in each]
        # Whoever may give ids is believed about its own messages, and they are its own loss.
        is_believed = forged != "" and (self.scene.is_open or peer.user == "forger")
        if is_believed:
            retain = is_empty = False
        peer.publish(
            topic, qos, retain=retain, is_empty=is_empty, pairs=pairs[forged], is_promised=not is_believed
        )

    def _garbage(self, who: int, data: bytes) -> None:
        if who in self.strangers:
            self.strangers[who].send_bytes(data)

    def _half(self, who: int, share: float) -> None:
        if peer := self._ready(who):
            data = codec.encode(Publish("public/a", b"half", 1, packet_id=9), peer.version)
            peer.send_bytes(data[: 1 + int(share * (len(data) - 1))])
            self._leave(who, False)

    def _replay(self, who: int, index: int, from_the_start: bool) -> None:
        """What was overheard of nodes, on a connection of its own or on a new one."""
        recorded = self.scene.hellos if from_the_start else self.scene.recorded
        data = recorded[index % len(recorded)]
        if from_the_start:
            self._leave(who, False)
            self.strangers[who] = Peer(self.scene, None, "overheard", hello=data)
        elif who in self.strangers:
            self.strangers[who].send_bytes(data)

    def _leave(self, who: int, is_clean: bool) -> None:
        if peer := self.strangers.pop(who, None):
            peer.leave(is_clean=is_clean)

    def _ready(self, who: int) -> Peer | None:
        peer = self.strangers.get(who)
        return peer if peer is not None and peer.is_accepted and not peer.is_closed else None

    def _forge(self, origin: str, kind: str) -> None:
        """Someone claims the ids that another node gives next."""
        scene = self.scene
        begin = {
            "hill": scene.hill.broker.sequence,
            "mill": scene.relay.sequence,
            "meter": scene.meter.sequence,
        }[origin]
        numbers = range(begin, begin + 60)
        if kind == "mobile":
            self._mobile().claim(origin, numbers)
            return
        forger = Peer(scene, "forger", "forger", node="forger", is_relay=kind == "bridge")
        assert forger.is_accepted
        for number in numbers:
            forger.publish("public/forged", 1, pairs=[("hedgerow-id", f"{origin}/1/{number}")])
        forger.leave()

    def _thief(self, seed: int) -> None:
        self._mobile().lie(Random(seed))

    def _rogue(self, seed: int) -> None:
        if self.rogue is None or self.rogue.is_closed:
            self.rogue = Rogue(self.scene)
        self.rogue.lie(Random(seed))

    def _mobile(self) -> Thief:
        """It comes when it is first heard of, and again when it was sent away."""
        if self.thief is None or self.thief.is_closed:
            self.thief = Thief(self.scene)
        return self.thief

    # Those who mind their business

    def _sensor(self) -> None:
        self.scene.sensor()

    def _alice(self, topic: str, retain: bool, is_empty: bool) -> None:
        self.scene.alice.publish(topic, 1, retain=retain, is_empty=retain and is_empty)

    def _carol(self) -> None:
        if self.scene.carol.wants_connection:
            self.scene.carol.leave()
        else:
            self.scene.carol.connect(kept=True)

    def _relay(self, topic: str) -> None:
        self.scene.relay.publish_with_id(topic)

    def _meter(self, topic: str) -> None:
        """Those who have not logged in are one user, whose ids anybody may give."""
        if self.scene.is_open:
            self.scene.meter.publish(topic, 1)
        else:
            self.scene.meter.publish_with_id(topic)

    def _hill(self, topic: str) -> None:
        self.scene.publish_at_hill(topic)

    def _advance(self, seconds: float) -> None:
        self.scene.advance(seconds)
