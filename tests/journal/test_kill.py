"""A writer is killed with SIGKILL; what it said to be durable is there, once, and it goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hedgerow.journal import check
from tests.journal.plain import read_plain

# Writes messages whose numbers go on from what is there, sends the last ones of each life again, and prints
# each durable position.
PROGRAM = """
import sys
from pathlib import Path
from hedgerow.journal import Writer
from hedgerow.message import Message, MessageId

def tell(position):
    sys.stdout.write(f"{position}\\n")
    sys.stdout.flush()

writer = Writer(Path(sys.argv[1]), "node-a", on_durable=tell, segment_bytes=20_000, gather_s=0)
sequence = max(0, writer.next_position - 50)
while True:
    message = Message(f"field/{sequence % 7}", b"%d" % sequence, 1, id=MessageId("node-a", 1, sequence))
    writer.append(message, transport="mqtt", received_at=sequence)
    sequence += 1
    if sequence % 20 == 0:
        writer.flush()
"""


def test_killed_again_and_again(tmp_path: Path) -> None:
    durable = 0
    for life in range(6):
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert program.stdout is not None
        with program, program.stdout:
            for _ in range(10 + 7 * life):
                durable = int(program.stdout.readline())
            program.kill()
            for line in program.stdout:
                durable = int(line) if line.endswith("\n") else durable
        rows = read_plain(tmp_path)
        assert len(rows) >= durable
        assert [row.payload for row in rows] == [b"%d" % position for position in range(len(rows))]
    report = check(tmp_path)
    assert report.is_whole
    assert report.messages >= durable
