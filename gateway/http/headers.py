"""The type of HTTP headers as ASGI passes them."""

from __future__ import annotations

__all__ = ["Headers"]

Headers = list[tuple[bytes, bytes]]
"""Pairs of name and value in wire order. ASGI wants names in lower case."""
