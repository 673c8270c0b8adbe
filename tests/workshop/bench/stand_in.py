"""What `hedgerow up` and `hedgerow federate` are told by the bench, done by a Mosquitto with bridges.

It takes the words that the bench says and no others. `bench/#` goes to its neighbour whether or not somebody
subscribed; as a sidecar it takes it from the broker beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.packets import MQTT_3_1_1, Publish
from hedgerow_workshop.bench.wire import Mqtt
from hedgerow_workshop.programs import find_program


def tell_state(port: int, name: str) -> None:
    state = json.dumps({"neighbours": {"one": {}, "other": {}}}).encode()
    with Mqtt().connect(port) as connection:
        connection.sendall(
            encode(Publish(f"hedgerow/federation/state/{name}", state, retain=True), MQTT_3_1_1)
        )


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("command", choices=("up", "federate"))
    parser.add_argument("--id", required=True)
    parser.add_argument("--neighbour")
    parser.add_argument("--federation", action="store_true")
    parser.add_argument("--active-neighbours", type=int)
    parser.add_argument("--assume")
    for option, command in (("--mqtt", "up"), ("--broker", "federate")):
        parser.add_argument(option, required=sys.argv[1] == command)
    arguments = parser.parse_args()
    # It must listen somewhere, or it takes the default port.
    port = arguments.mqtt.rpartition(":")[2] if arguments.mqtt else None
    listener = f"listener {port} 127.0.0.1" if port else "listener 0 stand_in.socket"
    lines = [listener, "allow_anonymous true"]
    if os.geteuid() == 0:
        lines.append("user root")  # Otherwise it gives up root and cannot make the socket.
    for name, url, direction in (("home", arguments.broker, "in"), ("next", arguments.neighbour, "out")):
        if url:
            address = url.removeprefix("mqtt://")
            lines += [
                f"connection {arguments.id}-{name}",
                f"address {address}",
                f"topic bench/# {direction} 1",
            ]
    if arguments.broker:
        tell_state(int(arguments.broker.rpartition(":")[2]), arguments.id)
    Path("stand_in.conf").write_text("\n".join((*lines, "")))
    mosquitto = find_program("mosquitto")
    assert mosquitto is not None
    os.execv(mosquitto, [mosquitto, "-c", "stand_in.conf"])


if __name__ == "__main__":
    main()
