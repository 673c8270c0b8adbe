"""The simulator over a grid of parameters, spread over Spark's executors."""
