"""Topic names and topic filters: validation, matching, and the tree that matches many at once.

The rules are those of MQTT 5 §4.7, which 3.1 and 3.1.1 share. `TopicTree` answers "which of these
filters match this name" by walking the name's levels once, whatever the number of filters. A `FilterTable`
does the same where most filters have no wildcard.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Generic, TypeVar

from hedgerow.errors import TopicError

MAX_TOPIC_BYTES = 65_535  # MQTT-4.7.3-3: the length field has two bytes.

K = TypeVar("K")
V = TypeVar("V")


def validate_name(name: str) -> str:
    """Return the topic name, or raise TopicError saying which rule it breaks."""
    _validate(name, "topic name")
    if "+" in name or "#" in name:
        raise TopicError(f"topic name {name!r} contains a wildcard [MQTT-3.3.2-2]")
    return name


def validate_filter(topic_filter: str) -> str:
    """Return the topic filter, or raise TopicError saying which rule it breaks."""
    _validate(topic_filter, "topic filter")
    if "#" not in topic_filter and "+" not in topic_filter:
        return topic_filter
    levels = topic_filter.split("/")
    for position, level in enumerate(levels):
        if "#" in level and (level != "#" or position != len(levels) - 1):
            raise TopicError(f"'#' is not alone in the last level of {topic_filter!r} [MQTT-4.7.1-1]")
        if "+" in level and level != "+":
            raise TopicError(f"'+' shares a level in {topic_filter!r} [MQTT-4.7.1-2]")
    return topic_filter


def _validate(text: str, what: str) -> None:
    if not text:
        raise TopicError(f"a {what} has at least one character [MQTT-4.7.3-1]")
    if "\0" in text:
        raise TopicError(f"{what} contains U+0000 [MQTT-4.7.3-2]")
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise TopicError(f"{what} contains a surrogate, which UTF-8 forbids [MQTT-1.5.4-1]") from None
    if size > MAX_TOPIC_BYTES:
        raise TopicError(f"{what} of {size} bytes is longer than {MAX_TOPIC_BYTES} [MQTT-4.7.3-3]")


STATUS_PREFIX = "$hedgerow/status/"  # and a node's id: what each tells of itself, to the whole fabric
STATUS_FILTER = STATUS_PREFIX + "#"
CONTROL_PREFIX = "$hedgerow/federation/"  # what federations say to each other, on the links between nodes


def status_node(topic: str) -> str:
    """The id of the node that a status topic is about."""
    return topic.removeprefix(STATUS_PREFIX).partition("/")[0]


def is_between_nodes(topic: str) -> bool:
    """Nodes alone publish there; no client does."""
    return topic.startswith((STATUS_PREFIX, CONTROL_PREFIX))


def is_local(topic: str) -> bool:
    """A topic, or filter, that is each broker's own: it begins with `$`, and is no node's status."""
    return topic[:1] == "$" and not topic.startswith(STATUS_PREFIX)


def is_wildcard(topic_filter: str) -> bool:
    return "+" in topic_filter or "#" in topic_filter


def split_shared(topic_filter: str) -> tuple[str | None, str]:
    """`$share/GROUP/FILTER` → (GROUP, FILTER); any other filter → (None, filter). §4.8.2."""
    if not topic_filter.startswith("$share/"):
        return None, topic_filter
    _, group, *rest = topic_filter.split("/", 2)
    if not group:
        raise TopicError(f"{topic_filter!r} has no share name [MQTT-4.8.2-1]")
    if is_wildcard(group) or not rest or not rest[0]:
        raise TopicError(f"{topic_filter!r} is not $share/NAME/FILTER [MQTT-4.8.2-2]")
    return group, rest[0]


REPLAY = "$replay/"


def split_replay(topic_filter: str) -> tuple[str | None, str]:
    """`$replay/FROM/FILTER` → (FROM, FILTER), a node's own extension; any other filter → (None, filter)."""
    if not topic_filter.startswith(REPLAY):
        return None, topic_filter
    begin, slash, rest = topic_filter.removeprefix(REPLAY).partition("/")
    if not (begin and slash and rest):
        raise TopicError(f"{topic_filter!r} is not {REPLAY}FROM/FILTER")
    return begin, rest


def wanted_topics(topic_filter: str) -> str:
    """The filter that the topics of its messages match, without how they are to be had."""
    return split_replay(split_shared(topic_filter)[1])[1]


def matches(topic_filter: str, name: str) -> bool:
    """Does this one filter match this one name?"""
    if name[:1] == "$" and topic_filter[:1] in ("+", "#"):
        return False  # MQTT-4.7.2-1
    filter_levels = topic_filter.split("/")
    name_levels = name.split("/")
    for position, level in enumerate(filter_levels):
        if level == "#":
            return True
        if position == len(name_levels) or level not in ("+", name_levels[position]):
            return False
    return len(filter_levels) == len(name_levels)


def covers(wide: str, narrow: str) -> bool:
    """Does the filter `wide` match every name that the filter `narrow` matches?

    `#` and `+/#` match the same names, and so do `/#` and `/+/#`. Only the shorter one is said to cover the
    other, so that no two cover each other.
    """
    if narrow[:1] == "$" and wide[:1] in ("+", "#"):
        return False  # MQTT-4.7.2-1
    wide_levels = wide.split("/")
    narrow_levels = narrow.split("/")
    for position, level in enumerate(wide_levels):
        if level == "#":
            return True
        if position == len(narrow_levels):
            return False
        other = narrow_levels[position]
        if level != other and (level != "+" or other == "#"):
            return False
    return len(wide_levels) == len(narrow_levels)


class _Node(Generic[K, V]):
    __slots__ = ("children", "values")

    def __init__(self) -> None:
        # Made when first needed: most of a large tree is leaves, or inner nodes with no values.
        self.children: dict[str, _Node[K, V]] | None = None
        self.values: dict[K, V] | None = None


class TopicTree(Generic[K, V]):
    """Filters (or names) with a keyed set of values at each.

    `match` takes a name and finds the filters that match it; `match_filter` takes a filter and
    finds the names that it matches, which is what retained messages need. `visited` counts the nodes
    that both have looked at, and what `match` has found: peers choose filters and names that make it many.
    """

    def __init__(self) -> None:
        self.visited = 0
        self.root: _Node[K, V] = _Node()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def set(self, topic: str, key: K, value: V) -> bool:
        """Put `value` under (topic, key). True when the pair is new."""
        size = self._size
        self.replace(topic, key, value)
        return self._size != size

    def replace(self, topic: str, key: K, value: V) -> V | None:
        """Put `value` under (topic, key), and return what was there."""
        node = self.root
        for level in topic.split("/"):
            children = node.children
            if children is None:
                children = node.children = {}
            child = children.get(level)
            if child is None:
                child = children[level] = _Node()
            node = child
        values = node.values
        if values is None:
            values = node.values = {}
        before = values.get(key)
        if before is None and key not in values:
            self._size += 1
        values[key] = value
        return before

    def get(self, topic: str, key: K) -> V | None:
        node: _Node[K, V] | None = self.root
        for level in topic.split("/"):
            if node is None or node.children is None:
                return None
            node = node.children.get(level)
        return None if node is None or node.values is None else node.values.get(key)

    def at(self, topic: str) -> dict[K, V]:
        """All that is stored under this very filter, as a copy."""
        node: _Node[K, V] | None = self.root
        for level in topic.split("/"):
            if node is None or node.children is None:
                return {}
            node = node.children.get(level)
        return {} if node is None or node.values is None else dict(node.values)

    def remove(self, topic: str, key: K) -> V | None:
        """Take (topic, key) out, with every node that it alone kept; None when it was not there."""
        node = self.root
        path: list[tuple[_Node[K, V], str]] = []
        for level in topic.split("/"):
            child = node.children.get(level) if node.children else None
            if child is None:
                return None
            path.append((node, level))
            node = child
        if node.values is None or key not in node.values:
            return None
        value = node.values.pop(key)
        self._size -= 1
        if not node.values:
            node.values = None
        for parent, level in reversed(path):
            if node.values is not None or node.children is not None or parent.children is None:
                break
            del parent.children[level]
            if not parent.children:
                parent.children = None
            node = parent
        return value

    def match(self, name: str) -> list[tuple[K, V]]:
        """Every (key, value) whose filter matches `name`."""
        levels = name.split("/")
        found: list[tuple[K, V]] = []
        nodes = [self.root]
        wildcards = name[:1] != "$"  # MQTT-4.7.2-1: not for the first level of $ topics.
        for level in levels:
            if not nodes:
                break
            following: list[_Node[K, V]] = []
            for node in nodes:
                children = node.children
                if children is None:
                    continue
                child = children.get(level)
                if child is not None:
                    following.append(child)
                if wildcards:
                    child = children.get("+")
                    if child is not None:
                        following.append(child)
                    child = children.get("#")
                    if child is not None and child.values is not None:
                        found.extend(child.values.items())
            nodes = following
            self.visited += len(nodes)
            wildcards = True
        for node in nodes:
            if node.values is not None:
                found.extend(node.values.items())
            # "sport/#" matches "sport" too: § 4.7.1.2.
            child = node.children.get("#") if node.children is not None else None
            if child is not None and child.values is not None:
                found.extend(child.values.items())
        self.visited += len(found)
        return found

    def match_wider(self, topic_filter: str) -> list[tuple[K, V]]:
        """Every (key, value) stored under a filter that covers `topic_filter`, itself included."""
        found: list[tuple[K, V]] = []
        nodes = [self.root]
        wildcards = topic_filter[:1] != "$"  # MQTT-4.7.2-1
        for level in topic_filter.split("/"):
            # Each once: of a filter of many "+" the two ways to the same node would double at every level.
            steps = {level} if level == "#" or not wildcards else {level, "+"}
            children = [node.children for node in nodes if node.children is not None]
            if wildcards and level != "#":
                wide = [below["#"] for below in children if "#" in below]
                found.extend(item for node in wide if node.values for item in node.values.items())
            nodes = [below[step] for below in children for step in steps if step in below]
            self.visited += len(nodes)
            wildcards = True
        for node in nodes:
            if node.values is not None:
                found.extend(node.values.items())
            child = node.children.get("#") if node.children is not None else None
            if child is not None and child.values is not None:
                found.extend(child.values.items())
        return found

    def match_filter(self, topic_filter: str) -> Iterator[tuple[K, V]]:
        """Every (key, value) stored under a name that `topic_filter` matches."""
        levels = topic_filter.split("/")
        stack: list[tuple[_Node[K, V], int]] = [(self.root, 0)]
        while stack:
            node, depth = stack.pop()
            self.visited += 1
            if depth == len(levels):
                if node.values is not None:
                    yield from node.values.items()
                continue
            level = levels[depth]
            if level == "#" and node.values is not None:
                yield from node.values.items()
            if node.children is None:
                continue
            if level in ("+", "#"):
                following = depth if level == "#" else depth + 1
                stack.extend(
                    (child, following)
                    for name, child in node.children.items()
                    if depth > 0 or node is not self.root or name[:1] != "$"
                )
            elif level in node.children:
                stack.append((node.children[level], depth + 1))

    def match_common(self, topic_filter: str) -> Iterator[tuple[K, V]]:
        """Every (key, value) stored under a filter that has names in common with `topic_filter`."""
        levels = topic_filter.split("/")
        stack: list[tuple[_Node[K, V], int]] = [(self.root, 0)]
        while stack:
            node, depth = stack.pop()
            self.visited += 1
            rest = levels[depth:]
            if rest in ([], ["#"]) and node.values is not None:
                yield from node.values.items()
            children = node.children or {}
            wide = children.get("#")
            # MQTT-4.7.2-1: no wildcard at the beginning stands for a level that begins with $.
            is_first, is_of_system = node is self.root, topic_filter[:1] == "$"
            if wide is not None and wide.values is not None and not (is_first and is_of_system):
                yield from wide.values.items()
            if not rest:
                continue
            level, after = rest[0], depth if rest[0] == "#" else depth + 1
            for name, child in children.items() if level in ("+", "#") else _named(children, level):
                is_kept_apart = is_first and (is_of_system if name == "+" else name[:1] == "$" != level[:1])
                if name != "#" and not is_kept_apart:
                    stack.append((child, after))


def _named(children: dict[str, _Node[K, V]], level: str) -> list[tuple[str, _Node[K, V]]]:
    return [(name, children[name]) for name in (level, "+") if name in children]


class FilterMap(Generic[V]):
    """A value for each topic filter, found by the names that it matches.

    Filters without wildcards are in a dictionary: most are, and a tree takes six times the memory for them.
    `exact` is what to use as that.
    """

    def __init__(self, exact: MutableMapping[str, V] | None = None) -> None:
        self._exact: MutableMapping[str, V] = {} if exact is None else exact
        self._wild: dict[str, V] = {}
        self._tree: TopicTree[str, V] = TopicTree()  # of those with wildcards

    def __len__(self) -> int:
        return len(self._exact) + len(self._wild)

    def __iter__(self) -> Iterator[str]:
        yield from self._exact
        yield from self._wild

    def __contains__(self, topic_filter: object) -> bool:
        return topic_filter in self._exact or topic_filter in self._wild

    def __getitem__(self, topic_filter: str) -> V:
        return self._exact[topic_filter] if topic_filter in self._exact else self._wild[topic_filter]

    def get(self, topic_filter: str) -> V | None:
        value = self._exact.get(topic_filter)
        return value if value is not None else self._wild.get(topic_filter)

    def exact(self, name: str) -> V | None:
        """Of the filter that is this very name."""
        return self._exact.get(name)

    def values(self) -> Iterator[V]:
        yield from self._exact.values()
        yield from self._wild.values()

    def set(self, topic_filter: str, value: V) -> None:
        if is_wildcard(topic_filter):
            self._wild[topic_filter] = value
            self._tree.set(topic_filter, topic_filter, value)
        else:
            self._exact[topic_filter] = value

    def remove(self, topic_filter: str) -> V | None:
        if topic_filter in self._wild:
            self._tree.remove(topic_filter, topic_filter)
            return self._wild.pop(topic_filter, None)
        return self._exact.pop(topic_filter, None)

    def match(self, name: str) -> list[tuple[str, V]]:
        """Every (filter, value) whose filter matches `name`."""
        found = self._tree.match(name) if self._wild else []
        if name in self._exact:
            found.append((name, self._exact[name]))
        return found

    def match_filters(self, name: str) -> list[str]:
        """Every filter that matches `name`."""
        found = [topic_filter for topic_filter, _ in self._tree.match(name)] if self._wild else []
        if name in self._exact:
            found.append(name)
        return found


class FilterTable(Generic[K, V]):
    """Filters with a keyed set of values at each, as in a `TopicTree`, and `match` finds them.

    Devices subscribe to topics of their own, without wildcards. Such a filter is found by its whole name, and
    has no nodes: in a tree 100,000 filters, one in five with a wildcard, took half as much memory again.
    """

    def __init__(self) -> None:
        self._tree: TopicTree[K, V] = TopicTree()  # of those with wildcards
        self._names: dict[str, dict[K, V]] = {}  # of all others
        self._size = 0  # of `_names`
        self._found = 0

    def __len__(self) -> int:
        return len(self._tree) + self._size

    @property
    def visited(self) -> int:
        return self._tree.visited + self._found

    def replace(self, topic_filter: str, key: K, value: V) -> V | None:
        """Put `value` under (topic_filter, key), and return what was there."""
        if is_wildcard(topic_filter):
            return self._tree.replace(topic_filter, key, value)
        values = self._names.get(topic_filter)
        if values is None:
            values = self._names[topic_filter] = {}
        before = values.get(key)
        if before is None and key not in values:
            self._size += 1
        values[key] = value
        return before

    def get(self, topic_filter: str, key: K) -> V | None:
        if is_wildcard(topic_filter):
            return self._tree.get(topic_filter, key)
        values = self._names.get(topic_filter)
        return None if values is None else values.get(key)

    def at(self, topic_filter: str) -> dict[K, V]:
        """All that is stored under this very filter, as a copy."""
        if is_wildcard(topic_filter):
            return self._tree.at(topic_filter)
        return dict(self._names.get(topic_filter, {}))

    def remove(self, topic_filter: str, key: K) -> V | None:
        """Take (topic_filter, key) out; None when it was not there."""
        if is_wildcard(topic_filter):
            return self._tree.remove(topic_filter, key)
        values = self._names.get(topic_filter)
        if values is None or key not in values:
            return None
        self._size -= 1
        value = values.pop(key)
        if not values:
            del self._names[topic_filter]
            if not self._names:
                self._names = {}  # A dictionary that was large stays so.
        return value

    def match(self, name: str) -> list[tuple[K, V]]:
        """Every (key, value) whose filter matches `name`."""
        found = self._tree.match(name)
        values = self._names.get(name)
        if values is not None:
            found.extend(values.items())
            self._found += len(values)
        return found
