"""docs/reference/topics.md: every topic that Hedgerow itself publishes, reads or keeps for itself.

The topics of `$SYS` are those that nodes with every part were seen to retain. For the others there is a row
here each, with the constant that the code uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hedgerow.agent.io import connection
from hedgerow.bridges import admission, attendance, commands, stamps
from hedgerow.bridges.commands import DELETE_BRIDGE, NEW_BRIDGE
from hedgerow.bridges.section import read_section
from hedgerow.broker import systopics
from hedgerow.federation import federation, presence, rights, state
from hedgerow.federation.document import wire as document_wire
from hedgerow.federation.identities import NODE_RIGHT
from hedgerow.federation.interests import counts, log_lines
from hedgerow.federation.interests.regular import LOCAL_PREFIXES
from hedgerow.federation.mesh import announcements
from hedgerow.federation.part import MESHES
from hedgerow.federation.tunnel import frames
from hedgerow.home_assistant import part as home_assistant
from hedgerow.journal.metrics import JOURNAL_COUNTERS, JOURNAL_GAUGES
from hedgerow.mobility import hot_state
from hedgerow.mobility.delegation.publications import ACTIONS, FROM_FIXED, FROM_MOBILE, PLAN_PREFIX
from hedgerow.mobility.fixed import GUEST_RIGHT
from hedgerow.mqtt.ids import CLIENT_RIGHT, RIGHT_TOPIC
from hedgerow.multicast.groups import CONTROL_TOPIC
from hedgerow.node import status
from hedgerow.node.metrics import COUNTERS
from hedgerow.pipeline import plan, progress
from hedgerow.topics import STATUS_PREFIX
from reference_pages.live import Seen
from reference_pages.source import code, head, table

Row = tuple[str, str, str]

# What stands for a name in the topics below.
PLACEHOLDERS = r"\b(?:NODE|NAME|ID|JOB|BROKER|AGENT|CLIENT|OBJECT|PREFIX|DOMAIN|USER)\b"

SECTION = read_section("connection NAME\naddress HOST\ntopic # both\n")

# Below $SYS/broker, what no counter of `Stats` is behind.
FIGURES = {
    "version": "`hedgerow version` and the version.",
    "uptime": "Since the start, such as `86 seconds`.",
    "clients/total": "Sessions of clients, with and without a connection.",
    "clients/connected": "Clients that are connected.",
    "clients/active": "The same as `clients/connected`.",
    "clients/disconnected": "Sessions whose client is away.",
    "clients/inactive": "The same as `clients/disconnected`.",
    "clients/maximum": "The most clients that were connected at one time.",
    "retained messages/count": "Retained messages.",
    "messages/stored": "Retained messages, and those that wait for sessions.",
    "store/messages/count": "The same as `messages/stored`.",
    "store/messages/bytes": "Bytes of retained messages, and of those that wait for sessions.",
    "subscriptions/count": "Subscriptions of all sessions.",
    "shared_subscriptions/count": "Those of them that share their messages with others.",
}
HOT = {
    "registry/in": "topics that are kept: how many, and the first 200",
    "registry/out": "topics that are not, likewise",
    "scores": "how many events each topic had in the window",
    "plan": "the plan that is followed, or null",
    "uncounted": "events for which there was no room",
    "moves": "the last 50: what was delegated, recovered, sent, taken over",
    "fixed": "of a mobile broker: the state of the link to its fixed one",
}
BRIDGES = (
    (NEW_BRIDGE, "commanders", "create a bridge: [commands](../bridges.md#commands)"),
    (DELETE_BRIDGE, "commanders", "delete one"),
    (commands.RESULT, "the node", "what became of each command"),
    (commands.state_topic("NAME"), "the node", "how the bridge is; retained: [state](../bridges.md#state)"),
    (
        SECTION.notification_topic_on("NODE"),
        "the node",
        "`1` while the bridge is up, else `0`; retained, at both ends",
    ),
    (
        RIGHT_TOPIC,
        "nobody",
        "whoever may write it by the ACL gives ids of its own; whoever may read it too passes on others'",
    ),
    (
        f"{NODE_RIGHT}ID",
        "nobody",
        "a user that may write it by the ACL is the federated node of this id, percent-encoded",
    ),
    (
        f"{CLIENT_RIGHT}ID",
        "nobody",
        "a user that may write it by the ACL has this client id, percent-encoded: it ends the session of "
        "another user who took it",
    ),
    (
        f"{GUEST_RIGHT}USER",
        "nobody",
        "a mobile broker that may write it by the ACL may bring clients of this user",
    ),
    ("hedgerow/answer/CLIENT", "the node", "the answer to a command of `hedgerow bridge`, by MQTT 5"),
)
AT_FOREIGN = (
    (attendance.IDENTITY_TOPIC, "bridges", "what that broker is called among them; retained"),
    (attendance.CARRIER_TOPIC + "ID", "bridges", "that a bridge is there, and what it carries"),
    (stamps.STAMPS_TOPIC, "bridges", "ids of messages that were published there without one"),
    (stamps.QUESTION_TOPIC + "ID", "bridges", "the id of a message, please"),
    (stamps.ANSWER_TOPIC + "ID", "bridges", "the answer"),
    (admission.ASK_TOPIC + "ID", "bridges", "may this message go in?"),
    (admission.ADMITTED_TOPIC + "ID", "bridges", "it may"),
    (admission.KNOWN_TOPIC + "ID", "bridges", "it is there already"),
)
FEDERATION = (
    (state.STATE_TOPIC, "the node", "the federation as JSON; retained: [what you see](../federation.md)"),
    (state.HOME_STATE_TOPIC + "NODE", "federators beside a broker", "the same, at that broker"),
    (
        federation.OVERLAY_TOPIC,
        "neighbours",
        "packets of the [overlay](frames.md#overlay-packets); on links alone",
    ),
    (
        federation.MESH_TOPIC,
        "neighbours",
        "packets of [federators](frames.md#federation-packets); on links alone",
    ),
    (
        frames.FEDERATOR_TOPIC,
        "nodes",
        "[frames of tunnels](frames.md#tunnel-frames) to the federator beside a broker",
    ),
    (frames.NODE_TOPIC + "NODE", "federators beside a broker", "frames to the node that dialled"),
    (
        presence.PRESENCE_TOPIC + "NODE",
        "federators beside a broker",
        "whether it is there; retained, and its will",
    ),
    (
        rights.ECHO_TOPIC + "NODE",
        "federators beside a broker",
        "to itself: whether it may use its topics there",
    ),
    (
        announcements.NEW_REGULAR_TOPIC,
        "clients",
        "a filter that the client is subscribed to, for the federator",
    ),
    (announcements.NEW_REGULAR_TOPIC + "/NAME", "clients", "the same, under a name of the client's own"),
)
# By federators that are not ours, and to them: docs/federation.md has the bytes.
DOCUMENT = (
    (document_wire.CORE_ANN + "TOPIC", "federators", "CORE_ANN: a core, and how far it is"),
    (document_wire.MEMB_ANN + "TOPIC", "federators", "MESH_MEMB_ANN: a child to its parent"),
    (document_wire.ROUTING + "TOPIC", "federators", "DATA: a publication"),
    (
        document_wire.BEACON + "TOPIC",
        "clients, and federators that ask for a number",
        "NEW_REGULAR_TOPIC: that the client is subscribed",
    ),
    (
        document_wire.FEDERATED + "TOPIC",
        "clients",
        "a publication; clients of the document get it there, too",
    ),
)
READ = (
    *((topic, "a Mosquitto's log: who subscribes to what") for topic in log_lines.TOPICS),
    (counts.UPTIME_TOPIC, "whether the broker has started again"),
    (counts.COUNT_TOPIC, "whether all subscriptions are known"),
    (counts.SHARED_COUNT_TOPIC, "the same, of shared ones"),
    (connection.VERSION_TOPIC, "what kind of broker it is: an agent, and `hedgerow bridge`"),
    (f"{connection.CONNECTION_TOPICS}+/state", "which bridges of a Mosquitto are up: an agent"),
)
HOME_ASSISTANT = (
    ("PREFIX/device/OBJECT/config", "the node", "what Home Assistant is to show; retained"),
    ("PREFIX/status", "Home Assistant", "that it has started: it is told all again"),
    (home_assistant.HEALTH_TOPIC + "NODE", "the node", "its figures as JSON; retained"),
    (home_assistant.HEALTH_TOPIC + "NODE/availability", "the node", "`online`, or `offline`; retained"),
)
STATUS = (
    (status.status_topic("NODE"), "nodes", "how the node is, as JSON, each second while somebody subscribes"),
    (
        status.status_topic("NODE", MESHES),
        "nodes",
        "the meshes that it takes part in, when they have changed",
    ),
)
MULTICAST = ((CONTROL_TOPIC, "nobody", "no message has it: the name of the group in which members meet"),)


def page(seen: Seen) -> str:
    lines = head(
        "Every topic of Hedgerow's own",
        "Filters that begin with a wildcard do not match topics that begin with `$`. Of those that begin "
        f"with {' or '.join(map(code, LOCAL_PREFIXES))}, a federation passes none on but those of "
        f"{code(STATUS_PREFIX)}.",
        "*Who writes it* is the only one whose publications count: clients' own are refused, or ignored.",
    )
    minutes = [code(f"{each}min") for each in systopics.LOAD_MINUTES]
    lines += [
        "## `$SYS/broker/`",
        "",
        "The node's own figures, retained; published when they have changed. Names and units are "
        "Mosquitto's: totals since the start, and below `load/` numbers a minute, on average over the "
        f"MINUTES {', '.join(minutes[:-1])} and {minutes[-1]}.",
    ]
    sections: dict[str, Iterable[Row]] = {
        "Status": STATUS,
        "Bridges": BRIDGES,
        "Bridges at brokers that are not ours": AT_FOREIGN,
        "Federation": FEDERATION,
        "Federators that are not ours": DOCUMENT,
        "Mobile and fixed brokers": _mobility(),
        "Agents": _agents(),
        "Spark": _pipeline(),
        "Home Assistant": HOME_ASSISTANT,
        "Multicast": MULTICAST,
    }
    others = [row for rows in sections.values() for row in rows]
    lines += ["", *table(("below `$SYS/broker/`", ""), _figures(seen, others))]
    for title, rows in sections.items():
        lines += _section(title, rows)
    lines += [
        "## What is read at other brokers",
        "",
        *table(("topic", "for"), ((code(t), why) for t, why in READ)),
    ]
    return "\n".join(lines)


def _section(title: str, rows: Iterable[Row]) -> list[str]:
    return [
        f"## {title}",
        "",
        *table(("topic", "who writes it", ""), ((code(t), who, what) for t, who, what in rows)),
    ]


def _figures(seen: Seen, others: Iterable[Row]) -> list[tuple[str, str]]:
    """Every topic that was seen has to be here or in another table, and every one of these was seen."""
    forms = [re.sub(PLACEHOLDERS, "[^/]+", re.escape(topic)) for topic, _, _ in others]
    prefix = "$SYS/broker/"
    names = [
        topic.removeprefix(prefix)
        for topic in seen.topics
        if not any(re.fullmatch(form, topic) for form in forms)
    ]
    journal = JOURNAL_COUNTERS | JOURNAL_GAUGES
    texts = dict(FIGURES)
    texts |= {name: COUNTERS[counter][1] for name, counter in systopics.COUNTERS.items() if name not in texts}
    texts |= {f"journal/{figure}": text for figure, (_, text) in journal.items()}
    loads = {f"load/{name}/": COUNTERS[counter][1] for name, counter in systopics.LOADS.items()}
    known = texts.keys() | {f"{load}{each}min" for load in loads for each in systopics.LOAD_MINUTES}
    if difference := set(names) ^ known:
        raise LookupError(
            f"topics that are not known, or that nobody publishes: {', '.join(sorted(difference))}"
        )
    rows = [(code(name), texts[name]) for name in names if name in texts]
    return rows + [(code(f"{load}MINUTES"), text) for load, text in loads.items()]


def _mobility() -> list[Row]:
    rows = [(f"{hot_state.HOT_TOPIC}{name}", "the node", text) for name, text in HOT.items()]
    plan_topic = plan.plan_topic("BROKER")
    assert plan_topic.startswith(PLAN_PREFIX)
    rows.append(
        (plan_topic, "`hedgerow pipeline run`", "which topics the mobile broker is to keep; retained")
    )
    for kind, action in ACTIONS.items():
        who = [word for word, kinds in (("mobile", FROM_MOBILE), ("fixed", FROM_FIXED)) if kind in kinds]
        rows.append((f"DOMAIN/BROKER/{action}", " and ".join(who), f"[`{kind.name}`](frames.md#delegation)"))
    return rows


def _agents() -> list[Row]:
    rows = []
    for prefix in connection.PREFIXES:
        rows += [
            (
                connection.probe_topic(prefix, "AGENT"),
                "the agent",
                "a probe, which the broker has to bring back",
            ),
            (
                connection.announce_topic(prefix),
                "agents",
                "that they are there: the one with the lowest name acts",
            ),
        ]
    return rows


def _pipeline() -> list[Row]:
    return [
        (progress.TOPIC_PREFIX + "JOB", "`hedgerow pipeline run`", "how far the job is, as JSON; retained")
    ]
