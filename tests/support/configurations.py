"""Configurations for tests, and the mistakes in a configuration."""

from __future__ import annotations

from collections.abc import Mapping

from slotgate.gateway.settings import Settings, SettingsError, parse

BACKEND = {"name": "gpu0", "url": "http://127.0.0.1:8081"}


def digest(letter: str) -> str:
    """Return a well-formed key hash made of one letter."""
    return letter * 64


def with_backend(**tables: object) -> dict[str, object]:
    """Return the tables, with one backend if they have none."""
    return {"backend": [BACKEND], **tables}


def parsed(environ: Mapping[str, str] | None = None, /, **tables: object) -> Settings:
    """Parse the tables, with one backend if they have none."""
    return parse(with_backend(**tables), environ or {})


def faults_of(data: Mapping[str, object], environ: Mapping[str, str] | None = None) -> list[str]:
    """Return all mistakes of a configuration as an operator reads them."""
    try:
        parse(data, environ or {})
    except SettingsError as invalid:
        return [str(fault) for fault in invalid.faults]
    return []


def faults_in(environ: Mapping[str, str] | None = None, /, **tables: object) -> list[str]:
    """Return all mistakes of the tables, with one backend if they have none."""
    return faults_of(with_backend(**tables), environ)
