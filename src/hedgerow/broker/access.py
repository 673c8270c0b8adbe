"""Who may read and who may write which topic, by an ACL in Mosquitto's syntax.

    # anonymous clients: the lines before the first `user`
    topic read public/#

    user alice
    topic readwrite house/#
    topic deny house/safe

    # and whoever belongs to a group: an extension, which a Mosquitto does not read
    group cowherds
    member bob
    member carol
    topic readwrite cows/#

    # everybody, with or without a `user` line above
    pattern write sensors/%u/%c/reading

Without an ACL everything is allowed. With one, a client gets only what a line grants. The order is
Mosquitto's: the user's own `topic` lines are asked first, and among them `deny` beats every grant;
where they say nothing, those of the user's groups are asked together in the same way, and then the `pattern`
lines. So a `topic` grant outweighs a `pattern deny`. Besides members that the file names, a group has those
users of whom a log-in said so (`UserGroups`).

Rights are asked per topic name: a subscription to `#` is accepted from anyone and delivers only what
its client may read.

`%u` (username) and `%c` (client id) stand for text that the client chose, so three rules keep it from
choosing its rights. A substituted name is compared with whole topic levels and never read as a
filter. When the ACL substitutes a name which contains `+`, `#` or `/`, the patterns grant that client
nothing at all (Mosquitto does so for `+` and `#`; with `/` a client could place itself inside the
topics of another). And a pattern whose first level is substituted says nothing about `$` topics,
whatever the client is called.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from hedgerow.broker.filter_rights import FilterRights
from hedgerow.compiling import mypyc_attr
from hedgerow.errors import ConfigError, TopicError
from hedgerow.topics import TopicTree, validate_filter

DENY = 0
READ = 1
WRITE = 2

ACCESS_WORDS = {"read": READ, "write": WRITE, "readwrite": READ | WRITE, "deny": DENY}

# Not str.split and str.strip: these also split at blanks beyond ASCII, which a topic may contain.
_BLANK = " \t\r\f\v"
_BLANKS = re.compile(f"[{_BLANK}]+")
_SUBSTITUTION = re.compile("%[uc]")
_UNSAFE_IN_NAME = re.compile("[+#/]")


@dataclass(slots=True, frozen=True)
class _Pattern:
    access: int
    templates: tuple[tuple[int, str], ...]
    """(position, text) of the levels that contain a substitution."""


class Acl:
    """The rules of one ACL file. `parse` makes it; after that it does not change."""

    def __init__(self) -> None:
        # Keyed by rule number, since several rules may name one filter.
        self._topics: dict[str | None, TopicTree[int, int]] = {}
        self._groups: dict[str, TopicTree[int, int]] = {}
        self._groups_of: dict[str, set[str]] = {}  # by user
        # A level with a substitution is filed as "+": the tree finds the few candidates, and only
        # these are compared with the client's names.
        self._patterns: TopicTree[int, _Pattern] = TopicTree()
        self._substitutes: set[str] = set()
        self._lines: dict[str | None, list[tuple[str, int]]] = {}  # topic lines, by user
        self._group_lines: dict[str, list[tuple[str, int]]] = {}
        self._pattern_lines: list[tuple[str, int]] = []

    @classmethod
    def parse(cls, text: str, source: str) -> Acl:
        """The ACL that `text` holds; `source` is its name in errors. Raises ConfigError."""
        acl = cls()
        user: str | None = None
        group: str | None = None
        for number, line in enumerate(text.split("\n"), 1):
            line = line.strip(_BLANK)
            if not line or line.startswith("#"):
                continue
            keyword, rest = _split(line)
            try:
                if keyword == "user":
                    user, group = _parse_name(keyword, rest), None
                elif keyword == "group":
                    group = _parse_name(keyword, rest)
                    acl._groups.setdefault(group, TopicTree())
                    acl._group_lines.setdefault(group, [])
                elif keyword == "member":
                    if group is None:
                        raise ConfigError('"member" stands below a "group"')
                    acl._groups_of.setdefault(_parse_name(keyword, rest), set()).add(group)
                elif keyword == "topic":
                    access, topic_filter = _parse_rule(keyword, rest)
                    own = acl._topics.setdefault(user, TopicTree()) if group is None else acl._groups[group]
                    own.set(topic_filter, number, access)
                    lines = acl._lines.setdefault(user, []) if group is None else acl._group_lines[group]
                    lines.append((topic_filter, access))
                elif keyword == "pattern":
                    access, topic_filter = _parse_rule(keyword, rest)
                    acl._add_pattern(number, access, topic_filter)
                else:
                    raise ConfigError(f'"{keyword}" is none of user, group, member, topic, pattern')
            except (ConfigError, TopicError) as error:
                raise ConfigError(f"{source}:{number}: {error}") from None
        return acl

    def _add_pattern(self, number: int, access: int, topic_filter: str) -> None:
        self._pattern_lines.append((topic_filter, access))
        levels = topic_filter.split("/")
        templates = [(i, level) for i, level in enumerate(levels) if _SUBSTITUTION.search(level)]
        for position, template in templates:
            self._substitutes.update(_SUBSTITUTION.findall(template))
            levels[position] = "+"
        self._patterns.set("/".join(levels), number, _Pattern(access, tuple(templates)))

    def _groups_with(self, username: str | None, told: frozenset[str]) -> list[str]:
        """Those of a user that the file has, by its own lines or as the user's log-in told."""
        if not self._groups or username is None:
            return []
        return sorted(self._groups_of.get(username, set()) | told.intersection(self._groups))

    def filter_rights(
        self, username: str | None, client_id: str, told_groups: frozenset[str] = frozenset()
    ) -> FilterRights:
        """To read or to write."""
        names = _names(username, client_id)
        patterns = [] if self._is_unsafe(names) else self._pattern_lines
        put_in = [
            (named, access)
            for template, access in patterns
            if (named := _substitute(template, names)) is not None
        ]
        groups = self._groups_with(username, told_groups)
        of_groups = [line for name in groups for line in self._group_lines[name]]
        return FilterRights(map(_by_kind, (self._lines.get(username, []), of_groups, put_in)))

    @property
    def visited(self) -> int:
        """How many nodes of its trees were looked at so far."""
        trees = (*self._topics.values(), *self._groups.values())
        return self._patterns.visited + sum(tree.visited for tree in trees)

    def allows(
        self,
        username: str | None,
        client_id: str,
        topic: str,
        access: int,
        told_groups: frozenset[str] = frozenset(),
    ) -> bool:
        """`told_groups`: those of the user, beside what the file says."""
        own = self._topics.get(username)
        if own is not None:
            decision = _decide((granted for _, granted in own.match(topic)), access)
            if decision is not None:
                return decision
        groups = self._groups_with(username, told_groups)
        if groups:
            found = (granted for name in groups for _, granted in self._groups[name].match(topic))
            decision = _decide(found, access)
            if decision is not None:
                return decision
        names = _names(username, client_id)
        if self._is_unsafe(names):
            return False
        candidates = self._patterns.match(topic)
        levels = topic.split("/")
        return _decide((p.access for _, p in candidates if _fits(p, levels, names)), access) is True

    def _is_unsafe(self, names: dict[str, str]) -> bool:
        return any(_UNSAFE_IN_NAME.search(names.get(key, "")) for key in self._substitutes)


def _names(username: str | None, client_id: str) -> dict[str, str]:
    return {"%c": client_id} if username is None else {"%c": client_id, "%u": username}


def _by_kind(lines: Iterable[tuple[str, int]]) -> tuple[list[str], list[str]]:
    """Filters that are granted, and those that are denied."""
    granted: list[str] = []
    denied: list[str] = []
    for topic_filter, access in lines:
        (denied if access == DENY else granted).append(topic_filter)
    return granted, denied


def _split(text: str) -> tuple[str, str]:
    """The first word, and what follows the blanks after it."""
    first, *rest = _BLANKS.split(text, maxsplit=1)
    return first, rest[0] if rest else ""


def _parse_name(keyword: str, rest: str) -> str:
    if not rest:
        raise ConfigError(f'"{keyword}" needs a name')
    return rest


def _parse_rule(keyword: str, rest: str) -> tuple[int, str]:
    """`[read|write|readwrite|deny] FILTER` → (access, filter); blanks in it need the access word."""
    first, remainder = _split(rest)
    if not first:
        raise ConfigError(f'"{keyword}" needs a topic filter')
    if remainder:
        if first not in ACCESS_WORDS:
            raise ConfigError(f'"{first}" is none of {", ".join(ACCESS_WORDS)}')
        return ACCESS_WORDS[first], validate_filter(remainder)
    if first in ACCESS_WORDS:
        # Mosquitto takes the word for a topic and grants it; a filter forgotten after "deny" is likelier.
        raise ConfigError(
            f'no topic filter after "{first}" (a topic of that name: {keyword} readwrite {first})'
        )
    return READ | WRITE, validate_filter(first)


def _decide(found: Iterable[int], access: int) -> bool | None:
    """Deny beats grant; None when no rule speaks of this access."""
    decision: bool | None = None
    for granted in found:
        if granted == DENY:
            return False
        if granted & access:
            decision = True
    return decision


def _fits(pattern: _Pattern, levels: list[str], names: dict[str, str]) -> bool:
    return all(_substitute(template, names) == levels[position] for position, template in pattern.templates)


def _substitute(template: str, names: dict[str, str]) -> str | None:
    """The template with its names put in, in one pass: a username "%c" stays as it is."""
    if "%u" in template and "%u" not in names:
        return None  # an anonymous client has no username: the pattern is not about it
    return _SUBSTITUTION.sub(lambda found: names[found[0]], template)


class UserGroups:
    """Groups of users, as the last log-in of each said: by a token, or a service that was asked."""

    def __init__(self) -> None:
        self._groups: dict[str, frozenset[str]] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def of(self, username: str | None) -> frozenset[str]:
        return self._groups.get(username, NO_GROUPS) if username is not None else NO_GROUPS

    def set(self, username: str, groups: frozenset[str]) -> bool:
        """Is that news?"""
        if self.of(username) == groups:
            return False
        if groups:
            self._groups[username] = groups
        else:
            self._groups.pop(username, None)
        return True


NO_GROUPS: frozenset[str] = frozenset()


@mypyc_attr(allow_interpreted_subclasses=True)  # tests count what it is asked
class Access:
    """What the broker asks before it takes a message from a client or delivers one to it."""

    def __init__(self, acl: Acl | None = None, memberships: UserGroups | None = None) -> None:
        self._acl = acl
        self._memberships = UserGroups() if memberships is None else memberships

    @property
    def is_open(self) -> bool:
        """There is no ACL: what is allowed was granted by nobody."""
        return self._acl is None

    def may_read(self, username: str | None, client_id: str, topic: str) -> bool:
        return self._acl is None or self._allows(self._acl, username, client_id, topic, READ)

    def filter_rights(self, username: str | None, client_id: str) -> FilterRights | None:
        """To any topic of a filter, to read it or to write it; None: to all."""
        if self._acl is None:
            return None
        rights = self._acl.filter_rights(username, client_id, self._memberships.of(username))
        return None if rights.is_all else rights

    def may_write(self, username: str | None, client_id: str, topic: str) -> bool:
        return self._acl is None or self._allows(self._acl, username, client_id, topic, WRITE)

    def _allows(self, acl: Acl, username: str | None, client_id: str, topic: str, access: int) -> bool:
        return acl.allows(username, client_id, topic, access, self._memberships.of(username))
