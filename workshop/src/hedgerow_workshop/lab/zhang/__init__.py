"""`hedgerow lab run zhang`: the nine steps of *IoT Publish-/Subscribe Protocol* (Tianze Zhang, 2021), and
readings after them, beside MQTT 3.1.1."""
