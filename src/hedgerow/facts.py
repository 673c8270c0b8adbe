"""What is reported of nodes and the links between them, to whoever keeps the log: `node/events.py` has what a
report is."""

from __future__ import annotations

import logging
from typing import ClassVar


class NodeFact:
    """Nothing in it is a client's. Its text is the line of the log."""

    __slots__ = ()
    level: ClassVar[int] = logging.INFO
    is_of_nodes: ClassVar[bool] = True
