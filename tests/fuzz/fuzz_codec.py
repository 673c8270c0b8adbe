"""Long fuzzing of the codec with atheris: `make fuzz`, or `python tests/fuzz/fuzz_codec.py [FOLDER]`.

Any bytes are a packet that can be written and read again, or a ProtocolError that names its clause;
the checks are those of tests/mqtt/test_fuzz_codec.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

with atheris.instrument_imports(include=["hedgerow"]):
    from tests.mqtt.strategies import VERSIONS
    from tests.mqtt.test_fuzz_codec import check_written_again, decode_or_refuse


def test_one_input(data: bytes) -> None:
    """First byte: the version. Then the first byte of a packet, and its body."""
    if len(data) < 2:
        return
    version = VERSIONS[data[0] % len(VERSIONS)]
    packet = decode_or_refuse(data[1], data[2:], version)
    if packet is not None:
        check_written_again(packet, version)


if __name__ == "__main__":
    atheris.Setup(sys.argv, test_one_input)
    atheris.Fuzz()
