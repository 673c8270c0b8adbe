"""What experiments left (`--out`), read with Spark and shown as sections of the pipeline's report."""
