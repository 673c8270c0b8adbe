"""Publish/subscribe with no server: topics become multicast groups.

`Member` is one participant. It is told what the application publishes and subscribes to and which
datagrams came, and says which to send and which groups to be in. docs/multicast.md describes the
protocol and its frame byte by byte.
"""
