"""A service that is asked over HTTP who may log in: users of whom no file says anything.
 It gets POST with JSON, `{"username": …, "password": …, "address": …}`, the password in base64 where it is
not UTF-8 (`password_base64`), and `Authorization: Bearer SECRET`, if there is one. It answers 200 with
`{"allow": true}`, and may add `"groups": […]` for the ACL. Anything else is a no: another status, an answer
that cannot be read, none in time. Only an answer 200 with `{"allow": false}` counts as a wrong password; the
others are the service's own mistake.

A yes holds for `cache_s`, under an HMAC of name and password with a random key that never leaves the process.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
from base64 import b64encode
from collections.abc import Callable
from typing import TYPE_CHECKING

from hedgerow.errors import ConfigError, ConnectError
from hedgerow.node.values import read_utf8
from hedgerow.node.verdicts import MAX_GROUP, MAX_GROUPS, Claims, Verdict
from hedgerow.node.web_requests import ask_web

if TYPE_CHECKING:
    from hedgerow.node.config import LoginHook

logger = logging.getLogger(__name__)

MAX_CACHED = 10_000
WARN_S = 60.0  # at most so often: that the service is down is told for each log-in otherwise


class HookAsker:
    def __init__(self, hook: LoginHook, now: Callable[[], float]) -> None:
        """Raises ConfigError for a file that cannot be read."""
        self._hook = hook
        self._now = now
        self._headers = {"Content-Type": "application/json"}
        if hook.secret is not None:
            secret = read_utf8(hook.secret).split("\n", 1)[0].strip()
            if not secret or not secret.isascii() or not secret.isprintable():
                raise ConfigError(f"{hook.secret}: its first line is not a secret of printable ASCII")
            self._headers["Authorization"] = f"Bearer {secret}"
        self._key = secrets.token_bytes(32)
        self._cache: dict[bytes, tuple[Claims, float]] = {}  # and until when; the oldest first
        self._warned_at = float("-inf")

    async def ask(self, username: str, password: bytes, site: str) -> Verdict | None:
        """None: nobody knows, since the service did not say."""
        name = username.encode(errors="surrogatepass")
        mark = hmac.digest(self._key, len(name).to_bytes(4, "big") + name + password, "sha256")
        cached = self._cache.get(mark)
        if cached is not None and cached[1] > self._now():
            return cached[0]
        try:
            verdict = await self._ask(username, password, site)
        except (ConnectError, ValueError) as error:
            if self._now() >= self._warned_at + WARN_S:
                self._warned_at = self._now()
                logger.warning("hook.url: %s: nobody is let in by it", error)
            return None
        if isinstance(verdict, Claims):
            self._cache.pop(mark, None)
            if len(self._cache) >= MAX_CACHED:
                del self._cache[next(iter(self._cache))]
            self._cache[mark] = verdict, self._now() + self._hook.cache_s
        return verdict

    async def _ask(self, username: str, password: bytes, site: str) -> Verdict:
        question = {"username": username, "address": site}
        try:
            question["password"] = password.decode()
        except UnicodeDecodeError:
            question["password_base64"] = b64encode(password).decode()
        body = json.dumps(question).encode()
        answer = await ask_web(self._hook.url, self._hook.timeout_s, "POST", self._headers, body)
        if answer.status != 200:
            raise ConnectError(f"{self._hook.url} answers {answer.status}")
        try:
            told = json.loads(answer.body)
        except RecursionError:
            told = None
        if not isinstance(told, dict) or not isinstance(told.get("allow"), bool):
            raise ConnectError(f'{self._hook.url} does not answer {{"allow": true}} or false')
        if not told["allow"]:
            return False
        groups = told.get("groups")
        named = groups[:MAX_GROUPS] if isinstance(groups, list) else []
        return Claims(
            frozenset(each for each in named if isinstance(each, str) and 0 < len(each) <= MAX_GROUP)
        )
