"""Fixtures of all end-to-end tests."""

from __future__ import annotations

from tests.support.fixtures import quick_probes

__all__ = ["quick_probes"]
