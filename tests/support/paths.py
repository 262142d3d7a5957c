"""Paths of the repository."""

from __future__ import annotations

from pathlib import Path

__all__ = ["DOCS", "ROOT"]

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
