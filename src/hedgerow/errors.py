"""The errors that Hedgerow raises, and what each one says about whose mistake it was.

Everything that leaves the public API derives from `HedgerowError`. Network input never raises
out of a machine: a `ProtocolError` travels only from the place that found the peer's mistake to
the one function that turns it into a reason code and a close.
"""

from __future__ import annotations

import re


class HedgerowError(Exception):
    """Base of every error of this package."""


class TopicError(HedgerowError, ValueError):
    """A topic name or topic filter that the specification does not allow."""


class ProtocolError(HedgerowError):
    """The peer broke the rules; `reason_code` is the answer that the specification names.

    `clause` is the specification's id of the rule (``MQTT-3.3.2-2``, or a section such as
    ``§3.1.2.9`` where the rule has no id), so that a log line can name it.
    """

    def __init__(self, reason_code: int, reason: str, clause: str = "") -> None:
        super().__init__(f"{reason} [{clause}]" if clause else reason)
        self.reason_code = reason_code
        self.reason = reason
        self.clause = clause


class ConfigError(HedgerowError):
    """Configuration that cannot be used; the text names the file, the line or key, and the reason."""


class StoreError(HedgerowError):
    """A store that cannot be opened (damaged, of a newer format, or in use: it is left untouched), or a
    write to it that failed whole and may be tried again."""


class ConnectError(HedgerowError):
    """A connection that could not be made, or was refused; `reason_code` when the server gave one."""

    def __init__(self, reason: str, reason_code: int | None = None) -> None:
        super().__init__(reason)
        self.reason_code = reason_code


class RefusedError(HedgerowError):
    """A publication or a subscription that the server did not take; `reason_code` says why."""

    def __init__(self, reason: str, reason_code: int) -> None:
        super().__init__(reason)
        self.reason_code = reason_code


def printable(text: str) -> str:
    """A stranger's words, for a log or a terminal: none of them ends a line or moves the cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


# C0, C1, and the separators at which programs that know Unicode begin a new line, or reverse the text.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def escape_controls(text: str, keep: str = "") -> str:
    """A stranger's words with what commands a terminal written out, such as \\x1b; `keep` stays as it is."""

    def escape(found: re.Match[str]) -> str:
        letter = found[0]
        return letter if letter in keep else letter.encode("unicode_escape").decode()

    return _CONTROLS.sub(escape, text)


def counted(number: int, what: str) -> str:
    """How many: 1 topic, 2 topics."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def reason_of(error: Exception) -> str:
    """What went wrong, in the system's own words where it has some."""
    return (isinstance(error, OSError) and error.strerror) or str(error)
