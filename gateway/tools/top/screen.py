"""Renders a snapshot as a page of text. Each colour goes with a character or a word of the same meaning.

Narrow pages leave out the least important columns first, and never wrap. This module does no IO.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from slotgate.gateway.tools.top.snapshot import ShownBackend, ShownRequest, ShownSlot, ShownTenant, Snapshot

__all__ = ["ASCII", "UNICODE", "Signs", "page"]

_SLOT_STYLES = {
    "idle": "dim",
    "prefill": "yellow",
    "generating": "bold green",
    "working": "green",
    "quarantined": "bold magenta",
    "foreign": "cyan",
}
_STATE_STYLES = {"ready": "green", "failed": "bold red", "stopped": "dim"}
_OUTCOME_STYLES = {"ok": "green", "running": "bold green", "queued": "yellow", "error": "bold red"}
_WIDE = 90
"""The width from which a page shows ids, models and every figure."""


@dataclass(frozen=True, slots=True)
class Signs:
    """The characters that stand for states and bars."""

    cells: dict[str, str]
    queue: str
    first: str
    answer: str
    bar: str
    cut: str

    def of(self, state: str) -> str:
        return self.cells.get(state, "?")


UNICODE = Signs(
    {"idle": "·", "prefill": "▒", "generating": "█", "working": "▓", "quarantined": "Q", "foreign": "F"},
    queue="·",
    first="▒",
    answer="█",
    bar="█",
    cut="…",
)
ASCII = Signs(
    {"idle": ".", "prefill": "p", "generating": "#", "working": "w", "quarantined": "Q", "foreign": "F"},
    queue=".",
    first="=",
    answer="#",
    bar="#",
    cut="~",
)
"""The characters for terminals and files without Unicode."""


def page(
    snapshot: Snapshot,
    *,
    title: str,
    width: int,
    height: int | None = None,
    note: str = "",
    signs: Signs = UNICODE,
) -> RenderableType:
    """Return the page, with the requests that fit into `height`, or twenty. `note` is on top of it."""
    busy = [tenant for tenant in snapshot.tenants if tenant.queued or tenant.leases]
    parts: list[RenderableType] = [
        _head(snapshot, title, width, note, signs),
        _heading("slots", _legend(snapshot, signs), width, signs),
        _backends(snapshot.backends, width, signs),
    ]
    used = (3 if note else 2) + 2 + _height_of(snapshot.backends, width)
    if busy:
        parts += [_heading("tenants", "requests that wait, leases held", width, signs)]
        parts += [_tenants(busy, width, signs)]
        used += 2 + len(busy)
    shown = snapshot.requests[: 20 if height is None else max(1, height - used - 4)]
    if shown:
        legend = f"{signs.queue} queued  {signs.first} to the first token  {signs.answer} answer"
        parts += [_heading("requests", legend, width, signs), _requests(shown, width, signs)]
    return Group(*parts)


def _head(snapshot: Snapshot, title: str, width: int, note: str, signs: Signs) -> Text:
    rate = f"{'' if snapshot.rate_is_live else '~'}{snapshot.tokens_per_s:.1f} tokens/s"
    first = "-" if snapshot.ttft_ms is None else _duration(snapshot.ttft_ms)
    waits = f" (oldest {snapshot.oldest_s:.1f} s)" if snapshot.queued else ""
    line = f"{snapshot.running} running  {snapshot.queued} queued{waits}  {rate}  first token {first}"
    head = Text(_cut(title, width, signs), style="bold", no_wrap=True)
    if snapshot.draining:
        head.append("  DRAINING", style="bold red")
    if note:
        head.append(f"\n{_cut(note, width, signs)}", style="bold red")
    head.append(f"\n{_cut(line, width, signs)}", style="not bold")
    return head


def _heading(name: str, rest: str, width: int, signs: Signs) -> Text:
    rest = _cut(rest, max(1, width - len(name) - 2), signs)
    return Text.assemble((f"\n{name}", "bold"), ("  " + rest, "dim"))


def _legend(snapshot: Snapshot, signs: Signs) -> str:
    states = {slot.state for backend in snapshot.backends for slot in backend.slots}
    return "  ".join(f"{sign} {state}" for state, sign in signs.cells.items() if state in states)


def _backends(backends: Sequence[ShownBackend], width: int, signs: Signs) -> Table:
    table = _table()
    _column(table, signs, max_width=max(8, width // 4))
    _column(table, signs, max_width=18)
    table.add_column(overflow="fold", max_width=_slots_width(width))
    _column(table, signs, ratio=1)
    for backend in backends:
        state = Text(backend.state, style=_STATE_STYLES.get(backend.state, "yellow"))
        table.add_row(Text(backend.name), state, _slots(backend.slots, signs), _in_words(backend))
    return table


def _slots_width(width: int) -> int:
    return max(8, width // 3)


def _height_of(backends: Sequence[ShownBackend], width: int) -> int:
    return sum(max(1, -(-len(backend.slots) // _slots_width(width))) for backend in backends)


def _slots(slots: Sequence[ShownSlot], signs: Signs) -> Text:
    row = Text()
    for slot in slots:
        row.append(signs.of(slot.state), style=_SLOT_STYLES.get(slot.state, ""))
    return row


def _in_words(backend: ShownBackend) -> Text:
    """Return the number of slots in each state, and the reason if the backend does not serve."""
    counts = Counter(slot.state for slot in backend.slots)
    said = [f"{count} {state}" for state in _SLOT_STYLES if (count := counts[state])]
    if counts["quarantined"]:
        said.append(f"oldest {backend.quarantined_oldest_s:.0f} s")
    if backend.reason and backend.state != "ready":
        said.insert(0, backend.reason)
    return Text(", ".join(said), style="dim")


def _tenants(busy: Sequence[ShownTenant], width: int, signs: Signs) -> Table:
    table = _table()
    _column(table, signs, max_width=max(8, width // 4))
    _column(table, signs, justify="right")
    _column(table, signs, justify="right")
    _column(table, signs, ratio=1)
    most = max(tenant.queued for tenant in busy)
    room = max(4, width // 3)
    for tenant in busy:
        bar = signs.bar * (-(-tenant.queued * room // most) if most else 0)
        leases = f"{tenant.leases} lease{'' if tenant.leases == 1 else 's'}"
        table.add_row(Text(tenant.name), f"{tenant.queued} wait", Text(leases), Text(bar, style="yellow"))
    return table


def _requests(requests: Sequence[ShownRequest], width: int, signs: Signs) -> Table:
    wide = width >= _WIDE
    table = _table()
    table.show_header = True
    table.header_style = "dim"
    if wide:
        _column(table, signs, "id", max_width=12)
    _column(table, signs, "tenant", max_width=14 if wide else 10)
    if wide:
        _column(table, signs, "model", max_width=16)
    _column(table, signs, "outcome", max_width=20 if wide else 12)
    _column(table, signs, "tokens", justify="right")
    if wide:
        _column(table, signs, "queue", justify="right")
        _column(table, signs, "first", justify="right")
    _column(table, signs, "total", justify="right")
    _column(table, signs, ratio=1)
    longest = max(request.total_ms for request in requests)
    for request in requests:
        row: list[RenderableType] = [Text(request.tenant)]
        if wide:
            row = [Text(request.id, style="dim"), *row, Text(request.model)]
        word = request.code or request.outcome
        row += [Text(word, style=_OUTCOME_STYLES.get(request.outcome, "red")), str(request.tokens)]
        if wide:
            row += [_optional_duration(request.queue_ms), _optional_duration(request.ttft_ms)]
        table.add_row(*row, _duration(request.total_ms), Waterfall(request, longest, signs))
    return table


@dataclass(frozen=True, slots=True)
class Waterfall:
    """A bar of the phases of a request, scaled so that the longest request fills the column."""

    request: ShownRequest
    longest_ms: float
    signs: Signs

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        scale = options.max_width / self.longest_ms if self.longest_ms else 0.0
        queued, first, total = (round(ms * scale) for ms in self._ends())
        bar = Text(self.signs.queue * queued, style="dim", no_wrap=True, overflow="crop")
        bar.append(self.signs.first * (first - queued), style="yellow")
        bar.append(self.signs.answer * (total - first), style="green")
        yield bar if bar else Text(self.signs.queue, style="dim")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(4, options.max_width), options.max_width)

    def _ends(self) -> tuple[float, float, float]:
        """Return the ends of the wait, of the first token's time and of the request, from its start."""
        request = self.request
        total = request.total_ms
        queued = total if request.outcome == "queued" else min(request.queue_ms or 0.0, total)
        first = request.ttft_ms
        if first is None:
            first = queued if request.is_over else total
        return queued, min(max(first, queued), total), total


def _table() -> Table:
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.show_header = False
    return table


def _column(
    table: Table,
    signs: Signs,
    name: str = "",
    *,
    justify: Literal["left", "right"] = "left",
    max_width: int | None = None,
    ratio: int | None = None,
) -> None:
    """Add a column that never wraps. ASCII pages crop texts, because rich shortens them with `…`."""
    overflow: Literal["crop", "ellipsis"] = "crop" if signs is ASCII else "ellipsis"
    table.add_column(name, justify=justify, max_width=max_width, ratio=ratio, no_wrap=True, overflow=overflow)


def _optional_duration(ms: float | None) -> str:
    return "-" if ms is None else _duration(ms)


def _duration(ms: float) -> str:
    if ms < 1000:
        return f"{ms:.0f} ms"
    return f"{ms / 1000:.1f} s" if ms < 100_000 else f"{ms / 60_000:.1f} min"


def _cut(text: str, width: int, signs: Signs) -> str:
    return text if len(text) <= width else text[: width - 1] + signs.cut
