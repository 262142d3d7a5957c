"""Where things are in the repository."""

from pathlib import Path

__all__ = ["DOCS", "ROOT"]

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
