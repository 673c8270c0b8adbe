"""Long fuzzing of multicast with atheris: `make fuzz`, or `python tests/fuzz/fuzz_frame.py [FOLDER]`.

The first byte says of what. Of the frame: any bytes are one that can be written and read again, or a
FrameError; the check is that of tests/multicast/test_frame.py. Of a member: strangers say anything,
sealed with its key or not, and time passes; the checks are those of tests/multicast/fuzz_checks.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

with atheris.instrument_imports(include=["hedgerow"]):
    from hedgerow.multicast.frame import HEADER, MAX_SEQUENCE, VERSION
    from hedgerow.multicast.groups import topic_crc
    from tests.multicast.fuzz_checks import STRANGERS, TOPICS, Siege
    from tests.multicast.test_frame import read_or_refuse

MAX_STEPS = 30


def test_one_input(data: bytes) -> None:
    if not data:
        return
    if data[0] % 2:
        read_or_refuse(data[1:])
        return
    provider = atheris.FuzzedDataProvider(data[1:])
    siege = Siege(has_key=provider.ConsumeBool())
    for _ in range(MAX_STEPS):
        if not provider.remaining_bytes():
            break
        step = provider.ConsumeIntInRange(0, 9)
        if step == 0:
            siege.advance(provider.PickValueInList([0.001, 0.05, 1.0, 20.0]))
        elif step == 1:
            siege.publish(provider.PickValueInList(list(TOPICS)), provider.ConsumeIntInRange(0, 1_000))
        elif step == 2:
            siege.send(provider.ConsumeBytes(100), provider.PickValueInList([None, *TOPICS]))
        else:
            _say(siege, provider)
    siege.finish()


def _say(siege: Siege, provider: atheris.FuzzedDataProvider) -> None:
    about = provider.PickValueInList(list(TOPICS))
    header = HEADER.pack(
        VERSION,
        provider.ConsumeIntInRange(1, 12),
        provider.ConsumeIntInRange(0, 0x7FF),
        topic_crc(about),
        bytes(8),
        provider.PickValueInList([0, 1, 2, 3, 4, 5, 65_537, 2**64 - 1]),
        provider.ConsumeIntInRange(0, 10) or MAX_SEQUENCE,
    )
    body = provider.ConsumeBytes(provider.ConsumeIntInRange(0, 400))
    stranger = provider.PickValueInList(list(STRANGERS))
    siege.say(stranger, header + body, provider.PickValueInList([None, about]), provider.ConsumeBool())


if __name__ == "__main__":
    atheris.Setup(sys.argv, test_one_input)
    atheris.Fuzz()
