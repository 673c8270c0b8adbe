"""Spark looks into packages called `pyspark_…` for data sources: so `hedgerow` is there in any session."""

from hedgerow.pipeline.source import HedgerowDataSource as DefaultSource

__all__ = ["DefaultSource"]
