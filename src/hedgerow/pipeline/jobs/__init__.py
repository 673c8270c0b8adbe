"""The jobs: small functions from DataFrame to DataFrame, each with the columns that it gives."""
