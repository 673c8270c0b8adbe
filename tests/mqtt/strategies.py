"""Hypothesis strategies for every packet that each protocol version can say."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st

from hedgerow.mqtt import properties
from hedgerow.mqtt.extension import Renewal
from hedgerow.mqtt.packets import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5,
    MQTT_EXTENDED,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcallback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Renew,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from hedgerow.mqtt.reasons import CONNACK_REASONS, REASON_CODES

VERSIONS = (MQTT_3_1, MQTT_3_1_1, MQTT_5, MQTT_EXTENDED)

versions = st.sampled_from(VERSIONS)
packet_ids = st.integers(1, 65_535)
qualities = st.integers(0, 2)
characters = st.characters(codec="utf-8", exclude_characters="\0")
texts = st.text(characters, max_size=12)
topic_names = st.text(st.characters(codec="utf-8", exclude_characters="\0+#"), min_size=1, max_size=12)
topic_filters = st.text(characters, min_size=1, max_size=12)
blobs = st.binary(max_size=12)

_VALUES: dict[properties.WireType, st.SearchStrategy[Any]] = {
    properties.BYTE: st.integers(0, 255),
    properties.TWO_BYTE_INTEGER: st.integers(0, 65_535),
    properties.FOUR_BYTE_INTEGER: st.integers(0, 4_294_967_295),
    properties.VARIABLE_BYTE_INTEGER: st.integers(0, 268_435_455),
    properties.BINARY_DATA: blobs,
    properties.UTF8_STRING: texts,
    properties.UTF8_STRING_PAIR: st.tuples(texts, texts),
}


def property_values(rule: properties.Property, packet_type: int) -> st.SearchStrategy[Any]:
    """The legal values of one property in one packet."""
    if rule.name == "response_topic":
        return topic_names
    values = _VALUES[rule.wire_type]
    if rule.lowest is not None:
        values = st.integers(rule.lowest, 1) if rule.highest == 1 else values.filter(bool)
    if rule.name == "user_property":
        return st.lists(values, min_size=1, max_size=3).map(tuple)
    if rule.name == "subscription_identifier":
        return st.lists(values, min_size=1, max_size=3 if packet_type == PUBLISH else 1).map(tuple)
    return values


@cache  # Building a strategy costs more than drawing from it.
def property_sets(packet_type: int, version: int, required: tuple[str, ...] = ()) -> st.SearchStrategy[Any]:
    """Any legal set of properties of one packet; none before MQTT 5."""
    if version < MQTT_5:
        return st.just({})
    values = {
        rule.name: property_values(rule, packet_type)
        for rule in properties.TABLE
        if packet_type in rule.packets
    }
    always = {name: values.pop(name) for name in required}
    return st.fixed_dictionaries(always, optional=values).filter(
        lambda found: "authentication_data" not in found or "authentication_method" in found
    )


def reason_codes(packet_type: int, version: int) -> st.SearchStrategy[int]:
    """What a packet of this version can say; older acknowledgements say nothing."""
    if version == MQTT_5:
        return st.sampled_from(sorted(REASON_CODES[packet_type][0]))
    if packet_type == CONNACK:
        return st.sampled_from([int(reason) for reason in CONNACK_REASONS.values()])
    if packet_type == SUBACK:
        return st.sampled_from([0, 1, 2, 0x80])
    return st.just(0)


@cache
def packets(version: int) -> st.SearchStrategy[Packet]:
    """Any packet that survives a round trip in this version."""
    return st.one_of(
        connects(version),
        connacks(version),
        publishes(version),
        *(
            st.builds(packet_class, packet_ids, reason_codes(kind, version), property_sets(kind, version))
            for packet_class, kind in (
                (Puback, PUBACK),
                (Pubrec, PUBREC),
                (Pubrel, PUBREL),
                (Pubcomp, PUBCOMP),
            )
        ),
        st.builds(
            Subscribe,
            packet_ids,
            st.lists(subscriptions(version), min_size=1, max_size=3),
            property_sets(SUBSCRIBE, version),
        ),
        st.builds(
            Suback,
            packet_ids,
            st.lists(reason_codes(SUBACK, version), min_size=1, max_size=3),
            property_sets(SUBACK, version),
        ),
        st.builds(
            Unsubscribe,
            packet_ids,
            st.lists(topic_filters, min_size=1, max_size=3),
            property_sets(UNSUBSCRIBE, version),
        ),
        st.builds(
            Unsuback,
            packet_ids,
            st.lists(reason_codes(UNSUBACK, version), min_size=1, max_size=3)
            if version == MQTT_5
            else st.just([]),
            property_sets(UNSUBACK, version),
        ),
        st.just(Pingreq()),
        st.just(Pingresp()),
        st.builds(Disconnect, reason_codes(DISCONNECT, version), property_sets(DISCONNECT, version)),
        *([auths()] if version == MQTT_5 else []),
        *([renews(), pubcallbacks()] if version == MQTT_EXTENDED else []),
    )


def connects(version: int) -> st.SearchStrategy[Connect]:
    wills = st.builds(
        Will, topic_names, blobs, qualities, st.booleans(), property_sets(properties.WILL, version)
    )
    credentials = st.tuples(st.none() | texts, st.none() | blobs)
    if version < MQTT_5:
        credentials = credentials.filter(lambda pair: pair[0] is not None or pair[1] is None)
    return credentials.flatmap(
        lambda pair: st.builds(
            Connect,
            client_id=texts,
            protocol_version=st.just(version),
            clean_start=st.booleans(),
            keep_alive=st.integers(0, 65_535),
            username=st.just(pair[0]),
            password=st.just(pair[1]),
            will=st.none() | wills,
            properties=property_sets(CONNECT, version),
            is_bridge=st.booleans() if version in (MQTT_3_1, MQTT_3_1_1) else st.just(False),
        )
    )


def connacks(version: int) -> st.SearchStrategy[Connack]:
    accepted = st.builds(
        Connack,
        st.booleans() if version != MQTT_3_1 else st.just(False),
        st.just(0),
        property_sets(CONNACK, version),
    )
    answered = st.builds(
        Connack, st.just(False), reason_codes(CONNACK, version), property_sets(CONNACK, version)
    )
    return accepted | answered


def publishes(version: int) -> st.SearchStrategy[Publish]:
    found = property_sets(PUBLISH, version)
    at_most_once = st.builds(Publish, topic_names, blobs, st.just(0), st.booleans(), properties=found)
    acknowledged = st.builds(
        Publish, topic_names, blobs, st.integers(1, 2), st.booleans(), st.booleans(), packet_ids, found
    )
    if version < MQTT_5:
        return at_most_once | acknowledged
    aliased = st.builds(
        Publish, st.just(""), blobs, properties=property_sets(PUBLISH, version, required=("topic_alias",))
    )
    return at_most_once | acknowledged | aliased


def subscriptions(version: int) -> st.SearchStrategy[Subscription]:
    if version < MQTT_5:
        return st.builds(Subscription, topic_filters, qualities)
    return st.builds(Subscription, topic_filters, qualities, st.booleans(), st.booleans(), qualities)


def auths() -> st.SearchStrategy[Auth]:
    with_method = property_sets(AUTH, MQTT_5, required=("authentication_method",))
    return st.just(Auth()) | st.builds(Auth, reason_codes(AUTH, MQTT_5), with_method)


addresses = st.one_of(
    st.tuples(st.ip_addresses(v=4).map(str), st.integers(1, 65_535)),
    st.tuples(st.ip_addresses(v=6).map(lambda address: f"[{address}]"), st.integers(1, 65_535)),
    st.tuples(st.from_regex(r"[a-z][a-z0-9-]{0,8}(\.[a-z]{2,4})?", fullmatch=True), st.integers(1, 65_535)),
).map(lambda pair: f"{pair[0]}:{pair[1]}")
callbacks = st.text(st.characters(codec="utf-8", exclude_characters='\0{"}'), min_size=1, max_size=12)


def renews() -> st.SearchStrategy[Renew]:
    return st.one_of(
        st.builds(Renew, st.just(Renewal.CONNECTION), addresses, session_present=st.booleans()),
        st.builds(
            Renew,
            st.just(Renewal.ACTIVE_TOPICS),
            st.just("") | addresses,
            st.lists(topic_filters, max_size=3),
        ),
        st.builds(Renew, st.just(Renewal.RENEW_TOPICS), addresses),
    )


def pubcallbacks() -> st.SearchStrategy[Pubcallback]:
    named = st.lists(callbacks, unique=True, max_size=3).map(tuple)
    at_most_once = st.builds(
        Pubcallback,
        topic_names,
        blobs,
        st.just(0),
        st.booleans(),
        callbacks=named,
        message_id=texts,
    )
    acknowledged = st.builds(
        Pubcallback,
        topic_names,
        blobs,
        st.integers(1, 2),
        st.booleans(),
        st.booleans(),
        packet_ids,
        named,
        texts,
    )
    return at_most_once | acknowledged
