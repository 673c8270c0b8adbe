"""A log on the disk: segments of frames, appended, synced and read by position.

The journal is one, and so is what waits for durable sessions. Here is what both have in common.
"""
