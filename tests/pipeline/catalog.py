"""A catalog of Iceberg tables in one JSON file: pyiceberg's own need SQLAlchemy or a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table


class FileCatalog(MetastoreCatalog, NoopCatalog):  # type: ignore[misc]
    """For one process that writes."""

    def __init__(self, place: Path) -> None:
        super().__init__("files", warehouse=place.as_uri())
        self._file = place / "catalog.json"

    def create_namespace_if_not_exists(self, namespace: Any, properties: Any = None) -> None:
        """A name is enough."""

    def load_table(self, identifier: Any) -> Table:
        location = self._locations().get(".".join(identifier))
        if location is None:
            raise NoSuchTableError(str(identifier))
        io = self._load_file_io(location=location)
        return Table(identifier, FromInputFile.table_metadata(io.new_input(location)), location, io, self)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        identifier = table.name()
        current = self.load_table(identifier) if self.table_exists(identifier) else None
        staged = self._update_and_stage_table(current, identifier, requirements, updates)
        self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
        locations = self._locations() | {".".join(identifier): staged.metadata_location}
        self._file.write_text(json.dumps(locations))
        return CommitTableResponse(metadata=staged.metadata, metadata_location=staged.metadata_location)

    def _locations(self) -> dict[str, str]:
        return json.loads(self._file.read_text()) if self._file.exists() else {}
