"""Long fuzzing of the broker with atheris: `make fuzz`, or `python tests/fuzz/fuzz_session.py [FOLDER]`.

The input is a list of steps, each of a byte that says what happens and the bytes that it takes: a
stranger connects, sends, stops reading, goes away; time passes. The checks are those of
tests/broker/fuzz_checks.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

with atheris.instrument_imports(include=["hedgerow"]):
    from hedgerow.mqtt.packets import MQTT_5, Connect
    from tests.broker.fuzz_checks import Siege
    from tests.mqtt.strategies import VERSIONS

MAX_STEPS = 60


def test_one_input(data: bytes) -> None:
    provider = atheris.FuzzedDataProvider(data)
    siege = Siege(durable=provider.ConsumeBool())
    for _ in range(MAX_STEPS):
        if not provider.remaining_bytes():
            break
        step = provider.ConsumeIntInRange(0, 7)
        stranger = provider.ConsumeIntInRange(0, 7)
        if step == 0:
            siege.open()
        elif step == 1:
            version = provider.PickValueInList(list(VERSIONS))
            packet = Connect(provider.PickValueInList(["a", "b"]), version, provider.ConsumeBool())
            if version == MQTT_5:
                packet.properties = {"session_expiry_interval": provider.ConsumeIntInRange(0, 20)}
            siege.connect(packet)
        elif step == 2:
            siege.lose(stranger)
        elif step == 3:
            siege.congest(stranger, provider.ConsumeBool())
        elif step == 4:
            siege.world.advance(provider.ConsumeIntInRange(0, 30))
        else:
            siege.send(stranger, provider.ConsumeBytes(provider.ConsumeIntInRange(0, 2_000)))
    siege.finish()


if __name__ == "__main__":
    atheris.Setup(sys.argv, test_one_input)
    atheris.Fuzz()
