"""Draw a bar chart as SVG: one row per gateway, with a thin line for the range of the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from bench.figures import Summary

__all__ = ["bars"]

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 720, 130, 150, 26, 56
_INK, _BAR, _OURS, _LINE = "#24292f", "#9fb3c8", "#e8743b", "#57606a"


def bars(title: str, unit: str, values: Sequence[tuple[str, Summary]], *, ours: str) -> str:
    """Return the SVG document. The row `ours` is highlighted."""
    height = _TOP + _ROW * len(values) + 16
    longest = max((summary.most for _, summary in values), default=1.0) or 1.0
    scale = (_WIDTH - _LEFT - _RIGHT) / longest
    rows = [_row(number, name, summary, scale, ours) for number, (name, summary) in enumerate(values)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}">',
            f'<g font-family="system-ui, sans-serif" font-size="13" fill="{_INK}">',
            f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
            f'<text x="16" y="26" font-size="15" font-weight="600">{escape(title)}</text>',
            f'<text x="16" y="44" font-size="12" fill="{_LINE}">{escape(unit)}</text>',
            *rows,
            "</g>\n</svg>\n",
        ]
    )


def _row(number: int, name: str, summary: Summary, scale: float, ours: str) -> str:
    top = _TOP + number * _ROW
    middle = top + _ROW / 2
    end, least, most = (_LEFT + value * scale for value in (summary.median, summary.least, summary.most))
    colour = _OURS if name == ours else _BAR
    width = f'width="{max(end - _LEFT, 1):.1f}" height="{_ROW - 8}"'
    return "".join(
        [
            f'<text x="{_LEFT - 8}" y="{middle + 4:.0f}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{_LEFT}" y="{top + 4}" {width} fill="{colour}"/>',
            f'<path d="M{least:.1f} {middle}H{most:.1f}" stroke="{_LINE}"/>',
            f'<text x="{max(end, most) + 6:.1f}" y="{middle + 4:.0f}">{_written(summary.median)}</text>',
        ]
    )


def _written(value: float) -> str:
    """Format a value with three significant digits below 100, else as a whole number."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
