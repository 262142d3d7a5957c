"""The columns of the report: for each the figure, the comparison and the format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.figures import Summary
from bench.samples import DIRECT, REFERENCE, Samples

__all__ = ["COLUMNS", "Column", "rows"]

Figure = Callable[[Samples, str], Summary | None]


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    figure: Figure
    digits: int = 0


def _plain(name: str) -> Figure:
    return lambda samples, peer: samples.plain(peer, name)


def _added(name: str) -> Figure:
    return lambda samples, peer: samples.added(peer, name)


def _ratio(name: str, to: str) -> Figure:
    return lambda samples, peer: samples.ratio(peer, name, to)


def _beside(name: str, beside: str) -> Figure:
    return lambda samples, peer: samples.ratio_beside(peer, name, beside)


def _gateways_only(figure: Figure) -> Figure:
    return lambda samples, peer: None if peer == DIRECT else figure(samples, peer)


COLUMNS = (
    Column("CPU µs/token", _gateways_only(_plain("cpu_us")), 1),
    Column(f"× {REFERENCE}", _beside("cpu_us", "reference_cpu_us"), 2),
    Column("wait µs/token", _gateways_only(_plain("wait_us")), 1),
    Column("+ latency p50 µs", _added("latency_p50_us")),
    Column("+ latency p99 µs", _added("latency_p99_us")),
    Column("+ TTFT p50 ms", _added("ttft_p50_ms"), 2),
    Column("+ TTFT p95 ms", _added("ttft_p95_ms"), 2),
    Column(f"TTFT × {REFERENCE}", _gateways_only(_ratio("ttft_p50_ms", REFERENCE)), 2),
    Column("saturated tokens/s", _plain("saturated")),
    Column("× direct", _ratio("saturated", DIRECT), 2),
    Column("llama-server, share", _ratio("real", DIRECT), 3),
    Column("llama-server, TTFT p50 ms", _plain("real_ttft_p50_ms"), 2),
    Column(f"its TTFT × {REFERENCE}", _gateways_only(_ratio("real_ttft_p50_ms", REFERENCE)), 2),
    Column("idle MiB", _plain("idle_mib")),
    Column("KiB/stream, 200", _plain("stream_kib_200")),
    Column("KiB/stream, 1000", _plain("stream_kib_1000")),
)


def rows(samples: Samples, columns: Sequence[Column] = COLUMNS) -> tuple[list[str], list[list[str]]]:
    """Return titles and rows. A column without any figure is left out."""
    cells = {column: {peer: column.figure(samples, peer) for peer in samples.values} for column in columns}
    shown = [column for column in columns if any(cells[column].values())]
    body = [
        [peer, *(_cell(cells[column][peer], column.digits) for column in shown)] for peer in samples.values
    ]
    return ["", *(column.title for column in shown)], body


def _cell(summary: Summary | None, digits: int) -> str:
    """Format `median (least-most)`, or the median alone if there was one round."""
    if summary is None:
        return "-"
    middle, least, most = (f"{value:,.{digits}f}" for value in (summary.median, summary.least, summary.most))
    return middle if summary.least == summary.most else f"{middle} ({least}…{most})"
