"""Long fuzzing of the sensors' protocol with atheris: `make fuzz`, or `python tests/fuzz/fuzz_sensors.py`.

The input is a list of steps: a datagram comes, the broker has a message, time passes. The checks are those
of tests/sensors/fuzz_checks.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

with atheris.instrument_imports(include=["hedgerow"]):
    from tests.sensors.fuzz_checks import HOSTS, TOPICS, Strangers, check_packet

MAX_STEPS = 60


def test_one_input(data: bytes) -> None:
    check_packet(data)
    provider = atheris.FuzzedDataProvider(data)
    strangers = Strangers(provider.PickValueInList([0.0, 0.5]))
    for _ in range(MAX_STEPS):
        if not provider.remaining_bytes():
            break
        step = provider.ConsumeIntInRange(0, 7)
        if step == 0:
            strangers.advance(provider.ConsumeIntInRange(0, 700))
        elif step == 1:
            topic = provider.PickValueInList(list(TOPICS.values()))
            strangers.send(topic, provider.ConsumeBytes(provider.ConsumeIntInRange(0, 20)))
        else:
            host = provider.PickValueInList(list(HOSTS))
            strangers.receive(provider.ConsumeBytes(provider.ConsumeIntInRange(0, 30)), host)


if __name__ == "__main__":
    atheris.Setup(sys.argv, test_one_input)
    atheris.Fuzz()
