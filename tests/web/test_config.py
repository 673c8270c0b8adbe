"""Who sees the dashboard, as the configuration says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hedgerow.errors import ConfigError
from hedgerow.kinds import DASHBOARD, NODE
from hedgerow.node.config import Config
from hedgerow.node.config_loading import NodeKind, load_config
from hedgerow.web.config import serves_dashboard


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "passwords").touch()
    monkeypatch.chdir(tmp_path)


def load(text: str, kind: NodeKind = NODE) -> Config:
    path = Path("node.toml")
    path.write_text(text)
    return load_config(path, {}, kind)


def error_of(text: str, kind: NodeKind = NODE) -> str:
    with pytest.raises(ConfigError) as raised:
        load(text, kind)
    return str(raised.value)


@pytest.mark.parametrize("address", ["*:5", "192.168.1.2:5"])
def test_a_dashboard_for_strangers_must_be_meant(address: str) -> None:
    error = error_of(f'http = "{address}"')
    assert error.startswith(
        f"node.toml:1: http: on {address} anyone who reaches this machine could read every"
    )
    for remedy in ("access.passwords", "access.anonymous = true", "dashboard = false", "--no-dashboard"):
        assert remedy in error
    assert not serves_dashboard(load(f'http = "{address}"\ndashboard = false'))
    assert serves_dashboard(load(f'http = "{address}"\naccess.anonymous = true'))
    assert serves_dashboard(load(f'http = "{address}"\naccess.passwords = "passwords"'))
    assert serves_dashboard(load('http = "localhost:5"'))


def test_only_what_can_be_said_is_advised() -> None:
    error = error_of('http = "*:5"', DASHBOARD)
    assert error.endswith("on the dashboard: set access.passwords (--passwords FILE)")


def test_without_an_address_there_is_no_dashboard() -> None:
    assert not serves_dashboard(load('http = "off"'))
