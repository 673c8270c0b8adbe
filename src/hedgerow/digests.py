"""BLAKE2b, and the comparison of what is secret, without the rest of `hashlib` and `hmac`.

Those load the digests of OpenSSL too, half a MiB which a node that is idle has no other use for.
"""

from __future__ import annotations

__all__ = ["blake2b", "compare_digest"]

try:
    # What the two would give.
    from _blake2 import blake2b
    from _operator import _compare_digest as compare_digest
except ImportError:  # a Python that was built otherwise
    from hashlib import blake2b
    from hmac import compare_digest  # type: ignore[no-redef]
