"""Each compose file: its services run as processes, on hosts of their own that know each other by name."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.hosts import Host, network
from tests.programs import ROOT, need_program, wait_until

FOLDER = ROOT / "deploy/compose"
CONTAINERFILE = ROOT / "deploy/container/Containerfile"
HEDGEROW = [sys.executable, "-m", "hedgerow"]
PASSWORD = "change-me"  # as deploy/compose/farm/field/hedgerow.toml has it


class Service:
    """What a container would be: a host with its name, its volumes and its command."""

    def __init__(self, host: Host, declared: dict[str, Any], folders: dict[str, Path], logs: Path) -> None:
        self._host = host
        self._folders = folders
        self._names = logs / "hosts"
        self._log = logs / str(declared["hostname"])
        command = declared.get("command") or command_of_image()
        words = [self._here(word) for word in command]
        is_ours = declared["image"].startswith("hedgerow")
        self._start([*HEDGEROW, *words] if is_ours else [need_program(words[0]), *words[1:]])

    def _here(self, word: str) -> str:
        """A path of the container, as one of this machine."""
        for path, folder in self._folders.items():
            if word == path or word.startswith(f"{path}/"):
                return str(folder) + word.removeprefix(path)
        return word

    def run(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        command = [*self._wrapper, *words]
        return subprocess.run(command, capture_output=True, timeout=30, check=True)

    def _start(self, command: list[str]) -> None:
        with self._log.open("wb") as log:
            self.process = self._host.run(
                [*self._wrapper[len(self._host.wrapper) :], *command], stdout=log, stderr=log
            )

    @property
    def _wrapper(self) -> list[str]:
        names = 'mount --bind "$0" /etc/hosts && exec "$@"'
        return [*self._host.wrapper, "unshare", "--mount", "sh", "-c", names, str(self._names)]

    @property
    def log(self) -> str:
        return self._log.read_text()


def command_of_image() -> list[str]:
    """The node's: the last CMD of the Containerfile."""
    commands = re.findall(r"^CMD (\[.*\])$", CONTAINERFILE.read_text(), re.MULTILINE)
    command: list[str] = json.loads(commands[-1])
    return command


def read(name: str) -> dict[str, dict[str, Any]]:
    services: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / name / "compose.yml").read_text())[
        "services"
    ]
    return services


@contextmanager
def compose(
    name: str, folder: Path, prepare: Callable[[Path], None], *, without: str | None = None
) -> Iterator[dict[str, Service]]:
    """Run the services of a file, from a copy of its folder."""
    shutil.copytree(FOLDER / name, folder / "project")
    prepare(folder / "project")
    declared = {each: service for each, service in read(name).items() if each != without}
    logs = folder / "logs"
    logs.mkdir()
    with network(len(declared), ipv6=False) as net:
        hosts = dict(zip(declared, net.hosts, strict=True))
        lines = [f"{host.address4} {declared[each]['hostname']}" for each, host in hosts.items()]
        (logs / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        services = {}
        for each in in_order(declared):
            folders = {}
            for volume in declared[each].get("volumes", ()):
                source, target = volume.split(":")[:2]
                here = folder / "project" / source if source.startswith(".") else folder / "volumes" / source
                if not here.is_file():
                    here.mkdir(parents=True, exist_ok=True)
                folders[target] = here
            services[each] = Service(hosts[each], declared[each], folders, logs)
        yield services


def in_order(declared: dict[str, dict[str, Any]]) -> list[str]:
    """Those first that others depend on."""
    return sorted(declared, key=lambda each: len(declared[each].get("depends_on", ())))


def add_user(file: Path, name: str) -> None:
    create = [] if file.exists() else ["-c"]
    command = [*HEDGEROW, "passwd", *create, "--stdin", "-I", "1000", str(file), name]
    subprocess.run(command, input=PASSWORD.encode(), check=True)


def as_user(name: str) -> list[str]:
    return ["-u", name, "-P", PASSWORD]


def test_one_node(tmp_path: Path) -> None:
    def prepare(project: Path) -> None:
        add_user(project / "node/passwords", "alice")

    with compose("node", tmp_path, prepare) as services:
        node = services["node"]
        wait_until(lambda: "is up" in node.log, "the node")
        node.run(*HEDGEROW, "pub", "-h", "node", *as_user("alice"), "-t", "t", "-m", "kept", "-q", "1", "-r")
        heard = node.run(*HEDGEROW, "sub", "-h", "node", *as_user("alice"), "-t", "t", "-C", "1")
        assert heard.stdout == b"kept\n"
        health = health_check().replace("localhost", "127.0.0.1")
        node.run(sys.executable, "-c", health)


def health_check() -> str:
    found = re.search(r'CMD \["/usr/bin/python3", "-c", "(.*)"\]', CONTAINERFILE.read_text())
    assert found is not None
    return found[1]


def test_two_houses(tmp_path: Path) -> None:
    with compose("houses", tmp_path, lambda _: None) as services:
        house, barn = services["house"], services["barn"]
        wait_until(lambda: "is a neighbour" in services["house-federator"].log, "the federators to link")
        barn.run(need_program("mosquitto_pub"), "-h", "barn", "-t", "farm/soil", "-m", "31", "-r", "-q", "1")
        sub = [need_program("mosquitto_sub"), "-h", "house", "-t", "farm/+", "-C", "1", "-W", "20"]
        assert house.run(*sub).stdout == b"31\n"


def users_of_the_farm(project: Path) -> None:
    for name in ("farmer", "field"):
        add_user(project / "barn/passwords", name)
    add_user(project / "field/passwords", "farmer")


def publish_at_the_farm(services: dict[str, Service], journal: Path) -> None:
    """What comes from the field is heard in the barn, and its journal has it."""
    barn, field = services["barn"], services["field"]
    wait_until(lambda: "is a neighbour" in field.log, "the nodes to link")
    field.run(*HEDGEROW, "pub", "-h", "field", *as_user("farmer"), "-t", "farm/a", "-m", "7", "-q", "1", "-r")
    heard = barn.run(*HEDGEROW, "sub", "-h", "barn", *as_user("farmer"), "-t", "farm/#", "-C", "1")
    assert heard.stdout == b"7\n"
    wait_until(lambda: any(b"farm/a" in file.read_bytes() for file in journal.rglob("*.*")), "the journal")


def test_a_farm(tmp_path: Path) -> None:
    with compose("farm", tmp_path, users_of_the_farm, without="spark") as services:
        publish_at_the_farm(services, tmp_path / "volumes/barn/journal")


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_farm_with_spark(tmp_path: Path) -> None:
    with compose("farm", tmp_path, users_of_the_farm) as services:
        publish_at_the_farm(services, tmp_path / "volumes/barn/journal")
        log = tmp_path / "volumes/tables/bronze/_delta_log"
        wait_until(log.is_dir, "a table of Spark's", 180)
        services["spark"].process.terminate()
        assert services["spark"].process.wait(60) == 0


@pytest.mark.parametrize("name", ["node", "houses", "farm"])
def test_every_service_is_confined(name: str) -> None:
    for service, declared in read(name).items():
        if declared["image"] == "hedgerow":
            assert declared["read_only"] is True, service
            assert declared["cap_drop"] == ["ALL"], service
            assert declared["security_opt"] == ["no-new-privileges:true"], service
