"""The mesh of one filter, as one node sees it. The document's text is §3 and §4 of Spohn (2021).

- "Eventually, all brokers converge to choosing the core with the smallest ID": `elect`.
- "A mesh member is any broker with local subscribers or one connecting children to the core": `is_member`.
- "If the federator is not a mesh member for the corresponding topic, the federator relays the packet to one
  of its parents towards the core. If the federator is in the mesh, the federator sends a publication to every
  mesh neighboring broker (i.e., parents and children) other than the sending broker" (§6): `receivers`.

A core that is lost remains the core until there is another, and the ways of the last one are used for a while
beside those of the next: a mesh is made before the old one is broken.
"""

from __future__ import annotations

from hedgerow.federation.mesh.core import Core


class Mesh:
    __slots__ = (
        "children",
        "core",
        "cores",
        "is_local",
        "overlaps_until",
        "previous_core",
        "receivers",
        "topic_filter",
    )

    def __init__(self, topic_filter: str) -> None:
        self.topic_filter = topic_filter
        self.is_local = False
        """Has this broker subscribers of it?"""
        self.cores: dict[str, Core] = {}
        """Those that announce themselves as its core, this node perhaps among them."""
        self.core: Core | None = None
        self.previous_core: Core | None = None
        self.overlaps_until = 0.0
        self.children: dict[str, set[str]] = {}
        """Core → neighbours that said that they are members and this node a parent."""
        self.receivers: tuple[str, ...] = ()
        """Whom a publication goes to, as the shell knows it."""

    @property
    def is_empty(self) -> bool:
        return not (self.is_local or self.cores or self.children)

    def elect(self) -> Core | None:
        if len(self.cores) == 1:
            return next(iter(self.cores.values()))
        return min(self.cores.values(), key=lambda core: (core.is_lost, core.order), default=None)

    def has_smaller(self, own: Core) -> bool:
        """Is there a live core with a smaller id than this node's?"""
        return any(not core.is_lost and core.order < own.order for core in self.cores.values())

    def is_member(self, core: Core) -> bool:
        return self.is_local or core.id in self.children

    def find_receivers(self, now: float) -> tuple[str, ...]:
        """Between a core that has withdrawn and the next one, the ways of the first still lead on. A child
        that has not said that it knows, as the link may be cut, is one of the next core's, or that core."""
        of_none = (
            neighbour for _, children in sorted(self.children.items()) for neighbour in sorted(children)
        )
        found = dict.fromkeys(self._receivers_with(self.core) if self.core is not None else of_none)
        if self.previous_core is not None and now < self.overlaps_until:
            found.update(dict.fromkeys(self._receivers_with(self.previous_core)))
        return tuple(found)

    def _receivers_with(self, core: Core) -> list[str]:
        if not self.is_member(core):
            return core.parents[:1]
        return [*core.parents, *sorted(self.children.get(core.id, set()).difference(core.parents))]
