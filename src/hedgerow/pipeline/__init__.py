"""The pipeline: Spark reads journals, and what it learns goes back into the fabric."""
