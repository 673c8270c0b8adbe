"""What people install, built and tried where nothing else is: in a bare Debian.

These take minutes, and need root, a network and `make packages`' tools: `make soak` runs them.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from hedgerow_workshop.programs import free_port
from tests.programs import ROOT, end, need_program, wait_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

IMAGE_MB = 80
BIN = Path(sys.executable).parent
# What pip needs of this machine, to find packages where this machine does.
PIP_FILES = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")


def call(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    call("make", "packages", f"PACKAGES={folder}")
    return folder


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Debian with Python and nothing else."""
    if os.geteuid() != 0:
        pytest.skip("a bare Debian needs root")
    root = tmp_path_factory.mktemp("debian") / "root"
    files = [*Path("/etc/apt").glob("sources.list.d/*.sources"), Path("/etc/apt/sources.list")]
    texts = [file.read_text() for file in files if file.is_file()]
    found = (re.search(r"^(?:URIs:|deb)\s+(?:\[.*\]\s+)?(\S+)", text, re.MULTILINE) for text in texts)
    mirror = next((each[1] for each in found if each is not None), None)
    if mirror is None:
        pytest.skip("no package mirror is configured on this machine")
    include = "--include=python3,python3-venv,ca-certificates"
    # The package of Debian is for the release that it was built on.
    release = platform.freedesktop_os_release()["VERSION_CODENAME"]
    call(need_program("debootstrap"), "--variant=minbase", include, release, root, mirror)
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
    return root


@contextmanager
def inside(root: Path, *folders: Path) -> Iterator[Sequence[str]]:
    """A command prefix for programs in that Debian. `folders` are at the same place there."""
    mounts = [f"mount --rbind /{name} {root}/{name}" for name in ("proc", "dev")]
    for path in (*folders, *map(Path, PIP_FILES), Path("/opt"), Path("/etc/resolv.conf")):
        if path.exists():
            here = root / path.relative_to("/")
            (here if path.is_dir() else here.parent).mkdir(parents=True, exist_ok=True)
            if not path.is_dir() and not here.exists():
                here.touch()
            mounts.append(f"mount --bind {path} {here}")
    script = " && ".join([*mounts, f'exec chroot {root} "$@"'])
    yield ("unshare", "--mount", "sh", "-c", script, "sh")


@contextmanager
def serving(command: Sequence[str | Path], log: Path, line: str) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        wait_until(
            lambda: line in log.read_text() or process.poll() is not None, f"{command} to print {line}", 60
        )
        assert process.poll() is None, log.read_text()
        yield
    finally:
        end(process)


def federate_there(prefix: Sequence[str], hedgerow: str, logs: Path) -> None:
    """Two nodes, linked: what is published at one is heard at the other; one serves the dashboard."""
    one, two, http = (str(free_port()) for _ in range(3))
    up = [*prefix, hedgerow, "up", "--ws", "off"]
    first = [*up, "--id", "one", "--federation", "--mqtt", f"127.0.0.1:{one}", "--http", f"127.0.0.1:{http}"]
    second = [*up, "--id", "two", "--neighbour", f"mqtt://127.0.0.1:{one}", "--mqtt", f"127.0.0.1:{two}"]
    with (
        serving(first, logs / "one", "is up"),
        serving([*second, "--http", "off"], logs / "two", "is a neighbour"),
    ):
        call(
            *prefix, hedgerow, "pub", "-h", "127.0.0.1", "-p", one, "-t", "t", "-m", "there", "-r", "-q", "1"
        )
        assert call(*prefix, hedgerow, "sub", "-h", "127.0.0.1", "-p", two, "-t", "t", "-C", "1") == "there\n"
        with urlopen(f"http://127.0.0.1:{http}/") as page:
            assert b"<title>" in page.read()


def test_the_wheel_and_the_source_archive_are_whole(packages: Path) -> None:
    (wheel,), (archive,) = packages.glob("*.whl"), packages.glob("*.tar.gz")
    names = zipfile.ZipFile(wheel).namelist()
    assert "hedgerow/cli/up.py" in names
    assert not [name for name in names if not name.startswith(("hedgerow/", "hedgerow-", "pyspark_hedgerow"))]
    with tarfile.open(archive) as source:
        assert any(name.endswith("/src/hedgerow/cli/up.py") for name in source.getnames())


def test_the_wheel_in_a_bare_debian(packages: Path, debian: Path, tmp_path: Path) -> None:
    (wheel,) = packages.glob("*.whl")
    with inside(debian, packages) as prefix:
        call(*prefix, "python3", "-m", "venv", "/srv/venv")
        call(*prefix, "/srv/venv/bin/pip", "install", "-q", f"{wheel}[dash]")
        federate_there(prefix, "/srv/venv/bin/hedgerow", tmp_path)


def test_the_debian_package_in_a_bare_debian(packages: Path, debian: Path, tmp_path: Path) -> None:
    (package,) = packages.glob("*.deb")
    with inside(debian, packages) as prefix:
        call(*prefix, "dpkg", "--install", str(package))
        call(*prefix, "hedgerow", "doctor", "--config", "/etc/hedgerow/hedgerow.toml")
        federate_there(prefix, "hedgerow", tmp_path)
        call(*prefix, "dpkg", "--purge", "hedgerow")
    assert not (debian / "opt/hedgerow").exists()


def test_the_image(debian: Path, tmp_path: Path) -> None:
    """Built by buildah, on the bare Debian in place of the image that a registry has."""
    buildah = [need_program("buildah"), "--storage-driver", "vfs", "--root", str(tmp_path / "images")]
    base = call(*buildah, "from", "scratch").strip()
    call("tar", "-C", debian, "-cf", tmp_path / "debian.tar", ".")
    call(*buildah, "add", "-q", base, tmp_path / "debian.tar", "/")
    call(*buildah, "commit", "-q", base, "localhost/debian")
    mounts = [
        word for path in (*PIP_FILES, "/opt") for word in ("-v", f"{path}:{path}:ro") if Path(path).exists()
    ]
    build = [*buildah, "bud", "--isolation", "chroot", "--format", "docker", *mounts]
    words = [
        "--build-arg",
        "DEBIAN=localhost/debian",
        "-f",
        "deploy/container/Containerfile",
        "-t",
        "hedgerow",
    ]
    call(*build, *words, ".")
    image = Path(call(*buildah, "mount", call(*buildah, "from", "localhost/hedgerow").strip()).strip())
    size = sum(path.lstat().st_size for path in image.rglob("*") if path.is_file() and not path.is_symlink())
    print(f"image: {size / 1e6:.1f} MB")
    assert size < IMAGE_MB * 1e6
    with inside(image) as prefix:
        federate_there(prefix, "/usr/bin/hedgerow", tmp_path)


def test_the_containerfile_and_the_chart_are_clean() -> None:
    # DL3008 asks for pinned versions of Debian's packages, which disappear from the mirrors.
    call(BIN / "hadolint", "--ignore", "DL3008", "deploy/container/Containerfile")
    call(BIN / "helm", "lint", "--strict", "deploy/helm/hedgerow")
    rendered = call(BIN / "helm", "template", "barn", "deploy/helm/hedgerow")
    assert "kind: StatefulSet" in rendered
