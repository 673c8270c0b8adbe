"""The journal of a node: what it records is durable before the store is, and before it is acknowledged."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hedgerow.journal.config import JournalConfig
from hedgerow.journal.io.node_journal import NodeJournal
from hedgerow.journal.observer import JournalObserver
from hedgerow.node.api import READ, ApiRoute, Call, either_none, list_of, record, table_of, text, whole
from hedgerow.node.part import Part

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
    journal: NodeJournal | None = None

    async def start(self) -> None:
        """Raises StoreError."""
        config = self.node.config.of(JournalConfig)
        self.log = self.journal = await NodeJournal.open(config, self.node.node_id)
        self.node.broker.observe(JournalObserver(self.journal, config.topics, config.interests))
        logger.info("recording %s in the journal in %s", ", ".join(config.topics), config.directory)

    async def close(self) -> None:
        if self.journal is not None:
            await self.journal.close()

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
        from hedgerow.journal.metrics import journal_metrics

        return journal_metrics(self.journal.figures()) if self.journal is not None else ()
