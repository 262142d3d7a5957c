"""What all end-to-end tests share."""

from __future__ import annotations

from tests.support.fixtures import quick_probes

__all__ = ["quick_probes"]
