"""By which names the lab writes its journals (`hedgerow_workshop/lab/journals.py` says what is in them) and
the report finds what they hold."""

from __future__ import annotations

JOURNALS = "journals"
"""The directory of an experiment's journals, one a run."""
ROWS = "rows.json"
"""The file beside it with the experiment's own rows."""

OWN_TOPICS = "$lab/"
RUN, DUE, HAPPENED = (f"{OWN_TOPICS}{name}" for name in ("run", "due", "happened"))

# User properties.
ID, DUP, WARM_UP, GROUP = "hedgerow-id", "dup", "warm-up", "group"
