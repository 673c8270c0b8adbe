"""Whom a federator of the document's wire takes for which of its neighbours.

Nothing on that wire proves a sender: each message names one by its number, and whoever may publish at this
broker can write any. What the broker knows is who published it, its *speaker*: a user, or the site of an
anonymous client. So a number is believed from one speaker alone:

- the user that people have named for it, and no other; or else
- whoever answered the question that went to the broker of that neighbour. The question is a client's beacon
  for a topic that nobody else has, of which the last level cannot be guessed. The federator there announces
  itself, at this broker, as the core of that topic. So it tells its number, and by whom it speaks here.

The first answer counts. Should a neighbour speak by another user or from another place later, it is asked
again, by another topic. A broker that is not ours does not say who publishes: beside one a number that is
known is believed from anyone (`knows_speakers`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from hedgerow.broker.owners import owner_of
from hedgerow.federation.document import limits
from hedgerow.federation.document.limits import MAX_NUMBER
from hedgerow.federation.document.wire import PROBE, CoreAnn
from hedgerow.rates import Allowance

NEVER = float("inf")
MAX_DIGITS = len(str(MAX_NUMBER))

Speaker = str | None
"""The owner of what was published (`Publisher.share`); None: the node itself, or nobody knows who."""


class DocumentPeer(NamedTuple):
    """A neighbour as people gave it."""

    address: str
    number: int | None = None
    user: str | None = None
    """By whom alone its federator speaks at this broker."""


class NumberedNeighbour:
    __slots__ = (
        "address",
        "allowance",
        "answers",
        "ask_at",
        "asked_at",
        "bit",
        "is_linked",
        "number",
        "others_answers",
        "owner",
        "peer",
        "question",
    )

    def __init__(self, peer: DocumentPeer, bit: int) -> None:
        self.peer = peer
        self.address = peer.address
        self.bit = bit
        """Of those that have a publication (`data_log.py`)."""
        self.number = peer.number
        self.owner: Speaker = None
        """Who speaks as it."""
        self.is_linked = False
        self.question = ""
        """The topic by which it was asked, until it has answered."""
        self.ask_at = NEVER
        self.asked_at = -NEVER
        self.allowance = Allowance(limits.ENTRIES_PER_S, limits.ENTRIES_BURST_S)
        # Of answers to its own questions, and to those of others who say that they are it.
        self.answers = Allowance(limits.ANSWERS_PER_S, limits.ANSWERS_BURST_S)
        self.others_answers = Allowance(limits.ANSWERS_PER_S, limits.ANSWERS_BURST_S)


class NumberedNeighbours:
    """`me`: the number of this node. `token`: any number, which nobody can guess."""

    def __init__(
        self, me: int, peers: Iterable[DocumentPeer], token: Callable[[], int], knows_speakers: bool
    ) -> None:
        self.knows_speakers = knows_speakers
        self._me = me
        self._token = token
        self._next_bit = 1
        self._all: dict[str, NumberedNeighbour] = {}
        self.set(peers)

    def set(self, peers: Iterable[DocumentPeer]) -> None:
        """These from now on."""
        before, self._all = self._all, {}
        for peer in peers:
            known = before.get(peer.address)
            if known is not None and known.peer == peer:
                self._all[peer.address] = known
                continue
            found = self._all[peer.address] = NumberedNeighbour(peer, self._next_bit)
            self._next_bit <<= 1  # No other ever has it: what is logged outlives its neighbour.
            if peer.user is not None and self.knows_speakers:
                found.owner = owner_of(peer.user, "")
            if known is not None and known.is_linked:
                found.is_linked, found.ask_at = True, 0.0

    def get(self, address: str) -> NumberedNeighbour | None:
        return self._all.get(address)

    @property
    def addresses(self) -> Iterable[str]:
        return self._all.keys()

    def with_number(self, number: int) -> NumberedNeighbour | None:
        return next((each for each in self._all.values() if each.number == number), None)

    def spoken_by(self, speaker: Speaker) -> NumberedNeighbour | None:
        """One of those as which it speaks."""
        if not self.knows_speakers or speaker is None:
            return None
        return next((each for each in self._all.values() if each.owner == speaker), None)

    def why_not(self, number: int, speaker: Speaker, now: float) -> str | None:
        """Why this speaker is not believed to be the neighbour of that number; None: it is."""
        neighbour = self.with_number(number)
        if neighbour is None or number == self._me:
            return "stranger"
        if not self.knows_speakers or (speaker is not None and speaker == neighbour.owner):
            return None
        if neighbour.peer.user is None and neighbour.is_linked and neighbour.ask_at == NEVER:
            # It may speak by another user now, or from elsewhere.
            neighbour.ask_at = max(now, neighbour.asked_at + limits.ASK_AGAIN_S)
        return "not proved"

    # Questions

    @property
    def deadline(self) -> float:
        return min((each.ask_at for each in self._all.values()), default=NEVER)

    def linked(self, neighbour: NumberedNeighbour, now: float) -> None:
        """Its broker is reached. Whoever is behind that address may be another than before."""
        neighbour.is_linked = True
        if neighbour.number is None or (self.knows_speakers and neighbour.peer.user is None):
            neighbour.ask_at = now

    def unlinked(self, neighbour: NumberedNeighbour) -> None:
        neighbour.is_linked = False
        neighbour.ask_at = NEVER

    def take_questions(self, now: float) -> list[tuple[str, str]]:
        """Those that are due: addresses, and the topics to ask by."""
        due = [each for each in self._all.values() if each.ask_at <= now]
        for neighbour in due:
            # The topic remains the same until it is answered, and is known to all federators then.
            neighbour.question = neighbour.question or f"{PROBE}{self._me}/{self._token():x}"
            neighbour.asked_at, neighbour.ask_at = now, now + limits.PROBE_S
        return [(each.address, each.question) for each in due]

    def hear_answer(self, topic: str, entry: CoreAnn, speaker: Speaker) -> NumberedNeighbour | None:
        """The neighbour that has told its number by it."""
        neighbour = next((each for each in self._all.values() if each.question == topic), None)
        if neighbour is None or entry.core != entry.sender or entry.core == self._me:
            return None
        other = self.with_number(entry.core)
        if neighbour.peer.number not in (None, entry.core) or other not in (None, neighbour):
            return None
        if neighbour.peer.user is not None and self.knows_speakers and speaker != neighbour.owner:
            return None
        neighbour.number, neighbour.owner = entry.core, speaker
        neighbour.question, neighbour.ask_at = "", NEVER
        return neighbour

    def to_answer(self, topic: str, speaker: Speaker, now: float) -> list[str]:
        """The addresses to which a question is to be answered.

        Whoever says that it is a neighbour has answers sent there. So each gets few, and those to itself do
        not wait behind those to others.
        """
        asker = topic.removeprefix(PROBE).partition("/")[0]
        if not (asker.isascii() and asker.isdecimal() and len(asker) <= MAX_DIGITS):
            return []
        known = self.with_number(int(asker))
        meant = [known] if known is not None else [each for each in self._all.values() if each.number is None]
        found = []
        for each in meant:
            is_itself = self.knows_speakers and speaker is not None and speaker == each.owner
            if (each.answers if is_itself else each.others_answers).take(now):
                found.append(each.address)
        return found
