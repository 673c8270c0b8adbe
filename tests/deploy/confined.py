"""`python confined.py UNIT COMMAND…`: become the command, with the system calls that the unit leaves it.

The filter is the one that systemd would load for `SystemCallFilter=` and `RestrictAddressFamilies=`, but that
a call beyond it ends the process, so that nothing is refused unseen.
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

ALLOW = 0x7FFF0000
KILL_PROCESS = 0x80000000
EQUAL = 4


class Comparison(ctypes.Structure):
    """scmp_arg_cmp: argument, comparison, and its operands."""

    _fields_ = (
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("datum_a", ctypes.c_uint64),
        ("datum_b", ctypes.c_uint64),
    )


def values_of(unit: Path, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", unit.read_text(), re.MULTILINE)


def members(group: str) -> set[str]:
    """System calls of a group, as systemd has it."""
    command = ["systemd-analyze", "syscall-filter", "--no-pager", group]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    words = re.findall(r"^ +([@a-z0-9_-]+)$", listed, re.MULTILINE)
    return set().union(*(members(word) if word.startswith("@") else {word} for word in words))


def allowed_calls(unit: Path) -> set[str]:
    allowed = members("@default")  # which systemd adds to every list of what is allowed
    for line in values_of(unit, "SystemCallFilter"):
        is_taken_away = line.startswith("~")
        for word in line.removeprefix("~").split():
            calls = members(word) if word.startswith("@") else {word}
            allowed = allowed - calls if is_taken_away else allowed | calls
    # SQLite gives its files away if it is root, as a test may be and the service is not.
    return allowed | {"fchown"} if os.geteuid() == 0 else allowed


def load_filter(unit: Path) -> None:
    library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = (ctypes.c_uint32,)
    library.seccomp_load.argtypes = (ctypes.c_void_p,)
    library.seccomp_rule_add_array.argtypes = (
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.POINTER(Comparison),
    )
    context = library.seccomp_init(KILL_PROCESS)
    for name in sorted(allowed_calls(unit) - {"socket"}):
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:  # others are of other machines
            library.seccomp_rule_add_array(context, ALLOW, number, 0, None)
    for family in values_of(unit, "RestrictAddressFamilies")[0].split():
        only = Comparison(0, EQUAL, int(getattr(socket, family)), 0)
        number = library.seccomp_syscall_resolve_name(b"socket")
        library.seccomp_rule_add_array(context, ALLOW, number, 1, ctypes.byref(only))
    if library.seccomp_load(context) != 0:
        raise OSError(ctypes.get_errno(), "the filter cannot be loaded")


if __name__ == "__main__":
    load_filter(Path(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
