"""docs/reference/frames.md: what travels between Hedgerows: versions, kinds, layouts and limits."""

from __future__ import annotations

from struct import calcsize

from hedgerow import message
from hedgerow.bridges import stamp_codec
from hedgerow.broker import seal
from hedgerow.federation import key_proof, neighbours
from hedgerow.federation.mesh import limits as federation_limits
from hedgerow.federation.mesh import wire as federation_wire
from hedgerow.federation.overlay import limits as overlay_limits
from hedgerow.federation.overlay import wire as overlay_wire
from hedgerow.federation.tunnel import frames as tunnel_frames
from hedgerow.log import frame as log_frame
from hedgerow.mobility.delegation import codec as delegation_codec
from hedgerow.mobility.delegation import limits as delegation_limits
from hedgerow.mobility.delegation import publications
from hedgerow.mqtt import extension, ids
from hedgerow.multicast import frame as multicast_frame
from hedgerow.multicast import limits as multicast_limits
from hedgerow.sensors import exchange, packet
from reference_pages.source import code, drawing, head, kinds, layout, limits, table

HEAD_OF_RUNS = "What messages in a row have in common. Of all runs first the first field, then the next:"


def page() -> str:
    lines = head(
        "Frames, packets and payloads",
        "What Hedgerows say to each other, beside MQTT itself. Each reader takes what anybody may have "
        "sent, and drops what is not in its form; a version that it does not know is not in its form.",
    )
    for part in (
        _multicast,
        _sensors,
        _federation,
        _links,
        _overlay,
        _tunnel,
        _delegation,
        _bridges,
        _journal,
        _mqtt,
    ):
        lines += part()
    return "\n".join(lines)


def _multicast() -> list[str]:
    return [
        *_heading(
            "Multicast frames",
            f"Version {multicast_frame.VERSION}. [Multicast](../multicast.md) draws them "
            "byte by byte, and says what each is for. Every frame begins with this header, big-endian:",
        ),
        *layout(multicast_frame.HEADER, multicast_frame.Header._fields),
        *_heading("Kinds of multicast frames", level=3),
        *kinds(multicast_frame.FrameKind),
        *_heading("Flags of multicast frames", level=3),
        *kinds(multicast_frame.Flags),
        *_heading("Limits of multicast", level=3),
        *limits(multicast_frame, "MAX_", "TAG_"),
        *limits(multicast_limits, "MAX_", "DATAGRAM_"),
    ]


def _sensors() -> list[str]:
    return [
        *_heading(
            "Sensor packets",
            "[UDP sensors](../sensors.md) has the protocol whole. A packet is a header of "
            f"{packet.HEADER_BYTES} ASCII digits, and the payload to the end of the datagram:",
        ),
        *drawing(packet, "bytes 0–4"),
        *limits(packet, "MAX_", "DEFAULT_"),
        *limits(exchange, "MAX_"),
    ]


def _federation() -> list[str]:
    return [
        *_heading(
            "Federation packets",
            f"Version {federation_wire.VERSION}. A packet is the version, the kind, and "
            "entries of that kind up to its end. Numbers are little-endian in groups of seven bits, texts "
            "UTF-8 behind their length, and of a row of filters each says how many bytes it shares with the "
            "one before.",
        ),
        *kinds(federation_wire.MeshKind),
        *limits(federation_limits, "MAX_", fields_of=federation_limits.MeshBounds),
    ]


def _links() -> list[str]:
    return [
        *_heading(
            "Links of a federation that has a key",
            f"The authentication method is `{neighbours.METHOD}`. Authentication data, by packet:",
        ),
        *drawing(key_proof, "CONNECT"),
        "What follows the last AUTH travels in records: two bytes of length, in network byte order, then "
        "AES-256-GCM ciphertext with its tag. The nonce is the number of the record in its direction.",
        "",
        *limits(key_proof, "NONCE_", "PROOF_", "MAX_"),
        *limits(seal, "LENGTH_", "TAG_", "MAX_"),
    ]


def _overlay() -> list[str]:
    allowed = {
        kind: f"{low} to {high} of them" if high > 1 else ("one of them" if low else "")
        for kind, (low, high) in overlay_wire.PEERS_ALLOWED.items()
    }
    return [
        *_heading("Overlay packets", f"Version {overlay_wire.VERSION}, in network byte order:"),
        *drawing(overlay_wire, "version 1"),
        *kinds(overlay_wire.OverlayKind, allowed),
        *limits(overlay_wire, "MAX_", "PROOF_"),
        *limits(overlay_limits, "MAX_"),
    ]


def _tunnel() -> list[str]:
    return [
        *_heading("Tunnel frames", f"Version {tunnel_frames.VERSION}, in network byte order:"),
        *drawing(tunnel_frames, "version 1"),
        *kinds(tunnel_frames.TunnelFrameKind),
        *limits(tunnel_frames, "MAX_", "NONCE_", "PROOF_"),
    ]


def _delegation() -> list[str]:
    sides = (("mobile", publications.FROM_MOBILE), ("fixed", publications.FROM_FIXED))
    rows = []
    for kind, action in publications.ACTIONS.items():
        who = " and ".join(side for side, written in sides if kind in written)
        rows.append((str(kind.value), code(kind.name), code(action), who))
    return [
        *_heading(
            "Delegation",
            f"Version {delegation_codec.VERSION}. What mobile and fixed brokers write to each "
            "other, on topics `DOMAIN/BROKER/ACTION`, and events under their own topics. The first user "
            f"property, `{delegation_codec.STREAM_PROPERTY}`, has these numbers, in decimal, with a space "
            "between:",
        ),
        *table(("place", "number"), _stream_numbers()),
        *table(("number", "name", "action", "from"), rows),
        *limits(delegation_limits, "MAX_"),
    ]


def _stream_numbers() -> list[tuple[str, str]]:
    names = ("version", "kind", "own_properties", *publications.StreamHeader._fields)
    events = ("of an event: flags", "of an event: QoS, and 4 if it is retained")
    return [(str(place), code(name)) for place, name in enumerate(names, 1)] + [
        (str(len(names) + place), name) for place, name in enumerate(events, 1)
    ]


def _bridges() -> list[str]:
    return [
        *_heading(
            "Bridges at one broker",
            f"Version {stamp_codec.VERSION}. What bridges tell each other at a broker "
            "that is not ours, so that its messages have ids. Big-endian:",
        ),
        *drawing(stamp_codec, "presence"),
        *limits(stamp_codec, "MAX_", "FINGERPRINT_"),
    ]


def _journal() -> list[str]:
    names = ["marker", *log_frame.LogFrame._fields[1:]]
    rows = [(code(name), str(calcsize(f"<{kind}"))) for name, kind in log_frame.RUN_FIELDS.items()]
    return [
        *_heading(
            "Journal frames",
            "The messages of one commit. [The journal](../journal.md) says how it is read. Little-endian:",
        ),
        *drawing(log_frame, "header"),
        *_heading("The header of a journal frame", "And a CRC-32 of it behind it.", level=3),
        *layout(log_frame.HEADER, names),
        *_heading("The runs of a journal frame", HEAD_OF_RUNS, level=3),
        *table(("field", "bytes"), rows),
        *limits(log_frame, "MAX_"),
    ]


def _mqtt() -> list[str]:
    properties = {
        ids.ID_PROPERTY: "PUBLISH: the message's id, `ORIGIN/EPOCH/SEQUENCE`",
        ids.TIME_PROPERTY: "PUBLISH that is retained: when it was published, Unix time",
        ids.AGE_PROPERTY: "PUBLISH: for how many seconds it has been under way",
        ids.HELD[0]: "PUBLISH of an empty retained message: a deletion of some time ago",
        ids.NODE_PROPERTY: "CONNECT and CONNACK: this is a node, or a client that gives ids, with this name",
        ids.BRIDGE_PROPERTY: "CONNECT: of a node, by its bridge of this name",
        ids.RECENT_PROPERTY: "CONNACK to a bridge that has the fabric key: which messages of the last ten "
        "seconds are here, `BITS EPOCH/FIRST/ORIGIN`. BITS is base64; bit n (of byte n // 8, the lowest "
        "first) stands for the message FIRST + n",
    }
    return [
        *_heading(
            "MQTT between nodes",
            "User properties of MQTT 5. A node adds and believes them only on connections of nodes, of "
            "foreign brokers (whose clients see them) and of clients that give ids. What another client "
            "publishes under such a name is passed on unaltered, as MQTT demands of any user property "
            "(MQTT-3.3.2-17). It means nothing there, and what a node adds stands before it.",
        ),
        *table(("property", "in"), ((code(name), text) for name, text in properties.items())),
        *limits(message, "MAX_ORIGIN", "MAX_NUMBER"),
        *_heading(
            "The extension of MQTT, version 0xFF",
            "For clients that are handed from broker to broker: [mobility](../mobility.md). A CONNECT of "
            "protocol "
            "name `MQIsdp` and this version asks for it.",
        ),
        "CONNACK with a code from 6 to 8, as the answer to CONNECT or at any time after it, from the server:",
        "",
        *drawing(extension, "0x20, remaining length"),
        *kinds(extension.Renewal),
        "PUBCALLBACK, from the server:",
        "",
        *drawing(extension, "0x00 |"),
        *limits(extension, "MAX_", "SESSION_"),
    ]


def _heading(title: str, text: str = "", level: int = 2) -> list[str]:
    return [f"{'#' * level} {title}", "", *([text, ""] if text else [])]
