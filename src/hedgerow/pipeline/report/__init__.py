"""One page over the pipeline's tables, and over what other packages add."""
