"""A replay whose node and whose client are killed: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.conftest import StartNode
from tests.faults.test_recorder import EXPECTED, MESSAGES, published, recorder_of


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
async def test_killed_again_and_again(hedgerow_node: StartNode, tmp_path: Path, kills: int) -> None:
    """The client keeps what it acknowledges. Some is of the past, and some comes while it reads."""
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    data = str(tmp_path / "data")
    node = hedgerow_node("--data", data, "--journal", "#")
    url = node.urls["mqtt"]
    with (
        recorder_of(tmp_path, url, topic_filter="$replay/all/#") as recorder,
        published(url, origin="press") as done,
    ):
        recorder.start()
        await recorder.until_recording()
        for kill in range(kills):
            reached = min(MESSAGES, recorder.rows + chance.randrange(1, 1 + MESSAGES // (kills + 1)))
            await recorder.until_rows(reached)
            if kill % 2:
                node.kill9()
                await asyncio.to_thread(node.start)
            else:
                recorder.kill()
                recorder.start()
                await recorder.until_recording()
        await done.wait()
        await recorder.until_rows(MESSAGES)
        assert recorder.contents() == EXPECTED
