"""The C allocator: large blocks go back to the system as soon as they are freed.

glibc takes large blocks from the system one by one at first. But whenever one is freed, it takes blocks up to
that size from its heap from then on, and a hole in the heap is not given back. After a few bodies of 24 MiB,
a process could keep several of them although none was in use.
"""

from __future__ import annotations

import ctypes

__all__ = ["give_back_large_blocks"]

_M_MMAP_THRESHOLD = -3
"""From malloc.h. Setting it also stops glibc from changing it."""
LARGE_BYTES = 512 * 1024


def give_back_large_blocks() -> bool:
    """Return False if the C library has no such setting."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES))
