"""What a node keeps of a neighbour: the meshes in which it is a child, and how much it asks for."""

from __future__ import annotations

from collections.abc import Callable, Collection

from hedgerow.federation.mesh.limits import ASK_AGAIN_S, ENTRIES_BURST_S, ENTRIES_PER_S, ORDINARY_CHARS
from hedgerow.federation.mesh.roster import Roster
from hedgerow.federation.mesh.serial import NONE_YET
from hedgerow.federation.mesh.wire import Question
from hedgerow.rates import Allowance

# Short filters of which it is remembered whether the neighbour may know of them: 5 MB, and few are longer.
MAX_REMEMBERED = 20_000


class Membership:
    """ "A mesh membership announcement also acts as a beacon to track the mesh children's current status"
    (§4)."""

    __slots__ = ("roster", "sequence")

    def __init__(self) -> None:
        self.sequence = NONE_YET
        self.roster = Roster()


class Neighbour:
    __slots__ = (
        "_answered_at",
        "_learns",
        "_max_cores",
        "allowance",
        "filters",
        "id",
        "introduced_at",
        "may_learn",
        "memberships",
        "rights_changes",
    )

    def __init__(
        self,
        neighbour_id: str,
        max_cores: int,
        introduced_at: float,
        may_learn: Callable[[str], bool] | None = None,
    ) -> None:
        self.id = neighbour_id
        self.may_learn = may_learn
        """Of which filters it may know that somebody wants them; None: of all."""
        self.rights_changes = 0
        """How often that has changed."""
        self._learns: dict[str, bool] = {}
        self.introduced_at = introduced_at
        """When it was told of every core: not whenever it asks, since that may be megabytes."""
        self.memberships: dict[str, Membership] = {}
        """Core → the meshes of it in which the neighbour is a child of this node."""
        self.filters = 0
        """In all of its memberships together, as `weight_of` counts them."""
        self.allowance = Allowance(ENTRIES_PER_S, ENTRIES_BURST_S)
        self._max_cores = max_cores
        self._answered_at: dict[Question, float] = {}

    def set_rights(self, may_learn: Callable[[str], bool] | None) -> None:
        self.may_learn = may_learn
        self.rights_changes += 1
        self._learns.clear()

    def visible(self, filters: Collection[str]) -> Collection[str]:
        """Those of which it may know; the same object where that is all. Of most it is asked once: the
        lists of cores are gone through again and again."""
        if len(self._learns) >= MAX_REMEMBERED:
            self._learns.clear()
        may_learn, learns = self.may_learn, self._learns
        if may_learn is None:
            return filters
        found: list[str] = []
        for each in filters:
            is_visible = learns.get(each)
            if is_visible is None:
                is_visible = may_learn(each)
                if len(each) <= ORDINARY_CHARS and len(learns) < MAX_REMEMBERED:
                    learns[each] = is_visible
            if is_visible:
                found.append(each)
        return found

    def membership(self, core_id: str) -> Membership | None:
        """None beyond the bound."""
        membership = self.memberships.get(core_id)
        if membership is None and len(self.memberships) < self._max_cores:
            membership = self.memberships[core_id] = Membership()
        return membership

    def may_ask(self, question: Question, now: float) -> bool:
        """A list may be megabytes, a question is a few bytes."""
        if now < self._answered_at.get(question, 0.0) + ASK_AGAIN_S / 2:
            return False
        if len(self._answered_at) >= 2 * self._max_cores:
            self._answered_at.clear()
        self._answered_at[question] = now
        return True
