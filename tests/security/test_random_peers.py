"""Strangers of every kind, in random stories: nobody reads, writes or loses what the rules protect."""

from __future__ import annotations

import pytest

from tests.security.stories import Story, tell

STORIES = 500
MANY_STORIES = 10_000
CHUNKS = 4  # so that several processes share them


def play(seed: int) -> None:
    """Of five stories one has no rules, and one a federation without a key."""
    story = tell(seed)
    kind = {"is_open": seed % 5 == 0, "is_keyed": seed % 5 != 1}
    try:
        Story(seed, **kind).play(story)
    except BaseException as error:
        steps = "\n".join(map(repr, story))
        error.add_note(f"story of play({seed}), {kind}:\n{steps}")
        raise


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("stories", [STORIES, pytest.param(MANY_STORIES, marks=pytest.mark.soak)])
def test_random_peers(stories: int, chunk: int) -> None:
    for seed in range(chunk, stories, CHUNKS):
        play(seed)
