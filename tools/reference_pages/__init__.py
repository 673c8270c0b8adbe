"""The pages of docs/reference, one module each. `make_reference.py` writes them."""
