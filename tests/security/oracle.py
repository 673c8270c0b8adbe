"""Who may read and write what, decided as naively as the rules can be read: the judge of random stories.

Nothing here is shared with `hedgerow.broker.access`: filters are compared level by level, and all rules of a
user are asked one by one. `ACL` is the same table in the syntax that the broker reads.
"""

from __future__ import annotations

DOMAIN = "farm/sector1"
RIGHT = "$hedgerow/bridge"

# user → (access, filter), None: whoever has not logged in.
RULES: dict[str | None, list[tuple[str, str]]] = {
    None: [("read", "public/#"), ("write", "inbox/#")],
    "alice": [("readwrite", "house/#"), ("readwrite", "public/#")],
    "bob": [("read", "house/+"), ("deny", "house/safe"), ("write", "public/#")],
    "mallory": [("readwrite", "public/#")],
    "carol": [
        ("read", "house/#"),
        ("read", "public/#"),
        ("read", "inbox/#"),
        ("read", "meter/#"),
        ("deny", "house/safe"),
    ],
    "dave": [("read", "house/#")],
    "relay": [("readwrite", RIGHT), ("readwrite", "house/#"), ("readwrite", "public/#")],
    "meter": [("write", RIGHT), ("readwrite", "meter/#")],
    "forger": [("write", RIGHT), ("readwrite", "public/#")],
    "hill": [
        ("readwrite", RIGHT),
        ("readwrite", "house/#"),
        ("readwrite", "public/#"),
        ("readwrite", "meter/#"),
    ],
    "tractor": [("write", RIGHT), ("write", f"{DOMAIN}/tractor/delegate"), ("readwrite", "house/#")],
    "rogue": [("readwrite", RIGHT), ("readwrite", "public/#")],
    "thief": [("write", RIGHT), ("write", f"{DOMAIN}/thief/delegate"), ("readwrite", "public/#")],
}
PATTERN = "own/%u/%c"  # each user may read and write it

_NODES_ALONE = ("$SYS/", "$hedgerow/status/", "$hedgerow/federation/")
_BROKERS_ALONE = tuple(f"{DOMAIN}/{broker}/delegate" for broker in ("tractor", "thief", "crook", "node"))


def write_acl() -> str:
    lines = []
    for user, rules in RULES.items():
        lines += [f"user {user}"] if user is not None else []
        lines += [f"topic {access} {topic_filter}" for access, topic_filter in rules]
    return "\n".join([*lines, f"pattern readwrite {PATTERN}"])


class Oracle:
    """`is_open`: there are no rules, and only what is for nodes alone is forbidden."""

    def __init__(self, is_open: bool) -> None:
        self.is_open = is_open

    def may_read(self, user: str | None, client_id: str, topic: str) -> bool:
        if topic.startswith("$hedgerow/federation/"):
            return False
        return self.is_open or _is_granted("read", user, client_id, topic)

    def may_write(self, user: str | None, client_id: str, topic: str) -> bool:
        if topic.startswith(_NODES_ALONE) or topic in _BROKERS_ALONE:
            return False
        return self.is_open or _is_granted("write", user, client_id, topic)


def _is_granted(access: str, user: str | None, client_id: str, topic: str) -> bool:
    found = [granted for granted, topic_filter in RULES.get(user, []) if fits(topic_filter, topic)]
    if "deny" in found:
        return False
    if access in found or "readwrite" in found:
        return True
    if any(each in name for name in (user or "", client_id) for each in "+#/"):
        return False
    return user is not None and topic == f"own/{user}/{client_id}"


def fits(topic_filter: str, topic: str) -> bool:
    """By the words of MQTT 5 § 4.7, without shared subscriptions."""
    if topic.startswith("$") and topic_filter[0] in "+#":
        return False
    return _levels_fit(topic_filter.split("/"), topic.split("/"))


def _levels_fit(wanted: list[str], levels: list[str]) -> bool:
    if wanted == ["#"]:
        return True
    if not wanted or not levels:
        return not wanted and not levels
    return wanted[0] in ("+", levels[0]) and _levels_fit(wanted[1:], levels[1:] or [])
