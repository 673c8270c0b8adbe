"""What a module tells mypyc, which may compile it (`native.py`); in plain Python it means nothing.

mypyc knows the decorator by its name in `mypy_extensions`, which a node does not need to run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["mypyc_attr"]

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(*attributes: str, **settings: Any) -> Any:
        return lambda decorated: decorated
