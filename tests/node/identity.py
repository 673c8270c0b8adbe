"""Who signs tokens and who answers a login hook: a web server in this process, and keys of its own."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

RSA_KEY = rsa.generate_private_key(65_537, 2_048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())


def key_set(**keys: Any) -> dict[str, Any]:
    """The public halves, by key id."""
    return {"keys": [{**_as_jwk(key), "kid": name, "use": "sig"} for name, key in keys.items()]}


def _as_jwk(key: Any) -> dict[str, Any]:
    algorithm: Any = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    found: dict[str, Any] = algorithm.to_jwk(key.public_key(), as_dict=True)
    return found


def sign(key: Any, key_id: str | None, algorithm: str, lasts_s: float = 60, **claims: Any) -> str:
    said = {"sub": "anna", "exp": time.time() + lasts_s} | claims
    said = {name: claim for name, claim in said.items() if claim is not None}
    headers = {} if key_id is None else {"kid": key_id}
    return jwt.encode(said, key, algorithm, headers=headers)


@dataclass
class WebService:
    """What it was asked, and what it answers: (status, body), or nothing at all for None."""

    url: str = ""
    answer: Callable[[bytes], tuple[int, object] | None] = lambda body: (200, {})
    asked: list[tuple[str, Any]] = field(default_factory=list)


@asynccontextmanager
async def web_service() -> AsyncIterator[WebService]:
    service = WebService()
    waiting: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        waiting.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:-2])
            body = await reader.readexactly(int(fields.get("content-length", 0)))
            service.asked.append((head, json.loads(body) if body else None))
            answer = service.answer(body)
            if answer is None:
                await reader.read()  # until whoever asked hangs up
                return
            content = json.dumps(answer[1]).encode()
            writer.write(
                f"HTTP/1.1 {answer[0]} x\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content
            )
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            waiting.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    service.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/keys"
    try:
        yield service
    finally:
        server.close()
        for task in list(waiting):
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
