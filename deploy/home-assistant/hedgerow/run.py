"""Start a node as Home Assistant's options say: write the configuration, then become `hedgerow up`.

The supervisor writes the options as JSON, and keeps /data. Users become Hedgerow's password file. Without
users it does not start: Home Assistant's ports are open to the house.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def main(data: Path, hedgerow: list[str]) -> list[str]:
    """Write what is needed into `data`. Returns the command to become."""
    options = json.loads((data / "options.json").read_text("utf-8"))
    passwords = data / "passwords"
    passwords.unlink(missing_ok=True)
    for user in options["users"]:
        create = [] if passwords.exists() else ["-c"]
        subprocess.run(
            [*hedgerow, "passwd", *create, "--stdin", str(passwords), user["name"]],
            input=user["password"] + "\n",
            text=True,
            check=True,
        )
    if not passwords.exists():
        sys.exit("hedgerow: add a user in this add-on's configuration: without one nobody could connect")
    command = [
        *hedgerow,
        "up",
        "--id",
        options["id"],
        "--data",
        str(data / "node"),
        "--passwords",
        str(passwords),
    ]
    command += ["--mqtt", "*:1883", "--ws", "*:9001", "--http", "*:8780"]
    for neighbour in options["neighbours"]:
        command += ["--neighbour", neighbour]
    # Home Assistant's MQTT integration is a client of this node, and learns of its health.
    return [*command, "--home-assistant", "homeassistant"]


if __name__ == "__main__":
    arguments = main(Path("/data"), ["/usr/bin/hedgerow"])
    os.execv(arguments[0], arguments)  # noqa: S606
