"""`hedgerow agent`: the topology machine on real brokers."""
