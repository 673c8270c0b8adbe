"""The farm whose traffic the pipeline's demo reads: everything is heard once, though a node is killed."""

from __future__ import annotations

from pathlib import Path

from hedgerow.journal import JournalReader, check
from hedgerow_workshop.lab.farm import FIELDS, NONSENSE_EVERY, Farm


async def test_everything_is_heard_and_journalled_once(tmp_path: Path) -> None:
    said: list[str] = []
    async with Farm(tmp_path, said.append) as farm:
        await farm.run(3.0)
    traffic = farm.traffic
    assert len(traffic.published) > NONSENSE_EVERY
    assert (traffic.lost, traffic.doubled) == (0, 0)
    assert said == ["south is killed, and started again"]
    house, *fields = farm.journals
    assert check(house).messages == len(traffic.published)
    for name, journal in zip(FIELDS, fields, strict=True):
        batches = JournalReader(journal).batches(columns=("origin", "transport"))
        rows = [row for batch in batches for row in batch.to_pylist()]
        own = [row for row in rows if row["transport"] != "neighbour"]
        assert len(own) == sum(each.origin == f"~{name}-station" for each in traffic.published)
        assert {row["origin"] for row in own} == {f"~{name}-station"}
