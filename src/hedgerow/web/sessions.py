"""Who looks at the dashboard: log-ins with the node's passwords, their cookies, and requests of other sites.

A log-in is known by a cookie of 32 random bytes, which scripts cannot read and other sites cannot send, for
`SESSION_S` at most. It ends earlier when the user logs out, is gone from the password file, or has another
password there. What is remembered of it is in memory alone, and bounded.

Passwords are verified where those of MQTT are (`node.logins`), in turn and whether or not the browser waits
for the answer; after several wrong ones the next has to wait.

A form holds its session's token, which no other site knows. That of the log-in form belongs to a cookie too,
so that nobody can be logged in as someone else. What else keeps other sites out is in `node.browsers`.
"""

from __future__ import annotations

import hmac
import logging
import re
import secrets
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from hedgerow.node.authority import host_and_port
from hedgerow.node.logins import Logins

if TYPE_CHECKING:
    from hedgerow.node.handlers import Request
    from hedgerow.node.part import NodeContext

SESSION_COOKIE = "hedgerow-session"
LOG_IN_COOKIE = "hedgerow-login"
SESSION_S = 12 * 3_600.0
LOG_IN_FORM_S = 3_600  # how long a log-in form may stand open
MAX_SESSIONS = 1_000  # A user with a script could make any number; who was idle longest goes.
MAX_NOTICES = 10  # of one session, until a page shows them
MAX_NAME, MAX_PASSWORD = 1_024, 4_096  # characters; nobody types more

_TOKEN = re.compile(r"[0-9a-f]{64}")


@dataclass(slots=True)
class LogIn:
    """One session. `entry` is the user's line of the password file, as it was at the log-in."""

    user: str
    entry: str
    ends_at: float
    token: str = field(default_factory=lambda: secrets.token_hex(32))
    notices: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_NOTICES))

    def take_notices(self) -> str:
        """What came of the actions since the last page that said it."""
        text = " ".join(self.notices)
        self.notices.clear()
        return text


@dataclass(slots=True)
class DashboardRefused:
    """A log-in with a wrong password, or something that the user may not do."""

    level: ClassVar[int] = logging.WARNING
    history_kind: ClassVar[str] = "refused"
    address: str
    reason: str

    def __str__(self) -> str:
        return f"dashboard: {self.reason}"


class Sessions:
    """The log-ins of one node. It asks the node for its passwords at each use: they may be reloaded."""

    def __init__(self, node: NodeContext) -> None:
        self.max_sessions = MAX_SESSIONS
        self._node = node
        self._log_ins: dict[str, LogIn] = {}  # by cookie; who was idle longest is first
        self._key = secrets.token_bytes(32)

    def __len__(self) -> int:
        return len(self._log_ins)

    @property
    def is_needed(self) -> bool:
        """Has the node users? Then nobody sees a page who is not one of them."""
        return self._node.config.has_users

    # Log-ins that there are

    def find(self, request: Request) -> LogIn | None:
        cookie = read_cookie(request, SESSION_COOKIE)
        log_in = self._log_ins.pop(cookie, None) if cookie is not None else None
        if cookie is None or log_in is None or not self._is_valid(log_in):
            return None
        self._log_ins[cookie] = log_in  # It is the one that was used last.
        return log_in

    def _is_valid(self, log_in: LogIn) -> bool:
        passwords = self._node.passwords
        if passwords is None or log_in.ends_at <= self._node.clock():
            return False
        entry = passwords.entry_of(log_in.user)
        return entry is not None and hmac.compare_digest(entry.encode(), log_in.entry.encode())

    def log_out(self, request: Request) -> None:
        cookie = read_cookie(request, SESSION_COOKIE)
        if cookie is not None:
            self._log_ins.pop(cookie, None)

    # Logging in

    async def log_in(self, request: Request, user: str, password: str) -> str | None:
        """The cookie of a new session; None when the password is wrong. Raises TooManyError."""
        entry = await self._verify(request.address, user, password)
        if entry is None:
            return None
        cookie = secrets.token_hex(32)
        while len(self._log_ins) >= self.max_sessions:
            del self._log_ins[next(iter(self._log_ins))]
        self._log_ins[cookie] = LogIn(user, entry, self._node.clock() + SESSION_S)
        return cookie

    async def _verify(self, address: str, user: str, password: str) -> str | None:
        """The user's entry if this is the password."""
        logins = self._node.find(Logins)
        if logins is None or not 0 < len(user) <= MAX_NAME or len(password) > MAX_PASSWORD:
            return None
        if not await logins.verify(address, user, password.encode(errors="surrogatepass")):
            return None
        passwords = self._node.passwords
        return None if passwords is None else passwords.entry_of(user)

    # The log-in form's token

    def begin_log_in(self, request: Request) -> tuple[str, str]:
        """(cookie, token) for a log-in form. Nothing is remembered of it: anyone may ask for one."""
        cookie = read_cookie(request, LOG_IN_COOKIE) or secrets.token_hex(32)
        return cookie, self._log_in_token(cookie)

    def is_from_log_in_form(self, request: Request) -> bool:
        cookie = read_cookie(request, LOG_IN_COOKIE)
        return cookie is not None and is_same(self._log_in_token(cookie), request.form.get("token", ""))

    def _log_in_token(self, cookie: str) -> str:
        return hmac.new(self._key, cookie.encode(), "sha256").hexdigest()


def is_same(known: str, given: str) -> bool:
    return hmac.compare_digest(known.encode(), given.encode(errors="surrogatepass"))


# Cookies


def cookie_name(request: Request, name: str) -> str:
    """With the port: browsers do not tell the ports of a host apart, and it may have several nodes."""
    port = host_and_port(request.headers.get("host", ""))[1]
    return name if port is None else f"{name}-{port}"


def read_cookie(request: Request, name: str) -> str | None:
    """The cookie's value, if it looks like one that we gave."""
    # Not by SimpleCookie: it finds none where one is odd, and other programs of this host give such ones.
    own = cookie_name(request, name)
    for cookie in request.headers.get("cookie", "").split(";"):
        found, _, value = cookie.strip().partition("=")
        if found == own and _TOKEN.fullmatch(value):
            return value
    return None


def set_cookie(request: Request, name: str, value: str, max_age_s: float) -> dict[str, str]:
    """The header; a `max_age_s` of 0 has the browser forget it."""
    secure = "; Secure" if request.is_tls else ""
    attributes = f"Path=/; Max-Age={int(max_age_s)}; HttpOnly; SameSite=Strict{secure}"
    return {"Set-Cookie": f"{cookie_name(request, name)}={value}; {attributes}"}
