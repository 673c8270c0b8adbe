"""What the node's own routes take and answer."""

from __future__ import annotations

from hedgerow.node.api import LINK, either_none, list_of, number, record, table_of, text, whole, yes_no
from hedgerow.topics import MAX_TOPIC_BYTES

MAX_PAIRS = 100
MAX_NAME = 65_535  # characters, as in CONNECT
MAX_TEXT = 1024 * 1024  # A body is no longer.
FOUR_BYTES = 2**32 - 1

RATES = record(
    {name: number() for name in ("received", "sent", "dropped", "bytes_received", "bytes_sent")},
    about="A second, between its last two statuses.",
)
NODE = record(
    {
        "id": text(),
        "kind": text("node, sidecar, dashboard, fixed or mobile."),
        "software": text("Its version of Hedgerow."),
        "urls": list_of(text()),
        "problem": either_none(text("Why it cannot do all of its work at present.")),
        "is_silent": yes_no("It has told nothing for some seconds."),
        "heard_at": number("When it was heard last, in seconds since 1970."),
        "uptime_s": number(),
        "counts": table_of(whole(), "clients, links, sessions, subscriptions, retained, stored."),
        "totals": table_of(whole(), "Since it started: messages and bytes received, sent, dropped."),
        "rates": either_none(RATES),
        "links": list_of(LINK),
    }
)
CLIENT = record(
    {
        "client_id": text(),
        "user": either_none(text()),
        "address": text(),
        "protocol": text("MQTT 3.1, MQTT 3.1.1 or MQTT 5."),
        "transport": text("mqtt, mqtts, ws or wss."),
        "connected_at": number("In seconds since 1970."),
        "subscriptions": whole(),
        "queued": whole("Messages that it has yet to acknowledge."),
    }
)
SESSION = record(
    {
        "client_id": text(),
        "user": either_none(text()),
        "is_connected": yes_no(),
        "protocol": text("MQTT 3.1, MQTT 3.1.1 or MQTT 5; nothing if it is not known any more."),
        "is_durable": yes_no("It is in the store."),
        "expires_at": either_none(number("In seconds since 1970; null: while connected, or never.")),
        "subscriptions": whole(),
        "queued": whole("Messages that its client has yet to acknowledge."),
        "queued_bytes": whole(),
        "dropped": whole("Deliveries given up since its queue last had room."),
    }
)
SUBSCRIPTION = record(
    {
        "client_id": text(),
        "filter": text(),
        "qos": whole(minimum=0, maximum=2),
        "shared": either_none(text("The name of the shared subscription.")),
    }
)
RETAINED = record(
    {
        "topic": text(),
        "qos": whole(minimum=0, maximum=2),
        "bytes": whole("Of the payload."),
        "age_s": either_none(number()),
        "payload": either_none(text("As text, if it is UTF-8.")),
        "payload_base64": either_none(text("Otherwise.")),
    }
)
PUBLICATION = record(
    {
        "topic": text(minLength=1, maxLength=MAX_TOPIC_BYTES, examples=["farm/barn/door"]),
        "payload": text("As text; or else payload_base64.", maxLength=MAX_TEXT),
        "payload_base64": text(maxLength=MAX_TEXT),
        "qos": whole(minimum=0, maximum=2, default=0),
        "retain": yes_no(default=False),
        "content_type": text(maxLength=MAX_NAME),
        "response_topic": text(maxLength=MAX_TOPIC_BYTES),
        "message_expiry_interval": whole("In seconds.", minimum=0, maximum=FOUR_BYTES),
        "user_properties": list_of(
            list_of(text(maxLength=MAX_NAME), minItems=2, maxItems=2), "Pairs.", maxItems=MAX_PAIRS
        ),
    },
    optional=(
        "payload", "payload_base64", "qos", "retain", "content_type", "response_topic",
        "message_expiry_interval", "user_properties",
    ),
)  # fmt: skip
