"""Queries: which are allowed, and the messages for the others."""

from __future__ import annotations

import pytest

from slotgate.gateway.usage import UsageQuery, UsageTotal
from slotgate.gateway.usage.table import as_csv, as_json, as_table


@pytest.mark.parametrize(
    ("group", "first", "last", "sentence"),
    [
        ("tenant,nothing", "", "", "'nothing' is none of them"),
        ("tenant;model", "", "", "'tenant;model' is none of them"),
        ("tenant,", "", "", "'' is none of them"),
        ("day,day", "", "", "twice"),
        ("", "yesterday", "", "from is a day such as"),
        ("", "2027-02-30", "", "from is a day such as"),
        ("", "20270115", "", "from is a day such as"),
        ("", "", "2027-01-15T00:00", "to is a day such as"),
        ("", "2027-01-15", "2027-01-14", "from is later than to"),
    ],
)
def test_a_nonsensical_query_is_refused_with_a_message(
    group: str, first: str, last: str, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        UsageQuery.parse(group, first, last)


QUESTION = UsageQuery.parse("tenant,key")
TOTALS = [
    UsageTotal(("a", None), (1200, 1, 0, 34_000, 0, 5, 4, 3), 2400.0),
    UsageTotal(("team\x1b[31m", "ci"), (3, 0, 2, 1, 1, 1, 0, 0), 0.0),
]


def test_the_table_is_aligned_and_escapes_control_characters() -> None:
    head, first, second, total = as_table(QUESTION, TOTALS).splitlines()
    assert head.split() == [
        *("tenant", "key", "requests", "errors", "partial", "prompt", "tokens", "cached", "tokens"),
        *("completion", "tokens", "reasoning", "tokens", "estimated", "queue", "ms", "mean"),
    ]
    assert first.split() == ["a", "-", "1,200", "1", "0", "34,000", "0", "5", "4", "3", "2.0"]
    assert second.startswith("'team\\x1b[31m'")
    assert total.split() == ["total", "1,203", "1", "2", "34,001", "1", "6", "4", "3", "2.0"]
    assert {len(line) for line in (head, first, second, total)} == {len(head)}


def test_an_empty_table_says_so() -> None:
    assert as_table(UsageQuery.parse(""), [UsageTotal((), (0, 0, 0, 0, 0, 0, 0, 0), 0.0)]) == "no records\n"
    assert as_table(QUESTION, []) == "no records\n"


def test_a_single_total_is_a_single_line() -> None:
    lines = as_table(UsageQuery.parse(""), [UsageTotal((), (2, 0, 0, 1, 1, 1, 0, 0), 0.0)]).splitlines()
    assert [line.split()[0] for line in lines] == ["requests", "2"]


def test_programs_get_csv_and_json() -> None:
    head, first, _ = as_csv(QUESTION, TOTALS).splitlines()
    assert head.startswith(
        "tenant,key,requests,errors,partial,prompt_tokens,cached_tokens,completion_tokens,"
    )
    assert first == "a,,1200,1,0,34000,0,5,4,3,2400.0,2.0"
    assert '"key": null' in as_json(QUESTION, TOTALS)
