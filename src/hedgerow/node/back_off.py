"""Who has to wait before the next password is looked at, because the last ones were wrong.

Wrong passwords count three times, each in its own table: for the user at that site (`rates.site_of`), for the
site, and for the user. The first few of each cost nothing. Then every further one doubles the wait, up to a
bound, and time forgives them one by one.

The wait of a user at a site may become long. It is the only one that refuses anybody, and a stranger at
another site has no part in it: nobody can lock a user out from elsewhere. The waits of a site (which tries
many users) and of a user (whom many sites try) stay short, and whoever logged in from that site before does
not have them.

Wrong passwords are counted for the widest network of a site, too. They have nobody wait: they say who goes
first where many wait (`login_line.py`).

Users that do not exist are counted as those that do: a wait says nothing about the password file.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from hedgerow.digests import blake2b
from hedgerow.rates import is_loopback, networks_of

# Each of these tables grows by names and addresses that an attacker chooses.
MAX_FAILING = 4_096  # entries of a table; the one that has failed longest ago goes
MAX_KNOWN = 10_000  # users at sites from which they have logged in


class BackOffRule(NamedTuple):
    free: int
    """Wrong passwords that cost nothing."""
    first_s: float
    most_s: float
    forgive_s: float
    """One is forgiven after each such time without another."""


PAIR = BackOffRule(free=5, first_s=1.0, most_s=60.0, forgive_s=60.0)
SITE = BackOffRule(free=20, first_s=0.25, most_s=4.0, forgive_s=10.0)
USER = BackOffRule(free=20, first_s=0.25, most_s=4.0, forgive_s=60.0)
NETWORK = BackOffRule(free=0, first_s=0.0, most_s=0.0, forgive_s=60.0)

KNOWN = 0
STANDINGS = 8  # `KNOWN`, no wrong password, one, 2 to 3, 4 to 7, …


class WrongPasswords:
    """The wrong passwords of many keys, by one rule."""

    def __init__(self, rule: BackOffRule, max_failing: int = MAX_FAILING) -> None:
        self.rule = rule
        self._max_failing = max_failing
        self._failures: dict[Hashable, tuple[float, float]] = {}  # (how many, when the last one was)

    def __len__(self) -> int:
        return len(self._failures)

    def count(self, key: Hashable, now: float) -> float:
        count, at = self._failures.get(key, (0.0, now))
        return max(0.0, count - (now - at) // self.rule.forgive_s)

    def note(self, key: Hashable, now: float) -> None:
        count = self.count(key, now) + 1
        self._failures.pop(key, None)
        if len(self._failures) >= self._max_failing:
            del self._failures[next(iter(self._failures))]
        self._failures[key] = (count, now)

    def forget(self, key: Hashable) -> None:
        self._failures.pop(key, None)

    def delay_s(self, key: Hashable, now: float) -> float:
        """How long to wait after a wrong one."""
        rule = self.rule
        beyond = int(self.count(key, now)) - rule.free
        return min(rule.first_s * 2.0 ** min(beyond, 30), rule.most_s) if beyond >= 0 else 0.0

    def wait_s(self, key: Hashable, now: float) -> float:
        """How much of that is left."""
        _, at = self._failures.get(key, (0.0, now))
        return max(0.0, at + self.delay_s(key, now) - now)


class BackOff:
    def __init__(
        self, user_rule: BackOffRule = USER, max_failing: int = MAX_FAILING, max_known: int = MAX_KNOWN
    ) -> None:
        self._pairs, self._sites, self._users, self._networks = (
            WrongPasswords(rule, max_failing) for rule in (PAIR, SITE, user_rule, NETWORK)
        )
        self._max_known = max_known
        self._known: dict[tuple[bytes, str], None] = {}  # the one that logged in longest ago is first

    def __len__(self) -> int:
        """The largest table."""
        failing = max(len(each) for each in (self._pairs, self._sites, self._users, self._networks))
        return max(failing, len(self._known))

    def standing(self, user: str, site: str, now: float) -> int:
        """From 0, for who is looked at first, to `STANDINGS` - 1."""
        pair = _short(user), site
        if pair in self._known and not self._pairs.count(pair, now):
            return KNOWN
        wrong = int(self._networks.count(networks_of(site)[0], now))
        return min(1 + wrong.bit_length(), STANDINGS - 1)

    def wait_s(self, user: str, site: str, now: float) -> float:
        """For how long no password of this user from this site is to be looked at."""
        name = _short(user)
        wait_s = self._pairs.wait_s((name, site), now)
        # A proxy on this machine speaks for many sites.
        if (name, site) in self._known or is_loopback(site):
            return wait_s
        return max(wait_s, self._sites.wait_s(site, now))

    def delay_s(self, user: str, site: str, now: float) -> float:
        """How long each login of this user waits, however many wait: sites that try this user's name together
        must not take one another's turn, nor that of the user."""
        name = _short(user)
        return 0.0 if (name, site) in self._known else self._users.delay_s(name, now)

    def note(self, user: str, site: str, accepted: bool, now: float) -> None:
        pair = name, _ = _short(user), site
        if not accepted:
            self._pairs.note(pair, now)
            self._sites.note(site, now)
            self._users.note(name, now)
            self._networks.note(networks_of(site)[0], now)
            return
        self._pairs.forget(pair)
        self._known.pop(pair, None)
        if len(self._known) >= self._max_known:
            del self._known[next(iter(self._known))]
        self._known[pair] = None


def _short(user: str) -> bytes:
    """A name may have 65,535 bytes, and is remembered."""
    return blake2b(user.encode(errors="surrogatepass"), digest_size=16).digest()
