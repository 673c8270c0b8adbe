"""What the dashboard's tests look at it with: a browser that keeps cookies and follows nothing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from hedgerow.node.config import Config
from hedgerow.node.passwords import set_password
from hedgerow.node.server import Server
from hedgerow.parts import make_server
from hedgerow.web.dashboard import Dashboard
from tests.node.peers import LOOPBACK, NOWHERE, part_of, port_of
from tests.waiting import PATIENCE_S

PASSWORD = "correct horse"


@dataclass(slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str

    def field(self, name: str) -> str:
        """The value of a form's hidden field."""
        found = re.search(rf'name="{name}" value="([^"]*)"', self.text)
        assert found is not None, f"no field {name} in {self.text}"
        return unescape(found[1])


class Browser:
    def __init__(self, port: int, host: str | None = None) -> None:
        self.port = port
        self.host = host or f"127.0.0.1:{port}"
        self.cookies: dict[str, str] = {}

    async def get(self, path: str, **headers: str) -> Answer:
        return await self._ask("GET", path, "", headers)

    async def post(self, path: str, form: dict[str, str], **headers: str) -> Answer:
        headers = {"content_type": "application/x-www-form-urlencoded"} | headers
        return await self._ask("POST", path, urlencode(form), headers)

    async def log_in(self, user: str, password: str = PASSWORD, back: str = "/") -> Answer:
        form = await self.get("/login?" + urlencode({"back": back}))
        fields = {"user": user, "password": password, "back": form.field("back")}
        return await self.post("/login", fields | {"token": form.field("token")})

    async def act(self, path: str, page: str = "/", **fields: str) -> str:
        """Do something as a form of the page would; the notice on the next one."""
        token = (await self.get(page)).field("token")
        answer = await self.post(path, {"token": token, "back": page} | fields)
        assert answer.status == 303, answer.text
        found = re.search(
            r'<p class="notice"[^>]*>(.*?)</p>', (await self.get(answer.headers["location"])).text
        )
        assert found is not None
        return unescape(re.sub("<[^>]*>", "", found[1]))

    async def _ask(self, method: str, path: str, body: str, headers: dict[str, str]) -> Answer:
        fields = {"host": self.host} | {name.replace("_", "-"): text for name, text in headers.items()}
        if self.cookies:
            fields["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if body:
            fields["content-length"] = str(len(body.encode()))
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n{body}".encode())
            top, _, content = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
            await writer.wait_closed()
        status, *lines = top.decode().split("\r\n")
        found = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        if "set-cookie" in found:
            name, value = found["set-cookie"].partition(";")[0].split("=", 1)
            self.cookies[name] = value
        return Answer(int(status.split()[1]), found, content.decode())


@dataclass(slots=True)
class Shown:
    """A node with its dashboard."""

    server: Server
    dashboard: Dashboard

    @property
    def port(self) -> int:
        return port_of(self.server, "http")

    def browser(self, host: str | None = None) -> Browser:
        return Browser(self.port, host)

    async def browser_of(self, user: str) -> Browser:
        browser = self.browser()
        assert (await browser.log_in(user)).status == 303
        return browser


@asynccontextmanager
async def showing(*rooms: object, **settings: Any) -> AsyncIterator[Shown]:
    config = Config(**(NOWHERE | {"mqtt": LOOPBACK, "http": LOOPBACK} | settings))
    server = make_server(config.with_rooms(*rooms))
    await server.start()
    try:
        yield Shown(server, part_of(server, Dashboard))
    finally:
        await server.stop()


def with_users(
    directory: Path, *users: str, acl: str = "", administrators: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Settings of a node that has these users, all with the same password."""
    passwords = directory / "passwords"
    for user in users:
        set_password(passwords, user, PASSWORD.encode(), create=not passwords.exists(), iterations=10)
    settings: dict[str, Any] = {"passwords": passwords, "administrators": frozenset(administrators)}
    if acl:
        rules = directory / "acl"
        rules.write_text(acl)
        settings["acl"] = rules
    return settings
