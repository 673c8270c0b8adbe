"""Stock clients that give a signed token for a password: paho and mosquitto_pub."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from tests.node.identity import RSA_KEY, key_set, sign
from tests.programs import need_program, run_node, wait_until

REFUSED = {"311": 4, "5": 134}  # as mosquitto_pub ends: bad user name or password


def test_paho_and_mosquitto_pub_are_let_in_by_tokens(tmp_path: Path) -> None:
    program = need_program("mosquitto_pub")
    keys, acl = tmp_path / "keys.json", tmp_path / "acl"
    keys.write_text(json.dumps(key_set(farm=RSA_KEY)))
    acl.write_text("group cowherds\ntopic readwrite cows/#\n")
    token = sign(RSA_KEY, "farm", "RS256", groups=["cowherds"])
    options = ("--jwt-keys", str(keys), "--jwt-algorithm", "RS256", "--acl", str(acl))
    with run_node(tmp_path, *options) as node:
        heard: list[str] = []
        for version in (MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5):
            client = paho.Client(CallbackAPIVersion.VERSION2, "paho", protocol=version)

            def connected(client: Any, *_: Any) -> None:
                client.subscribe("#", 1)

            def subscribed(client: Any, *_: Any) -> None:
                client.publish("cows/paho", "1", 1)

            def received(client: Any, data: Any, message: Any) -> None:
                heard.append(message.topic)

            client.on_connect, client.on_subscribe, client.on_message = connected, subscribed, received
            client.username_pw_set("anna", token)
            client.connect("127.0.0.1", node.port("mqtt"))
            client.loop_start()
            try:
                wait_until(lambda: "cows/paho" in heard, "paho to hear what it published")
                _ask_mosquitto(program, node.port("mqtt"), token)
                wait_until(lambda: heard.count("cows/mosquitto") == 2, "what mosquitto_pub published")
                assert "house/door" not in heard
            finally:
                client.disconnect()
                client.loop_stop()
            heard.clear()


def _ask_mosquitto(program: str, port: int, token: str) -> None:
    for version, refused in REFUSED.items():
        for topic in ("house/door", "cows/mosquitto"):
            assert _publish(program, port, version, token, topic) == 0
        assert _publish(program, port, version, token[:-8], "cows/mosquitto") == refused


def _publish(program: str, port: int, version: str, token: str, topic: str) -> int:
    where = ("-h", "127.0.0.1", "-p", str(port), "-V", version, "-u", "anna", "-P", token)
    command = (program, *where, "-t", topic, "-m", "1")
    return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode
