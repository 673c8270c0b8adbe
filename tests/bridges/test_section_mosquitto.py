"""Mosquitto as the judge of sections: it takes what we take, and refuses what we refuse."""

from __future__ import annotations

import re
import socket
import subprocess
from pathlib import Path

import pytest

from hedgerow.bridges.section import read_section
from hedgerow.errors import ConfigError
from hedgerow_workshop.programs import free_port
from tests.programs import need_program, run_mosquitto
from tests.waiting import PATIENCE_S

ACCEPTED = [
    "connection plain\naddress 127.0.0.1:{port}\ntopic #",
    "# comment\n\nconnection many\naddresses 127.0.0.1:{port} localhost:{port} ::1:{port}\nround_robin 1\n"
    "topic a/+/b BOTH 2",
    "connection prefixes\naddress 127.0.0.1:{port}\n"
    'topic p out 0 L/ R/\ntopic p/# in 1 L/ ""\ntopic q both 2 "" R/\ntopic "" both 1 local remote\n'
    "topic clients/total in 0 test/ $SYS/broker/\ntopic x out 0 pre post",
    "connection ids\naddress 127.0.0.1:{port}\ntopic # both 1\nclientid far away\nlocal_clientid near\n"
    "cleansession true\nlocal_cleansession false\nusername rosa\npassword two words #3\n"
    'local_username lena\nlocal_password "x"',
    "connection times\naddress 127.0.0.1:{port}\ntopic #\nrestart_timeout 0.5 2\nkeepalive_interval 5\n"
    "idle_timeout 1\nthreshold 1\nstart_type once",
    "connection constant\naddress 127.0.0.1:{port}\ntopic #\nrestart_timeout 20\nkeepalive_interval 65535",
    "connection told\naddress 127.0.0.1:{port}\ntopic #\nnotifications true\nnotifications_local_only true\n"
    "notification_topic bridges/told\ntry_private false\nbridge_attempt_unsubscribe false\n"
    "bridge_outgoing_retain false\nbridge_max_packet_size 100000\nbridge_bind_address 127.0.0.1\n"
    "bridge_protocol_version mqttv50",
    "connection secret\naddress 127.0.0.1:{port}\ntopic #\nbridge_cafile no such/ca.pem\nbridge_capath none\n"
    "bridge_certfile own.pem\nbridge_keyfile own.key\nbridge_insecure false\nbridge_tls_version tlsv1.3\n"
    "bridge_alpn mqtt",
    "connection ümlaut\naddress 127.0.0.1:{port}\ntopic größe/# out 1 ö/ ü/\nbridge_protocol_version mqttv31",
]

REFUSED = [
    "address 127.0.0.1\nconnection b\ntopic #",
    "connection\naddress 127.0.0.1\ntopic #",
    "connection b\ntopic #",
    "connection b\naddress 127.0.0.1",
    "connection b\naddress 127.0.0.1:0\ntopic #",
    "connection b\naddress 127.0.0.1\naddress 127.0.0.1\ntopic #",
    "connection b\naddress 127.0.0.1\ntopic # sideways",
    "connection b\naddress 127.0.0.1\ntopic # out 3",
    "connection b\naddress 127.0.0.1\ntopic # out 0 a b/",
    "connection b\naddress 127.0.0.1\ntopic a out 0 +/ b/",
    'connection b\naddress 127.0.0.1\ntopic "" out 0 local',
    "connection b\naddress 127.0.0.1\ntopic #\nstart_type manual",
    "connection b\naddress 127.0.0.1\ntopic #\nnotifications maybe",
    "connection b\naddress 127.0.0.1\ntopic #\nrestart_timeout 30 10",
    "connection b\naddress 127.0.0.1\ntopic #\nusername a\nusername b",
    "connection b\naddress 127.0.0.1\ntopic #\nbridge_protocol_version mqttv4",
    "connection b\naddress 127.0.0.1\ntopic #\nno_such_option 1",
    "connection b\naddress 127.0.0.1\ntopic\t#",
]


def test_mosquitto_takes_what_we_take(tmp_path: Path) -> None:
    """Both as people write it and as we do. Mosquitto's log tells which client it takes each bridge for, and
    to what it subscribes for it here."""
    host = socket.gethostname()
    with socket.socket() as nobody:  # It has a port and does not listen: no bridge reaches anyone.
        nobody.bind(("127.0.0.1", 0))
        written = [text.format(port=nobody.getsockname()[1]) for text in ACCEPTED]
        sections = [read_section(text) for text in written]
        expected = {
            f"Bridge {section.local_clientid_on(host)} doing local SUBSCRIBE on topic {line.local_filter}"
            for section in sections
            for line in section.topics
            if line.is_out
        }
        ours = [section.to_text(mosquitto=(2, 0)) for section in sections]
        for name, texts in (("written", written), ("ours", ours)):
            directory = tmp_path / name
            directory.mkdir()
            with run_mosquitto(directory, *"\n".join(texts).split("\n")):
                log = (directory / "mosquitto.log").read_text()
            assert set(re.findall("Bridge .* doing local SUBSCRIBE on topic .*", log)) == expected


def test_mosquitto_refuses_what_we_refuse(tmp_path: Path) -> None:
    program = need_program("mosquitto")
    config = tmp_path / "mosquitto.conf"
    for text in REFUSED:
        with pytest.raises(ConfigError):
            read_section(text)
        config.write_text(f"listener {free_port()} 127.0.0.1\n{text}\n")
        ended = subprocess.run([program, "-c", config], capture_output=True, timeout=PATIENCE_S, check=False)
        assert ended.returncode != 0, text
        assert b"Error" in ended.stderr, ended.stderr
