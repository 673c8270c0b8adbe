"""Records of runs that never were, with what the tests want to read from them."""

from __future__ import annotations

from hedgerow_workshop.lab.harness.record import Arrival
from hedgerow_workshop.lab.schmitt.record import (
    QOS,
    BridgeState,
    Departure,
    Mode,
    SchmittRecord,
    SchmittSpec,
    StepTaken,
)

BEGAN_AT = 1_000.0
INTERVAL_S = 0.01
STEPS = (("t0", 2.0, "5", "goes"), ("t4", 6.0, "5", "returns"))


def make_record(
    mode: Mode = Mode.PURE,
    departure: Departure = Departure.KILL,
    kind: str = "hedgerow",
    *,
    seconds: float = 10.0,
    missing: range = range(0),
    missing_qos1: range = range(0),
) -> SchmittRecord:
    """Broker 5 is away from 2 s to 6 s. Broker 2 does not hear these numbers at QoS 0 and at QoS 1."""
    record = SchmittRecord(
        SchmittSpec(kind, mode, departure), ["1", "2", "5"], "1", "2", BEGAN_AT, BEGAN_AT + seconds
    )
    record.sent = [BEGAN_AT + number * INTERVAL_S for number in range(round(seconds / INTERVAL_S))]
    record.happened = [StepTaken(name, BEGAN_AT + at, broker, does) for name, at, broker, does in STEPS]
    lost = {0: set(missing), 1: set(missing_qos1)}
    for broker in record.brokers:
        record.arrived[broker] = {
            qos: [
                Arrival(number, at + 0.002)
                for number, at in enumerate(record.sent)
                if not (broker == "2" and number in lost[qos])
                and not (broker == "5" and BEGAN_AT + 2 <= at < BEGAN_AT + 6.3)
            ]
            for qos in QOS
        }
    return record


def event(name: str, at: float, **fields: object) -> dict[str, object]:
    """As the agent prints it, `at` seconds into the run."""
    return {"time": BEGAN_AT + at, "event": name, **fields, "message": name}


def state(at: float, broker: str, far: str, word: str) -> BridgeState:
    return BridgeState(BEGAN_AT + at, broker, far, word)
