"""Who goes first where many log-ins wait, and that the last get a turn too."""

from __future__ import annotations

from hedgerow.node.fair_line import Place
from hedgerow.node.login_line import OTHERS_TURN, LoginLine


class Line:
    """Of words such as `a1`: the first letter is the network, whose standing a test says."""

    def __init__(self, **standings: int) -> None:
        self.standings = standings
        self.line: LoginLine[str] = LoginLine(4, lambda word: self.standings[word[0]])

    def add(self, *words: str) -> None:
        for word in words:
            self.line.add(place_of(word), word)

    def take(self, count: int) -> list[str]:
        return [self.line.take(place_of) for _ in range(count)]


def place_of(word: str) -> Place:
    return word[0], word


def test_lower_standings_go_first_and_networks_of_one_take_turns() -> None:
    line = Line(a=1, b=1, c=0)
    line.add("a1", "a2", "b1", "c1")
    assert line.take(3) == ["c1", "a1", "b1"]


def test_whoever_has_fallen_meanwhile_waits_behind_the_others() -> None:
    line = Line(a=0, b=0)
    line.add("a1", "a2", "b1")
    assert line.take(1) == ["a1"]
    line.standings["a"] = 3
    line.add("b2")
    assert line.take(2) == ["b1", "b2"]
    assert line.take(1) == ["a2"]
    assert len(line.line) == 0


def test_the_last_line_has_one_turn_of_a_few() -> None:
    line = Line(a=0, b=3)
    line.add("b1", "b2", *(f"a{number}" for number in range(20)))
    taken = line.take(2 * OTHERS_TURN)
    assert [at for at, word in enumerate(taken) if word[0] == "b"] == [OTHERS_TURN - 1, 2 * OTHERS_TURN - 1]


def test_what_is_withdrawn_waits_in_no_line() -> None:
    line = Line(a=0)
    line.add("a1", "a2")
    line.standings["a"] = 2
    line.line.discard(place_of("a1"), "a1")
    line.line.discard(place_of("a9"), "a9")
    assert (len(line.line), line.line.size(("a",)), line.take(1)) == (1, 1, ["a2"])
