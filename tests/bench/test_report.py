"""Tables and pictures."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from bench.chart import bars
from bench.columns import COLUMNS, Column, rows
from bench.figures import Summary
from bench.samples import DIRECT, Samples
from bench.table import markdown, plain

TITLES = ["", "CPU", "rate"]
ROWS = [["nginx", "19.0", "135,000"], ["a", "-", "1"]]


def test_a_plain_table_has_names_to_the_left_and_numbers_to_the_right() -> None:
    assert plain(TITLES, ROWS).split("\n") == [
        "        CPU     rate",
        "-----  ----  -------",
        "nginx  19.0  135,000",
        "a         -        1",
    ]


def test_a_markdown_table_says_the_same() -> None:
    assert markdown(TITLES, ROWS).split("\n") == [
        "|  | CPU | rate |",
        "| --- | ---: | ---: |",
        "| nginx | 19.0 | 135,000 |",
        "| a | - | 1 |",
    ]


def test_a_cell_is_the_median_and_the_range() -> None:
    samples = Samples()
    for value in (1.25, 3.0, 2.0):
        samples.add("nginx", "cpu_us", value)
        samples.add("nginx", "reference_cpu_us", 2.0)
    samples.add(DIRECT, "cpu_us", 0.0)
    samples.add("envoy", "idle_mib", 60.0)
    titles, body = rows(samples)
    assert titles == ["", "CPU µs/token", "× nginx", "idle MiB"]
    assert body == [
        ["nginx", "2.0 (1.2…3.0)", "1.00 (0.62…1.50)", "-"],
        [DIRECT, "-", "-", "-"],
        ["envoy", "-", "-", "60"],
    ]


def test_columns_have_different_titles() -> None:
    assert len({column.title for column in COLUMNS}) == len(COLUMNS)
    assert isinstance(COLUMNS[0], Column)


def test_a_chart_has_a_bar_for_each_gateway_and_escapes_names() -> None:
    values = [("nginx", Summary(19, 18, 20)), ("a<b", Summary(38.04, 30, 40)), ("c", Summary(1234.5, 1, 2))]
    root = ET.fromstring(bars("CPU & time", "µs", values, ours="a<b"))
    space = "{http://www.w3.org/2000/svg}"
    texts = [text.text for text in root.iter(f"{space}text")]
    assert texts == ["CPU & time", "µs", "nginx", "19", "a<b", "38", "c", "1,234"]
    _, first, second, _ = root.iter(f"{space}rect")
    assert 2 * float(first.attrib["width"]) == pytest.approx(float(second.attrib["width"]), abs=1)
    assert first.attrib["fill"] != second.attrib["fill"]


def test_a_chart_without_values_is_valid() -> None:
    assert ET.fromstring(bars("t", "u", [], ours="slotgate")) is not None
