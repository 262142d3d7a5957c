"""Format tables for a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["markdown", "plain"]


def plain(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align the first column to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    lines = [titles, ["-" * width for width in widths], *rows]
    return "\n".join("  ".join(_padded(line, widths)).rstrip() for line in lines)


def markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", *("---:" for _ in titles[1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in [titles, rule, *rows])


def _padded(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    first, *others = zip(line, widths, strict=True)
    return [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
