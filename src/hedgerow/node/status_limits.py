"""The version of a node's status, and how much of each kind it tells; who reads one takes no more."""

STATUS_VERSION = 1

MAX_LINKS = 500
MAX_HOT = 50
MAX_EVENTS = 20
MAX_FILTERS = 1_000  # with their meshes
MAX_JOBS = 20  # of a pipeline
