"""The journal of a node: what it records is durable before the store is, and before it is acknowledged.

Clients read it back by replays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hedgerow.journal.config import JournalConfig
from hedgerow.journal.io.node_journal import NodeJournal
from hedgerow.journal.io.pages import JournalPages
from hedgerow.journal.observer import JournalObserver
from hedgerow.journal.replay.source import ReplaySource
from hedgerow.node.api import READ, ApiRoute, Call, either_none, list_of, record, table_of, text, whole
from hedgerow.node.part import NodeContext, Part

if TYPE_CHECKING:
    from prometheus_client.core import Metric

logger = logging.getLogger(__name__)

JOURNAL = record(
    {
        "topics": list_of(text(), "The filters of what is recorded, as far as you may read them."),
        "problem": either_none(text("Why not all is recorded, while that lasts.")),
        "figures": table_of(whole(), "Messages and bytes, recorded, durable, missed."),
    }
)


class JournalPart(Part):
    def __init__(self, node: NodeContext) -> None:
        super().__init__(node)
        self.journal: NodeJournal | None = None
        self._pages: JournalPages | None = None
        self._replays: ReplaySource | None = None
        self._has_turn = True  # One slice a turn of the loop: then sockets are read.

    async def start(self) -> None:
        """Raises StoreError."""
        config, broker = self.node.config.of(JournalConfig), self.node.broker
        self.log = self.journal = await NodeJournal.open(config, self.node.node_id)
        broker.observe(JournalObserver(self.journal, config.topics, config.interests))
        self._pages = JournalPages(self.journal, self.node.flush)
        self._replays = ReplaySource(broker, self._pages)
        self.journal.on_grown = self._grown
        broker.serve(self._replays)
        self._replays.restore()
        logger.info("recording %s in the journal in %s", ", ".join(config.topics), config.directory)

    async def close(self) -> None:
        if self._pages is not None:
            self._pages.close()
        if self.journal is not None:
            await self.journal.close()

    # Replays

    @property
    def has_work(self) -> bool:
        return self._has_turn and self._replays is not None and self._replays.behind > 0

    def serve(self) -> None:
        assert self._replays is not None
        self._has_turn = False
        has_fed = self._replays.serve()
        asyncio.get_running_loop().call_soon(self._next_turn, has_fed)

    def _next_turn(self, has_fed: bool) -> None:
        self._has_turn = True
        if has_fed:
            self.node.flush()

    def _grown(self) -> None:
        assert self._replays is not None
        self._replays.grown()
        self.node.flush()

    # What it shows

    @property
    def problem(self) -> str | None:
        return self.journal.failure if self.journal is not None else None

    def status(self) -> Mapping[str, Any]:
        return {"journal": self.journal.figures()} if self.journal is not None else {}

    def api(self) -> Sequence[ApiRoute]:
        return (
            ApiRoute(
                "GET",
                "/journals",
                READ,
                "The journals that this node writes, with their figures.",
                self._list_journals,
                record({"items": list_of(JOURNAL)}),
            ),
        )

    def _list_journals(self, call: Call) -> Any:
        config = self.node.config.of(JournalConfig)
        figures = self.journal.figures() if self.journal is not None else {}
        topics = [each for each in config.topics if call.caller.may_read(each)]
        return {"items": [{"topics": topics, "problem": self.problem, "figures": figures}]}

    def counts(self) -> Mapping[str, int]:
        if self.journal is None:
            return {}
        recorded = self.journal.figures()
        return {
            "journal_messages": recorded["messages/recorded"],
            "journal_missed": recorded["messages/missed"],
        }

    def metrics(self) -> Iterable[Metric]:
        from hedgerow.journal.metrics import journal_metrics, replay_metrics

        if self.journal is None or self._replays is None:
            return ()
        return [*journal_metrics(self.journal.figures()), *replay_metrics(self._replays)]
