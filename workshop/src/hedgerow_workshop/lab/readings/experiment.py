"""What the experiments with readings share: carrying scenes out, each in every way, and handing them in."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hedgerow.errors import ConfigError
from hedgerow_workshop.lab.harness import hosts
from hedgerow_workshop.lab.harness.brokers import OURS, check_kind
from hedgerow_workshop.lab.harness.experiment import Request
from hedgerow_workshop.lab.readings import measure
from hedgerow_workshop.lab.readings.record import ReadingsRecord
from hedgerow_workshop.lab.readings.run import ReadingsRun
from hedgerow_workshop.lab.readings.scene import MQTT, Scene, Way

CAPTURES = "captures"


def check(request: Request, name: str) -> str | None:
    """Why it cannot be carried out here; None: it can. Raises ConfigError."""
    if request.timeline is not None:
        raise ConfigError(f"{name} takes no --timeline")
    if request.broker != OURS:
        check_kind(request.broker)
    reason = hosts.why_not()
    return None if reason is None else f"Nothing was measured: there can be no hosts here ({reason})."


async def perform(
    runs: Sequence[tuple[Scene, Way]],
    directory: Path,
    request: Request,
    options_of: Callable[[Way], tuple[str, ...]] = lambda way: (),
) -> list[ReadingsRecord]:
    """One after the other, each with the machine to itself."""
    captures = directory / CAPTURES
    captures.mkdir()
    records = []
    for scene, way in runs:
        request.say(f"{scene.name}, {len(scene.devices)} devices, {way.name}: {scene.seconds:g} s …")
        place = directory / f"{scene.name}-{way.name}"
        kind = request.broker if way is MQTT else OURS  # No other broker speaks the other ways.
        run = ReadingsRun(scene, way, place, captures, kind, options_of(way))
        records.append(await run.perform())
    if request.out is not None:
        shutil.copytree(captures, request.out / CAPTURES, dirs_exist_ok=True)
    return records


def make_notes(request: Request, records: Sequence[ReadingsRecord]) -> Iterator[str]:
    if not records:
        return
    yield (
        f"MQTT 3.1.1 through {request.broker}, with IPv4, at the same QoS. Bytes are those of whole Ethernet "
        "frames, each counted once; with /cables, on the cable of every host that it reached."
    )
    for record in records:
        name = record.file_name
        of_what = ", ".join(f"{kind} {size:,}" for kind, size in record.sent_bytes.items())
        yield f"{name}: {record.readings} readings, {record.frames:,} frames; bytes: {of_what}."
        if record.missed_frames:
            yield f"{name}: the capture missed {record.missed_frames} frames, so its bytes are too few."
        strays = measure.strays(record)
        if strays:
            yield f"{name}: {strays} readings came to devices that had not subscribed to them."
