"""Configurations for tests: the smallest that is valid, and what is wrong with one."""

from __future__ import annotations

from collections.abc import Mapping

from slotgate.gateway.settings import Settings, SettingsError, parse

BACKEND = {"name": "gpu0", "url": "http://127.0.0.1:8081"}


def digest(letter: str) -> str:
    """A well-formed key hash, told apart by its letter."""
    return letter * 64


def with_backend(**tables: object) -> dict[str, object]:
    """The given tables, and one backend if they name none."""
    return {"backend": [BACKEND], **tables}


def parsed(environ: Mapping[str, str] | None = None, /, **tables: object) -> Settings:
    """The settings in `tables`, with a backend."""
    return parse(with_backend(**tables), environ or {})


def faults_of(data: Mapping[str, object], environ: Mapping[str, str] | None = None) -> list[str]:
    """All faults of a configuration as an operator reads them; none if it is valid."""
    try:
        parse(data, environ or {})
    except SettingsError as invalid:
        return [str(fault) for fault in invalid.faults]
    return []


def faults_in(environ: Mapping[str, str] | None = None, /, **tables: object) -> list[str]:
    """All faults of `tables` with a backend."""
    return faults_of(with_backend(**tables), environ)
