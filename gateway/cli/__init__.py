"""The command line: one module for each kind of command."""

from __future__ import annotations

from slotgate.gateway.cli.program import main

__all__ = ["main"]
