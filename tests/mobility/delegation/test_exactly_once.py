"""Criterion (1): each subscriber is notified of each QoS 1 event exactly once, whatever happens meanwhile."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hedgerow.mobility.delegation.addresses import owner_of
from hedgerow.mobility.delegation.limits import WINDOW_BYTES
from hedgerow.mobility.delegation.publications import GuestSubscription
from tests.mobility.delegation.world import TAKEOVER_AFTER_S, World

MOBILES = ("m1", "m2")
FIXED = ("f1", "f2")
CLIENTS = ("a@m1", "b@m1", "d@m1", "e@m1", "c@m2")
FILTERS = ("t/1", "t/2", "t/+", "#")
TOPICS = ("t/1", "t/2", "u")

mobiles = st.sampled_from(MOBILES)
fixed_brokers = st.sampled_from(FIXED)
clients = st.sampled_from(CLIENTS)
filters = st.sampled_from(FILTERS)
topics = st.sampled_from(TOPICS)
few = st.integers(0, 6)


class Brokers(RuleBasedStateMachine):
    window_bytes = WINDOW_BYTES

    def __init__(self) -> None:
        super().__init__()
        self.world = World(MOBILES, FIXED, self.window_bytes)
        self.announced: dict[str, int] = {}
        for mobile_id in MOBILES:
            self.move(mobile_id, "f1")
            self.world.connect(mobile_id, "f1")
        self.world.run()
        for client in CLIENTS:
            self.world.subscribe(client, "t/1")
        self.world.run()

    @rule(client=clients, topic_filter=filters)
    def subscribe(self, client: str, topic_filter: str) -> None:
        if self.world.mobiles[owner_of(client) or ""] is not None:
            self.world.subscribe(client, topic_filter)

    @rule(client=clients, topic_filter=filters)
    def unsubscribe(self, client: str, topic_filter: str) -> None:
        if self.world.mobiles[owner_of(client) or ""] is not None:
            self.world.unsubscribe(client, topic_filter)

    @rule(topic=topics)
    def publish_outside(self, topic: str) -> None:
        self.world.publish("outside", topic)

    @rule(mobile_id=mobiles, topic=topics)
    def publish_inside(self, mobile_id: str, topic: str) -> None:
        if self.world.mobiles[mobile_id] is not None:
            self.world.publish(mobile_id, topic)

    @rule(mobile_id=mobiles, chosen=st.sets(filters, min_size=1))
    def go_cold(self, mobile_id: str, chosen: set[str]) -> None:
        if (mobile := self.world.mobiles[mobile_id]) is not None:
            mobile.delegate(sorted(chosen), self.world.now)
            self.world.settle(mobile_id)

    @rule(mobile_id=mobiles, chosen=st.sets(filters, min_size=1))
    def go_hot(self, mobile_id: str, chosen: set[str]) -> None:
        if (mobile := self.world.mobiles[mobile_id]) is not None:
            mobile.recover(sorted(chosen), self.world.now)
            self.world.settle(mobile_id)

    @rule(mobile_id=mobiles)
    def recover_all(self, mobile_id: str) -> None:
        if (mobile := self.world.mobiles[mobile_id]) is not None:
            mobile.recover_all(self.world.now)
            self.world.settle(mobile_id)

    @rule(mobile_id=mobiles, fixed_id=fixed_brokers)
    def move(self, mobile_id: str, fixed_id: str) -> None:
        """Its clients are called back before."""
        mobile = self.world.mobiles[mobile_id]
        if mobile is not None and not mobile.notifier.away and not self.is_any_at_a_fixed_broker(mobile_id):
            self.world.move(mobile_id, fixed_id)

    def is_any_at_a_fixed_broker(self, mobile_id: str) -> bool:
        return any(owner_of(name) == mobile_id for each in FIXED for name in self.world.attached_at(each))

    @rule(mobile_id=mobiles, fixed_id=fixed_brokers, up=few, down=few)
    def carry(self, mobile_id: str, fixed_id: str, up: int, down: int) -> None:
        self.world.carry(mobile_id, fixed_id, up, down)

    @rule()
    def carry_all(self) -> None:
        self.world.run()

    @rule(mobile_id=mobiles, fixed_id=fixed_brokers, replay=few, is_late=st.booleans())
    def connect(self, mobile_id: str, fixed_id: str, replay: int, is_late: bool) -> None:
        if self.world.mobiles[mobile_id] is not None and self.world.fixed[fixed_id] is not None:
            self.world.connect(mobile_id, fixed_id, replay, is_late=is_late)

    @rule(mobile_id=mobiles, fixed_id=fixed_brokers)
    def cut(self, mobile_id: str, fixed_id: str) -> None:
        self.world.cut(mobile_id, fixed_id)

    @rule(mobile_id=mobiles, fixed_id=fixed_brokers, by_mobile=st.booleans(), by_fixed=st.booleans())
    def notice(self, mobile_id: str, fixed_id: str, by_mobile: bool, by_fixed: bool) -> None:
        self.world.notice(mobile_id, fixed_id, by_mobile=by_mobile, by_fixed=by_fixed)

    @rule(seconds=st.sampled_from([0.5, TAKEOVER_AFTER_S]))
    def tick(self, seconds: float) -> None:
        self.world.tick(seconds)

    @rule(name=st.sampled_from(MOBILES + FIXED))
    def stop(self, name: str) -> None:
        self.world.stop(name)

    @rule(name=st.sampled_from(MOBILES + FIXED))
    def revive(self, name: str) -> None:
        if {**self.world.mobiles, **self.world.fixed}[name] is None:
            self.world.revive(name)

    @rule(name=fixed_brokers)
    def revive_without_memory(self, name: str) -> None:
        if self.world.fixed[name] is None:
            self.world.revive(name, with_memory=False)

    @rule(client=clients)
    def client_goes_to_fixed_broker(self, client: str) -> None:
        """As its mobile broker told it."""
        mobile = self.world.mobiles[owner_of(client) or ""]
        if mobile is None or mobile.current is None or not mobile.may_send_clients:
            return
        fixed_id = mobile.current.fixed_id
        if self.world.fixed[fixed_id] is not None:
            self.world.attach(client, fixed_id)

    @rule(client=clients)
    def announce(self, client: str) -> None:
        owner = owner_of(client) or ""
        mobile = self.world.mobiles[owner]
        if mobile is not None and mobile.may_send_clients:
            self.announced[client] = mobile.announce(client, self.world.now)
            self.world.settle(owner)

    @rule(client=clients)
    def announced_client_arrives(self, client: str) -> None:
        mobile = self.world.mobiles[owner_of(client) or ""]
        if mobile is None or mobile.current is None or not mobile.has_handled(self.announced.get(client, 0)):
            return
        fixed_id = mobile.current.fixed_id
        fixed = self.world.fixed[fixed_id]
        if fixed is not None and fixed.callback_of(client.partition("@")[0]) == client:
            self.world.attach(client, fixed_id)

    @rule(client=clients, topic_filter=filters, subscribes=st.booleans())
    def guest_subscribes(self, client: str, topic_filter: str, subscribes: bool) -> None:
        fixed_id = self.world.where.get(client, "")
        fixed = self.world.fixed.get(fixed_id)
        if fixed is None or client not in fixed.attached:
            return
        if subscribes:
            fixed.subscribe(GuestSubscription(topic_filter, client, 1), self.world.now)
        else:
            fixed.unsubscribe(client, topic_filter, self.world.now)
        self.world.settle(fixed_id)

    @rule(is_late=st.booleans())
    def guests_read_late(self, is_late: bool) -> None:
        self.world.is_reading_late = is_late

    @rule(fixed_id=fixed_brokers)
    def guests_read(self, fixed_id: str) -> None:
        if self.world.fixed[fixed_id] is not None:
            self.world.read(fixed_id)

    @rule(client=clients, fixed_id=fixed_brokers)
    def client_leaves_fixed_broker(self, client: str, fixed_id: str) -> None:
        if (fixed := self.world.fixed[fixed_id]) is not None and client in fixed.attached:
            self.world.hand_back(client, fixed_id)

    @rule(client=clients)
    def client_comes_back(self, client: str) -> None:
        if self.world.mobiles[owner_of(client) or ""] is not None:
            self.world.come_back(client)

    @invariant()
    def registries_have_subscribers(self) -> None:
        for mobile in self.world.mobiles.values():
            if mobile is not None:
                assert all(len(registry) for registry in mobile.registries)

    def teardown(self) -> None:
        self.world.heal()
        self.world.check()
        for mobile in self.world.mobiles.values():
            assert mobile is not None
            assert all(not uplink.stream.kept for uplink in mobile.uplinks.values()), "something waits"
            assert len(mobile.uplinks) <= 1, "an old fixed broker was not left"


class BrokersWithFullQueues(Brokers):
    """One event is under way at a time: what is agreed overtakes all others."""

    window_bytes = 1


TestExactlyOnce = Brokers.TestCase
TestExactlyOnce.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestExactlyOnceWithFullQueues = BrokersWithFullQueues.TestCase
TestExactlyOnceWithFullQueues.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
