"""A source that takes filters where Spark hands them over, and does without where it does not.

Spark hands filters over if `spark.sql.python.filterPushdown.enabled` is set, which is off by default, and it
refuses a source that has `pushFilters` where it is off. It asks whether the method is that of its own base
class: `_PushFilters` answers that it is, so that a source can be used in any session.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter


class TakesFilters:
    def take_filters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Those that Spark still has to look at."""
        raise NotImplementedError

    @property
    def pushFilters(self) -> Any:  # noqa: N802
        return _PushFilters(self)


class _PushFilters:
    __func__ = staticmethod(DataSourceReader.pushFilters)  # of an instance it is not bound

    def __init__(self, reader: TakesFilters) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.take_filters(filters)
