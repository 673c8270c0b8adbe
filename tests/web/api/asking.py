"""A program that uses the API of a node in this process, with or without a token."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hedgerow.node.server import Server
from hedgerow.web.api.tokens import create_token
from hedgerow.web.config import ApiConfig
from tests.node.peers import port_of
from tests.waiting import PATIENCE_S

ROOT = "/api/v1"


@dataclass(slots=True)
class Told:
    status: int
    headers: dict[str, str]
    body: Any


class Asker:
    def __init__(self, server: Server, authorization: str | None = None) -> None:
        self._port = port_of(server, "http")
        self._headers = {"host": "localhost"}
        if authorization is not None:
            self._headers["authorization"] = authorization

    async def ask(self, method: str, path: str, body: object = None, **headers: str) -> Told:
        content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        fields = self._headers | {name.replace("_", "-"): text for name, text in headers.items()}
        if body is not None:
            fields = {"content-type": "application/json", "content-length": str(len(content))} | fields
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            writer.write(f"{method} {ROOT}{path} HTTP/1.1\r\n{head}\r\n".encode() + content)
            top, _, text = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
            await writer.wait_closed()
        status, *lines = top.decode().split("\r\n")
        told = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        is_json = "json" in told.get("content-type", "")
        return Told(int(status.split()[1]), told, json.loads(text) if is_json and text else text)

    async def get(self, path: str) -> Any:
        told = await self.ask("GET", path)
        assert told.status == 200, told
        return told.body

    async def all_of(self, path: str, limit: int) -> list[Any]:
        """Of a list, page by page."""
        items: list[Any] = []
        sign, after = "&" if "?" in path else "?", ""
        while True:
            part = await self.get(f"{path}{sign}limit={limit}{after}")
            assert len(part["items"]) <= limit
            items += part["items"]
            if part["next"] is None:
                return items
            after = f"&after={part['next']}"


def with_tokens(directory: Path, **rights: str) -> tuple[ApiConfig, dict[str, str]]:
    """Settings of a node with a token of each name, which has these rights, and after "@" this user; and what
    to
    say in Authorization for each."""
    file = directory / "tokens"
    said = {}
    for name, words in rights.items():
        some, _, user = words.partition("@")
        said[name] = f"Bearer {create_token(file, name, some.split(','), user or None)}"
    return ApiConfig(tokens=file), said


def as_user(name: str, password: str) -> str:
    return f"Basic {b64encode(f'{name}:{password}'.encode()).decode()}"
