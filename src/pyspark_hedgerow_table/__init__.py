"""As `pyspark_hedgerow`: the data source `hedgerow-table` is there in any session."""

from hedgerow.pipeline.growth import TableSource as DefaultSource

__all__ = ["DefaultSource"]
