"""Whether somebody has a right to any topic that a filter matches.

An ACL is asked for names of topics (`access.py`). This asks it for filters: what one filter and a line of the
ACL have in common is a filter again, level by level, and unless a `deny` covers that, there is such a topic.
"""

from __future__ import annotations

from collections.abc import Iterable

from hedgerow.topics import TopicTree


class FilterRights:
    """Of one client. `layers`: grants and denials of the ACL, in the order in which they are asked; what an
    earlier layer denies no later one grants."""

    def __init__(self, layers: Iterable[tuple[list[str], list[str]]]) -> None:
        self._grants: TopicTree[str, TopicTree[str, None]] = TopicTree()
        denied: list[str] = []
        for grants, denials in layers:
            denied += denials
            tree: TopicTree[str, None] = TopicTree()
            for each in denied:
                tree.set(each, each, None)
            for each in grants:
                self._grants.set(each, each, tree)

    @property
    def is_all(self) -> bool:
        return any(not denied for denied in self._grants.at("#").values())

    def has_any(self, topic_filter: str) -> bool:
        for grant, denied in self._grants.match_common(topic_filter):
            if not denied:
                return True
            common = in_common(grant, topic_filter)
            if common is not None and not denied.match_wider(common):
                return True
        return False


def in_common(one: str, other: str) -> str | None:
    """The filter of all names that both match; None: there are none."""
    if (one[:1] == "$") != (other[:1] == "$"):
        return None  # MQTT-4.7.2-1: no wildcard matches it.
    mine, theirs = one.split("/"), other.split("/")
    found: list[str] = []
    for at in range(max(len(mine), len(theirs))):
        # "a/#" matches "a" too (§4.7.1.2).
        left = mine[at] if at < len(mine) else None
        right = theirs[at] if at < len(theirs) else None
        if left == "#":
            return "/".join(found + theirs[at:])
        if right == "#":
            return "/".join(found + mine[at:])
        if left is None or right is None or (left != right and "+" not in (left, right)):
            return None
        found.append(right if left == "+" else left)
    return "/".join(found)
