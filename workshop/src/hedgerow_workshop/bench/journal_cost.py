"""What a journal costs our broker: messages a second with everything recorded, by those without.

Two of our brokers, one with `--journal "#"` and one without, carry the traffic of `qos0-1to1`, where a
message costs least and a journal weighs most. They take turns in short stretches, so that a slow moment of
the machine falls on both. QoS 0 does not wait for the disk: where that is slower than what comes, messages
are passed on without being recorded. So the share of those that were is told beside the rate.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from hedgerow.journal.io.files import durable_position
from hedgerow_workshop.bench import BenchError
from hedgerow_workshop.bench.broker import Shape, load
from hedgerow_workshop.bench.loader import Load
from hedgerow_workshop.bench.monitoring import TICK_S
from hedgerow_workshop.bench.peers import BROKERS, OURS, BrokerKind, Child, running

ROW = "journal-cost"
AT_LEAST = 0.7  # of the messages a second without a journal
WARM_UP_S = 0.3
STRETCH_S = 0.3
STRETCHES = 5
SETTLE_S = 0.3  # without a further commit: what was recorded is on the disk
GIVE_UP_S = 30.0
# Else a fast round leaves several GB.
MAX_BYTES = "1 GiB"


class Cost(NamedTuple):
    share: float
    """Messages a second with a journal, by those without: the median over the stretches."""
    processor: float
    """The same by second of the broker's processor time, all threads together, over all stretches: what else
    runs on the machine disturbs it least."""
    recorded: float
    """Of the messages, from 0 to 1."""


def measure(
    broker: BrokerKind = BROKERS[OURS], stretches: int = STRETCHES, stretch_s: float = STRETCH_S
) -> Cost:
    """One round."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hedgerow-bench-")))
        journal = directory / "records"
        subjects: list[tuple[Child, Load]] = []
        recording = ("--journal", "#", "--journal-dir", str(journal), "--journal-max-bytes", MAX_BYTES)
        for name, arguments in (("recording", recording), ("plain", ())):
            child = stack.enter_context(running(broker, directory / name, arguments))
            loaded = load(child, Shape())
            stack.callback(loaded.close)
            loaded.run(WARM_UP_S)
            subjects.append((child, loaded))
        shares: list[float] = []
        sent, took = [0, 0], [0.0, 0.0]
        first = _settled_position(journal)
        for _ in range(stretches):
            rates = []
            for number, (child, loaded) in enumerate(subjects):
                before = child.processor_s()
                measured = loaded.run(stretch_s)
                _settled_position(journal)
                sent[number] += measured.messages
                took[number] += child.processor_s() - before
                rates.append(measured.messages / measured.seconds)
            shares.append(rates[0] / rates[1])
        processor = sent[0] / max(took[0], TICK_S) / (sent[1] / max(took[1], TICK_S))
        recorded = _settled_position(journal) - first
        return Cost(statistics.median(shares), processor, recorded / sent[0])


def _settled_position(journal: Path) -> int:
    """Up to where the journal is durable, when it has come to rest."""
    position = -1
    give_up_at = time.monotonic() + GIVE_UP_S
    while time.monotonic() < give_up_at:
        last, position = position, durable_position(journal) or 0
        if position == last:
            return position
        time.sleep(SETTLE_S)
    raise BenchError("the journal did not come to rest")
