"""Neighbours that speak the document's own wire: federators that are not ours."""
