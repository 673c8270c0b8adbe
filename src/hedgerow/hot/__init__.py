"""Hot topics: which topics a broker with little capacity keeps, and which it delegates to a stronger one.

`HotTopics` decides by what was published a moment ago, `Naive` whatever is published. Both are a `Monitor`.
"""
