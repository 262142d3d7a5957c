"""`make fairness`: write `docs/fairness.md` and `docs/fairness.svg`."""

from __future__ import annotations

from pathlib import Path

from bench.fairness.figures import measure

DOCS = Path(__file__).resolve().parents[2] / "docs"

__all__ = ["main"]


def main() -> None:
    figures = measure()
    (DOCS / "fairness.md").write_text(figures.page)
    (DOCS / "fairness.svg").write_text(figures.picture)


if __name__ == "__main__":
    main()
