"""docs/reference/mosquitto.md: every option of a mosquitto.conf, and what becomes of it."""

from __future__ import annotations

from collections.abc import Iterable

from hedgerow.bridges.options import HEDGEROW, OPTIONS
from hedgerow.cli.mosquitto.options import GENERAL, LISTENER, READ_BY_HAND, Fate, Needless, Sets, Unsupported
from reference_pages.source import code, head, table

NOT_OF_BRIDGES = {
    "bridge_identity": "TLS with shared keys is not supported",
    "bridge_psk": "TLS with shared keys is not supported",
    "bridge_require_ocsp": "certificates are not checked with their authority",
}


def page() -> str:
    lines = head(
        "Options of Mosquitto",
        "What `hedgerow up --mosquitto-conf FILE` and `hedgerow convert FILE` make of each option of "
        "Mosquitto 2.0. Those that are not honoured are named in the log at the start, with the reason. "
        "Where a node without one would let in more than the file says, it does not start.",
    )
    lines += ["## In general", "", *_fates(GENERAL.items())]
    lines += ["## Of listeners", "", *_fates(LISTENER.items())]
    lines += ["## Read together", "", *table(("option", "becomes"), _by_hand())]
    lines += ["## Of bridges", "", "A `connection` section is a bridge's file as it stands.", ""]
    lines += table(("option", ""), _bridges())
    return "\n".join(lines)


def _fates(options: Iterable[tuple[str, Fate]]) -> list[str]:
    return table(
        ("option", "", "key, or why"), [(code(word), *_fate(fate)) for word, fate in sorted(options)]
    )


def _fate(fate: Fate) -> tuple[str, str]:
    match fate:
        case Sets(key, _):
            return "honoured", code(key)
        case Needless(why):
            return "needs nothing", why
        case Unsupported(why, guards, unless):
            state = "refused: the node does not start" if guards else "not honoured"
            return state if unless is None else f"{state}, unless `{unless}`", why


def _by_hand() -> list[tuple[str, str]]:
    return [(code(word), becomes) for word, becomes in READ_BY_HAND.items()]


def _bridges() -> list[tuple[str, str]]:
    taken = [(code(option.word), "honoured") for option in OPTIONS.values() if option.since is not HEDGEROW]
    return taken + [(code(word), f"refused: {why}") for word, why in NOT_OF_BRIDGES.items()]
