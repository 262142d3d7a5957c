"""Draw the figures as SVG: shares over time, newcomers behind a crowd, batch work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from bench.fairness.experiments import CROWD, SLOTS, Arrival, Batch, Shares

__all__ = ["picture"]

_WIDTH, _HEIGHT = 760, 880
_INK, _QUIET, _GRID = "#24292f", "#57606a", "#e3e7eb"
_COLOURS = ("#c4511b", "#1f6feb", "#2d8a4e", "#8250df", "#9a6700")


@dataclass(frozen=True, slots=True)
class _Panel:
    """A chart area: maps x from 0 to `most_x` and y from 0 to `most_y` to a rectangle."""

    left: float
    top: float
    width: float
    height: float
    most_x: float
    most_y: float

    def x(self, value: float) -> float:
        return self.left + self.width * value / self.most_x

    def y(self, value: float) -> float:
        return self.top + self.height * (1 - value / self.most_y)

    def line(self, xs: Sequence[float], ys: Sequence[float], colour: str) -> str:
        points = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in zip(xs, ys, strict=True))
        return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>'

    def level(self, value: float, colour: str, more: str = "") -> str:
        y = self.y(value)
        return f'<path d="M{self.left} {y:.1f}h{self.width}" stroke="{colour}"{more}/>'

    def grid(self, ys: Sequence[tuple[float, str]], xs: Sequence[tuple[float, str]]) -> Iterator[str]:
        for value, text in ys:
            yield self.level(value, _GRID)
            yield _text(self.left - 6, self.y(value) + 4, text, "end", size=11, colour=_QUIET)
        for value, text in xs:
            yield _text(self.x(value), self.top + self.height + 15, text, "middle", size=11, colour=_QUIET)


def picture(shares: Sequence[Shares], arrivals: Sequence[Arrival], batch: Batch) -> str:
    """The whole document."""
    parts = [
        _heading(28, "Shares of all tokens over time, all tenants always waiting"),
        _note(
            46,
            f"{SLOTS} slots. Dashed: what the weights say. Requests of 100 to 3,200 tokens, wrong guesses.",
        ),
        *(line for number, one in enumerate(shares) for line in _shares(number, one)),
        _heading(492, f"How long a newcomer waits behind {CROWD:,} requests of another tenant"),
        _note(
            510, "In service times of the longest request; one dot for each moment at which a newcomer came."
        ),
        *_arrivals(arrivals),
        _heading(684, "A batch tenant beside interactive ones that never pause"),
        _note(702, f"Requests served so far. {SLOTS} slots."),
        *_batch(batch),
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}">',
            f'<g font-family="system-ui, sans-serif" fill="{_INK}">',
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
            *parts,
            "</g>\n</svg>\n",
        ]
    )


def _shares(number: int, shares: Shares) -> Iterator[str]:
    row, column = divmod(number, 2)
    panel = _Panel(
        54 + 372 * column,
        84 + 200 * row,
        250,
        140,
        shares.hours[-1],
        0.75 if len(shares.tenants) < 4 else 0.5,
    )
    tenants = f"{len(shares.tenants)} tenants, {shares.off_by:.2%} off at most in the end"
    yield _text(panel.left, panel.top - 8, tenants, size=12, colour=_INK)
    hours = [(hour, f"{hour:g} h") for hour in (0, 2, 4, 6, 8)]
    yield from panel.grid(
        [(part, f"{part:.0%}") for part in (0, 0.25, 0.5, 0.75) if part <= panel.most_y], hours
    )
    places = _apart([panel.y(parts[-1]) for parts in shares.parts])
    for tenant, parts, place, colour in zip(shares.tenants, shares.parts, places, _COLOURS, strict=False):
        yield panel.level(shares.due(tenant), colour, ' stroke-dasharray="3 4" opacity="0.6"')
        yield panel.line(shares.hours, parts, colour)
        label = f"{tenant.name}, weight {tenant.weight:g}"
        yield _text(panel.left + panel.width + 6, place + 4, label, size=10.5, colour=colour)


def _apart(places: Sequence[float], least: float = 12.5) -> list[float]:
    """Return the heights of labels, moved up where they would overlap."""
    moved, below = list(places), float("inf")
    for number in sorted(range(len(places)), key=lambda number: -places[number]):
        moved[number] = below = min(places[number], below - least)
    return moved


def _arrivals(arrivals: Sequence[Arrival]) -> Iterator[str]:
    panel = _Panel(78, 530, 330, 100, 1, len(arrivals))
    yield from panel.grid([], [(wait, f"{wait:g}") for wait in (0, 0.25, 0.5, 0.75, 1)])
    for number, arrival in enumerate(arrivals):
        y = panel.y(len(arrivals) - number - 0.5)
        slots = f"{arrival.slots} slot{'s' if arrival.slots > 1 else ''}"
        yield _text(panel.left - 8, y + 4, slots, "end", size=12, colour=_INK)
        yield f'<path d="M{panel.left} {y:.1f}h{panel.width}" stroke="{_GRID}"/>'
        for wait in arrival.waits:
            yield f'<circle cx="{panel.x(wait):.1f}" cy="{y:.1f}" r="4" fill="{_COLOURS[1]}" opacity="0.45"/>'
        said = f"at most {max(arrival.waits):.2f}; in the order of arrival {arrival.in_line:.0f}"
        yield _text(panel.left + panel.width + 14, y + 4, said, size=12, colour=_INK)


def _batch(batch: Batch) -> Iterator[str]:
    panel = _Panel(54, 720, 480, 130, batch.minutes[-1], 900)
    minutes = [(minute, f"{minute} min") for minute in (0, 15, 30, 45, 60)]
    yield from panel.grid([(served, f"{served:g}") for served in (0, 300, 600, 900)], minutes)
    lines = [("interactive", batch.interactive, _COLOURS[1]), ("batch", batch.batch, _COLOURS[0])]
    for name, served, colour in lines:
        yield panel.line([0, *batch.minutes], [0, *served], colour)
        label = f"{name}: {served[-1]}"
        yield _text(panel.left + panel.width + 8, panel.y(served[-1]) + 4, label, size=12, colour=colour)


def _heading(y: float, text: str) -> str:
    return f'<text x="16" y="{y}" font-size="15" font-weight="600">{escape(text)}</text>'


def _note(y: float, text: str) -> str:
    return _text(16, y, text, size=12, colour=_QUIET)


def _text(x: float, y: float, text: str, anchor: str = "start", *, size: float, colour: str) -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {where} font-size="{size:g}" fill="{colour}">{escape(text)}</text>'
