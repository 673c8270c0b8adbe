"""`hedgerow lab run genera`: the scene of *Self-Organizing Publish/Subscribe on the Network Edge* (Phil
Genera, 2022), and a larger one, beside MQTT 3.1.1."""
