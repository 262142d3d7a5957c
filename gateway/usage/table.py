"""Format sums: a table for people, CSV and JSON for programs."""

from __future__ import annotations

import csv
import io

import orjson

from slotgate.gateway.usage.query import SUMS, UsageQuery, UsageTotal

__all__ = ["as_csv", "as_json", "as_table"]

_COLUMNS = (*SUMS, "queue_ms_mean")
"""The columns of the table after those of the group."""


def as_json(question: UsageQuery, totals: list[UsageTotal]) -> str:
    return orjson.dumps(_facts(question, totals), option=orjson.OPT_INDENT_2).decode() + "\n"


def as_csv(question: UsageQuery, totals: list[UsageTotal]) -> str:
    text = io.StringIO()
    names = [*question.group, *SUMS, "queue_ms", "queue_ms_mean"]
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_facts(question, totals))
    return text.getvalue()


def as_table(question: UsageQuery, totals: list[UsageTotal]) -> str:
    """Align names to the left and numbers to the right. With several groups the last line is their total."""
    if not any(total.sums[0] for total in totals):
        return "no records\n"
    rows = [_cells(total) for total in totals]
    if len(totals) > 1:
        rows.append(["total", *[""] * (len(question.group) - 1), *_cells(_sum(totals))])
    head = [name.replace("_", " ") for name in (*question.group, *_COLUMNS)]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    names = len(question.group)
    lines = [
        "  ".join(
            cell.ljust(width) if column < names else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [head, *rows]
    ]
    return "\n".join(lines) + "\n"


def _facts(question: UsageQuery, totals: list[UsageTotal]) -> list[dict[str, object]]:
    return [total.facts(question.group) for total in totals]


def _cells(total: UsageTotal) -> list[str]:
    names = ["-" if value is None else _plain(value) for value in total.group]
    return [*names, *(f"{number:,}" for number in total.sums), f"{total.queue_ms_mean:,.1f}"]


def _sum(totals: list[UsageTotal]) -> UsageTotal:
    sums = tuple(sum(column) for column in zip(*(total.sums for total in totals), strict=True))
    return UsageTotal((), sums, sum(total.queue_ms for total in totals))


def _plain(text: str) -> str:
    """Escape text that is not printable: a model's name may contain commands for terminals."""
    return text if text.isprintable() else ascii(text)
