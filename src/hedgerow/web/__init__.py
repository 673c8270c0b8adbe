"""The dashboard: pages that a node renders from what the fabric tells of itself. No JavaScript of our own."""
