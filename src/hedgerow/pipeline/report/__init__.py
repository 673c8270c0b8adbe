"""One page over the lab's experiments and the pipeline's tables."""
