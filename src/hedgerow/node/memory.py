"""Memory that nobody uses any more, given back to the system.

What Python frees goes to the C library, which keeps most of it for what comes next: after a large table is
gone the process is as large as before.
"""

from __future__ import annotations

import ctypes
import gc


def give_back() -> bool:
    """False: this C library cannot. It is done in some milliseconds."""
    gc.collect()  # Python keeps thousands of small objects for reuse, each with a page around it.
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # not glibc; no libraries to be loaded; Windows
        return False
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return bool(trim(0))
