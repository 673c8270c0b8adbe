"""JSON Web Tokens (RFC 7519) in the place of passwords: which are believed, and the keys that sign them.
 A client gives the token as its password, and as its user name what the token says of it (`user_claim`), so
that lines, waits and logs know the user before the token is verified. A token must be signed by a key of the
set, by an algorithm of the list, and have an end; PyJWT checks that, in a thread. Groups that it names count
in the ACL.
 Keys come from a file, or from a URL: at the start, every `refresh_s`, and when a token names a key that is
not known, at most every `SOONEST_S`. Nobody waits for that: whoever comes with a new key's token before it is
there is refused, and comes again. While the URL does not answer, the keys that are known hold for
`MAX_AGE_S`.
"""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hedgerow.errors import ConfigError, ConnectError
from hedgerow.extras import install_command
from hedgerow.node.values import read_utf8
from hedgerow.node.verdicts import MAX_GROUP, MAX_GROUPS, Claims, Verdict
from hedgerow.node.web_requests import ask_web

if TYPE_CHECKING:
    from jwt import PyJWK

    from hedgerow.node.config import WebTokenRules

MAX_TOKEN_BYTES = 16 * 1024
MAX_KEYS = 100
SOONEST_S = 10.0
FETCH_S = 5.0
MAX_AGE_S = 86_400.0  # Whoever keeps us from the URL must not keep a key that was withdrawn for ever.


class WebTokens:
    def __init__(self, rules: WebTokenRules, now: Callable[[], float] = time.time) -> None:
        """Raises ConfigError for a file that is wrong, and where PyJWT is missing."""
        try:
            import jwt
        except ImportError:
            raise ConfigError(f"jwt.keys: PyJWT is not installed: {install_command('jwt')}") from None
        self._jwt = jwt
        self._rules = rules
        self._now = now
        self._keys: dict[str | None, PyJWK] = {}
        self._fetched_at = self._asked_at = float("-inf")
        self.is_key_missing = False
        """A token named one that is not known."""
        if not isinstance(rules.keys, str):
            self._keys = self._read(read_utf8(rules.keys), str(rules.keys))

    @property
    def url(self) -> str | None:
        return self._rules.keys if isinstance(self._rules.keys, str) else None

    @property
    def fetch_at(self) -> float:
        """When keys are to be fetched."""
        if self.url is None:
            return float("inf")
        is_urgent = self.is_key_missing or not self._keys
        return self._asked_at + (SOONEST_S if is_urgent else self._rules.refresh_s)

    async def fetch(self) -> None:
        """Raises ConnectError or ConfigError, and then the old keys hold."""
        assert self.url is not None
        self._asked_at, self.is_key_missing = self._now(), False
        answer = await ask_web(self.url, FETCH_S)
        if answer.status != 200:
            raise ConnectError(f"{self.url}: answers {answer.status}")
        self._keys = self._read(answer.body.decode(errors="replace"), self.url)
        self._fetched_at = self._now()

    def verify(self, username: str, token: bytes) -> Verdict:
        """Called in a thread."""
        jwt, rules = self._jwt, self._rules
        if len(token) > MAX_TOKEN_BYTES:
            return False
        try:
            key = self._key_of(jwt.get_unverified_header(token).get("kid"))
            if key is None:
                return False
            claims = jwt.decode(
                token,
                key,
                algorithms=list(rules.algorithms),
                issuer=rules.issuer,
                audience=rules.audience,
                leeway=rules.leeway_s,
                options={"require": ["exp", rules.user_claim], "verify_aud": rules.audience is not None},
            )
        except (jwt.PyJWTError, ValueError, TypeError, ArithmeticError, RecursionError):
            return False
        if claims[rules.user_claim] != username:
            return False
        return Claims(_groups(claims.get(rules.groups_claim)), float(claims["exp"]) + rules.leeway_s)

    def _key_of(self, key_id: object) -> PyJWK | None:
        is_old = self.url is not None and self._now() - self._fetched_at > MAX_AGE_S
        keys = {} if is_old else self._keys
        if key_id is None:  # There must be no choice.
            return next(iter(keys.values())) if len(keys) == 1 else None
        found = keys.get(key_id) if isinstance(key_id, str) else None
        self.is_key_missing |= found is None
        return found

    def _read(self, text: str, source: str) -> dict[str | None, PyJWK]:
        """A JSON Web Key Set (RFC 7517), without keys that cannot be used here. Raises ConfigError."""
        jwt = self._jwt
        try:
            keys = jwt.PyJWKSet.from_json(text).keys
        except (jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ConfigError(f"{source}: not a set of keys (JWKS) that can be used: {error}") from None
        return {key.key_id: key for key in keys[:MAX_KEYS] if key.public_key_use in (None, "sig")}


def claimed_user(token: str, user_claim: str) -> str | None:
    """Whom a token says that it is of. It proves nothing."""
    try:
        part = token.split(".")[1]
        claims: Any = json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        found = claims.get(user_claim)
    except (ValueError, IndexError, AttributeError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def _groups(claim: object) -> frozenset[str]:
    """A list of names, or names with blanks between them."""
    names = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else []
    return frozenset(
        name for name in names[:MAX_GROUPS] if isinstance(name, str) and 0 < len(name) <= MAX_GROUP
    )
