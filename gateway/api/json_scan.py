"""Finding the borders of strings in a JSON text, in steps of bounded length.

A regular expression holds the interpreter lock until it has matched, also in a thread. One match over a
string of 31 MB would stop every stream for a tenth of a second, so a match covers some hundred kilobytes at
most. The quantifiers are possessive (`}+`): with backtracking, the matcher would keep a position in memory
for every escape in a string.
"""

from __future__ import annotations

import re

__all__ = ["QUOTE", "string_end"]

QUOTE = ord('"')
_text = re.compile(rb'[^"\\]{0,65536}+(?:\\.[^"\\]{0,256}+){0,1024}+', re.DOTALL)


def string_end(document: bytes, start: int) -> int:
    """Return the position behind the string that begins at `start`; the document's end if it has none."""
    at = start + 1
    while at < len(document) and document[at] != QUOTE:
        match = _text.match(document, at)
        if match is None or match.end() == at:
            return len(document)  # a backslash is the last byte
        at = match.end()
    return min(at + 1, len(document))
