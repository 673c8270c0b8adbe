"""A mobile broker: it keeps hot topics, has cold ones matched by a fixed broker, and sends clients there.

The broker routes what is active as ever. Here is what it does not know: `HotFilters` says which topic filters
are cold, the `MobileSide` has them matched elsewhere and tells whom to notify, `FixedLinks` are the ways
there, `Handover` sends clients. Each publication of a client is given to the machine when the broker has
passed it on (`published`).

What the machine decides is in the broker's table before anything else is handled: from the moment in which a
delegation is written, the broker leaves that filter's subscribers out.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from hedgerow.broker.batch import Batch
from hedgerow.broker.broker import Broker
from hedgerow.broker.changes import SubscriptionRecord
from hedgerow.broker.handle_subscribe import subscribe_for, unsubscribe_for
from hedgerow.broker.port import Port
from hedgerow.broker.publishing import deliver_to, deliver_to_rest, observe_matched
from hedgerow.broker.retaining import retain
from hedgerow.broker.routes import Route
from hedgerow.broker.session import Channel, Publisher, Session
from hedgerow.broker.watching import watch
from hedgerow.hot.monitor import Monitor
from hedgerow.hot.observer import HotObserver
from hedgerow.message import Message
from hedgerow.mobility.coordination import first_epoch, is_coordination
from hedgerow.mobility.delegation.events import (
    ClientMoved,
    Delegated,
    DelegationEvent,
    GuestSubscribed,
    GuestUnsubscribed,
    Introduced,
    Left,
    MissedWhileAway,
    Notification,
    RoamingTold,
    TakenOver,
    TurnedAway,
)
from hedgerow.mobility.delegation.mobile import MobileSide
from hedgerow.mobility.delegation.publications import PLAN_PREFIX
from hedgerow.mobility.events import NodeEvent
from hedgerow.mobility.handover import AWAY_EXPIRY_S, Handover
from hedgerow.mobility.hot_filters import HotFilters
from hedgerow.mobility.hot_state import HotState
from hedgerow.mobility.kept_events import KeptEvents
from hedgerow.mobility.links import FixedLinks
from hedgerow.mobility.monitoring import follow_plan, make_monitor
from hedgerow.mobility.moves import describe_move
from hedgerow.mobility.ports import RoutedPort
from hedgerow.mobility.roaming_clients import RoamingClients
from hedgerow.mobility.roles import MobileBrokerRole, MobileClientRole, register_own_roles
from hedgerow.mobility.sessions import may_have_come, take_waiting, when_readable
from hedgerow.mobility.settings import MobileSettings
from hedgerow.mobility.subscribers import Subscribers
from hedgerow.mqtt.packets import Subscription
from hedgerow.topics import STATUS_PREFIX

FILTERS_AT_ONCE = 500  # delegated in one turn: what comes meanwhile is not kept waiting


class MobileNode:
    def __init__(self, broker: Broker, domain: str, settings: MobileSettings, now: float) -> None:
        self.broker = broker
        register_own_roles(broker)
        self.domain = domain
        self.settings = settings
        self.machine = MobileSide(
            broker.node_id,
            domain,
            first_epoch(broker),
            accepted=broker.duplicates.copy(),
            takeover_after_s=settings.takeover_after_s,
            adopts=not broker.durability.enabled,
        )
        broker.subscriptions.rests_quiet = True
        self.monitor: Monitor = make_monitor(settings)
        self.state = HotState(broker, self.monitor, now)
        self.has_work = True
        self._filters = HotFilters(self.monitor, self.machine.registries.by_filter)
        self._subscribers = Subscribers(broker, self.machine, self._filters, self._filter_ended)
        self._handover = Handover(self, settings.move_after_s)
        self.roaming = RoamingClients(self)
        self.links = FixedLinks(self, now)
        self._kept = KeptEvents(broker, self.machine, self._subscribers.session_of)
        self._takes_sessions = False  # the fixed broker does
        self._recalls = 0  # that `_follow_monitor` knows of
        self._events: list[DelegationEvent | NodeEvent] = []
        self.supporter = ""
        """HOST:PORT of the fixed broker, as clients of the extension are told."""
        broker.observe(HotObserver(self.monitor))
        broker.register(MobileBrokerRole(broker, reason="this broker is a mobile one itself"))
        broker.replace_client_role(MobileClientRole(broker, self))
        broker.reserve(self.reserves)
        watch(broker, self._note_subscription)
        self._plan_port = Port(broker, "the plan", self._take_plan)
        self._plan_port.subscribe(PLAN_PREFIX + broker.node_id, now)
        self._uplink = RoutedPort(broker, "the fixed broker", self.published)
        broker.subscriptions.watcher = None  # That this one has a part in everything is no wish for more.
        self._uplink.subscribe("#", now)
        self._uplink.subscribe(STATUS_PREFIX + broker.node_id, now)
        broker.subscriptions.watcher = self._note_subscription

    # Subscriptions of clients, and of this node's own parts

    def callback_of(self, session: Session) -> str:
        return self._subscribers.callback_of(session)

    def _note_subscription(self, session: Session | None, topic_filter: str, qos: int | None) -> None:
        self._subscribers.note(session, topic_filter, qos)
        self.has_work = True

    def _filter_ended(self, topic_filter: str) -> None:
        self.sync_delegated()

    def sync_delegated(self) -> None:
        """The broker leaves out exactly those filters that the machine has delegated."""
        table, registries = self.broker.subscriptions, self.machine.registries
        for topic_filter in registries.take_changed():
            is_delegated = registries.is_delegated(topic_filter)
            if is_delegated != (topic_filter in table.inactive):
                table.set_active(topic_filter, not is_delegated)
                self._kept.set_delegated(topic_filter, is_delegated)
        self._subscribers.forget_changed()

    # Publications

    def published(self, message: Message, route: Route, publisher: Publisher | None) -> None:
        """The broker has passed it on to its recipients."""
        matched = self._subscribers.matched_on(route, publisher)
        self.machine.publish(message, matched, self.broker.now)
        if self.roaming.watched:
            self.roaming.note_given(matched.here, message.id)
        if self._kept.is_on and message.qos:
            # Now: whoever published it hears that it was taken when this is stored.
            self.deliver_all()
            self._kept.published(message)
        self.has_work = True

    def deliver_all(self) -> None:
        for delivery in self.machine.take_deliveries():
            self._deliver(delivery)

    def _deliver(self, delivery: Notification) -> None:
        """It was matched: by the fixed broker, or by the machine. It takes no route here."""
        message, broker = delivery.message, self.broker
        assert message.id is not None
        if message.id.origin != broker.node_id:
            if message.retain:
                retain(broker, message, broker.find_route(message.topic), self._uplink)
            observe_matched(broker, Batch.of_message(self._uplink, message))
            self._kept.mark(message)
        if self.roaming.watched:
            self.roaming.note_given(dict(delivery.callbacks), message.id, delivery.number)
        broker.durability.store_separately()
        candidates = self.machine.registries.candidates
        for callback, qos in delivery.callbacks:
            if callback == self._subscribers.own:
                self._deliver_to_own(message)
                continue
            session = self._subscribers.session_of(callback)
            if session is not None:
                filters = candidates(callback, message.topic)
                is_again = delivery.is_again or self.roaming.may_have_had(callback)
                deliver_to(broker, session, message, None, qos, is_again, filters=filters)

    def _deliver_to_own(self, message: Message) -> None:
        """To all whom the fixed broker does not know by name."""
        route = self.broker.find_route(message.topic)
        deliver_to_rest(self.broker, message, route, self._uplink)
        for recipient in route.recipients:
            if recipient.session.role.is_movable and not self._subscribers.is_known(recipient.session):
                deliver_to(self.broker, recipient.session, message, route, 2)

    # Clients that move (`ClientMobility`)

    def arriving(self, client_id: str, is_clean: bool) -> None:
        self.roaming.arriving(client_id, is_clean)

    def disconnected(self, connection: Channel) -> None:
        self.roaming.disconnected(connection)
        self.has_work = True

    def connected(self, connection: Channel) -> None:
        session = connection.connected_session()
        callback = self.callback_of(session)
        if session.is_away or session.client_id in self._handover.sent or self.machine.is_away(callback):
            self.machine.client_attached(callback, self.broker.now)
            self.broker.set_away(session, False)
        self._handover.returned(session.client_id, self.broker.now)
        self._take_up(session, callback)
        self._handover.look(callback, self.broker.now)
        self.roaming.connected(connection)
        self.has_work = True

    def _take_up(self, session: Session, callback: str) -> None:
        """What an earlier life of this node had delegated for it, and the fixed broker has given back."""
        for topic_filter in self.machine.adopted.pop(callback, set()) - set(session.subscriptions or ()):
            registry = self.machine.registries.get(topic_filter)
            entry = registry.get(callback) if registry is not None else None
            if entry is not None:
                wanted = Subscription(topic_filter, entry.qos)
                subscribe_for(self.broker, session, SubscriptionRecord(wanted))

    def keeps(self, session: Session) -> bool:
        is_sent = session.client_id in self._handover.sent
        if is_sent and not session.is_away:
            self.broker.expire(session, AWAY_EXPIRY_S)
        return is_sent or session.is_away

    def discarded(self, session: Session) -> None:
        self._handover.forget(session.client_id)
        self.roaming.discarded(session)

    def expects(self, client_id: str, username: str | None) -> bool:
        return False

    def reserves(self, topic: str) -> bool:
        uplinks = self.machine.uplinks
        domains = {self.domain, *(uplink.stream.domain for uplink in uplinks.values())}
        return any(is_coordination(topic, each, (self.broker.node_id, *uplinks)) for each in domains)

    def subscribes(self, session: Session, record: SubscriptionRecord) -> bool:
        self._handover.look(self.callback_of(session), self.broker.now)
        return False

    def unsubscribes(self, session: Session, topic_filter: str) -> bool:
        return False

    def _handle_moved(self, callback: str, is_at_fixed: bool) -> None:
        session = self._subscribers.session_of(callback)
        if session is None:
            return
        now = self.broker.now
        if is_at_fixed and session.connection is not None and session.client_id not in self._handover.sent:
            # It has come back before this broker, which was away, was told that it had gone.
            self.machine.client_attached(callback, now)
            self.has_work = True
            return
        self.broker.set_away(session, is_at_fixed)
        if is_at_fixed:
            self._handover.arrived(session.client_id)
            session.expires_at = None
            when_readable(self.broker, session, partial(self._hand_on, callback, session))
        elif session.connection is None:
            self.broker.expire(session, AWAY_EXPIRY_S)

    def _hand_on(self, callback: str, session: Session) -> None:
        """What waits here follows it."""
        for delivery in take_waiting(self.broker, session) if session.is_away else ():
            is_again = may_have_come(delivery)
            self.machine.hand_on(callback, delivery.qos, [delivery.message], self.broker.now, is_again)
        self.has_work = True

    def _handle_guest(self, event: GuestSubscribed | GuestUnsubscribed) -> None:
        """A client subscribed at the fixed broker: the subscription is this broker's all the same."""
        asked = event.wanted if isinstance(event, GuestSubscribed) else event
        session = self._subscribers.session_of(asked.callback)
        if session is None:
            return
        if isinstance(asked, GuestUnsubscribed):
            unsubscribe_for(self.broker, session, asked.topic_filter)
            return
        wanted = Subscription(asked.topic_filter, asked.qos, asked.no_local, asked.retain_as_published)
        subscribe_for(self.broker, session, SubscriptionRecord(wanted, asked.identifier))

    # Fixed brokers

    @property
    def is_moving(self) -> bool:
        return self.links.is_moving

    def moved_to(self, fixed_id: str, max_bytes: int, domain: str, takes_sessions: bool) -> None:
        """There is a link to it, and it is the one that supports this broker."""
        now = self.broker.now
        self._takes_sessions = takes_sessions
        self.machine.move_to(fixed_id, now, domain)
        self.machine.link_up(fixed_id, max_bytes)
        self._kept.write_again(now)
        self.sync_delegated()

    def set_fixed(self, urls: Iterable[str], now: float) -> None:
        """These fixed brokers from now on; this one moves if its present one is not among them."""
        self.broker.now = now
        self.links.set_urls(urls)
        self.has_work = True

    def close(self, now: float) -> None:
        self.broker.now = now
        self.links.close()

    # Time, and what comes out

    @property
    def deadline(self) -> float:
        lost_at = self.machine.next_deadline()
        return min(
            self.monitor.deadline,
            float("inf") if lost_at is None else lost_at,
            self._handover.deadline if self.settings.moves_clients else float("inf"),
            self.links.deadline,
            self.roaming.deadline,
            self.state.deadline,
        )

    def handle_timer(self, now: float) -> None:
        self.broker.now = now
        self.monitor.handle_timer(now)
        self.machine.handle_timer(now)
        self.sync_delegated()
        if self.state.deadline <= now:
            self.state.handle_timer(now)
        self.has_work = True

    def serve(self, now: float) -> None:
        self.broker.now = now
        while self.has_work:
            self.has_work = False
            self._follow_monitor(now)
            # Before events: a client that has moved since takes with it what was for it here.
            self.deliver_all()
            for event in self.machine.take_events():
                self._handle_event(event, now)
            if self.settings.moves_clients:
                self._handover.serve(now)
            self.roaming.serve(now)
            self.links.serve()
            self._kept.note()
            self._kept.let_go()
            self.has_work = self.has_work or self.machine.has_deliveries
            publications = self.machine.take_publications(now)
            if publications:
                # What they acknowledge is stored before they leave.
                self.broker.durability.when_committed(self.links.writer(publications))

    def _follow_monitor(self, now: float) -> None:
        changes = self.monitor.take_changes()
        if changes:
            self._filters.apply(changes)
            self.state.look(now)
        if self._recalls != self.machine.registries.recalls:
            # The monitor tells what changes, and these stay as cold as they were.
            self._recalls = self.machine.registries.recalls
            self._handover.all_recovered()
            self._filters.look_again()
        if not self._filters.has_news or not self.settings.delegates:
            return
        self.machine.recover(self._filters.take_hot(), now)
        if not self.links.is_moving and self.machine.may_delegate:
            self.machine.delegate(self._filters.take_cold(FILTERS_AT_ONCE), now)
            self.has_work = self.has_work or self._filters.has_news
        self.sync_delegated()

    def _handle_event(self, event: DelegationEvent, now: float) -> None:
        if isinstance(event, RoamingTold):
            self.roaming.told(event)
            return
        if isinstance(event, MissedWhileAway):
            self.roaming.missed(event)
            return
        self.note(event)
        match event:
            case Delegated() if not self._is_current(event.fixed_broker):
                pass  # It is being left, and its word comes late.
            case Delegated():
                self._handover.delegated(event.topic_filter, now)
            case ClientMoved():
                self._handle_moved(event.callback, event.is_at_fixed)
            case TurnedAway():
                self._handover.turned_away(self._subscribers.client_id_of(event.callback), now)
            case GuestSubscribed() | GuestUnsubscribed():
                self._handle_guest(event)
            case Introduced():
                if not self.settings.delegates:
                    self.machine.renew_clients(now)
                self.roaming.introduced(self._takes_sessions)
                self.has_work = True
            case TakenOver():
                self.links.tell()
            case Left():
                self.links.left(event.fixed_broker)

    def _is_current(self, fixed_id: str) -> bool:
        current = self.machine.current
        return current is not None and current.fixed_id == fixed_id

    def note(self, event: DelegationEvent | NodeEvent) -> None:
        self._events.append(event)
        current = self.machine.current
        move = describe_move(event, current.fixed_id if current is not None else None, self.broker.now)
        if move is not None:
            self.state.note_move(move, self.broker.now)

    def take_events(self) -> list[DelegationEvent | NodeEvent]:
        events, self._events = self._events, []
        return events

    def _take_plan(self, message: Message) -> None:
        refused = follow_plan(self.monitor, message, self.broker.now)
        if refused is not None:
            self.note(refused)
        self.state.look(self.broker.now)
        self.has_work = True
