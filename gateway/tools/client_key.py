"""Finds the key that a command presents to a gateway.

The key comes from a file, the environment, the keys that `slotgate run` keeps, or a prompt. It is never an
argument, because every user of the machine can read the arguments of a process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from slotgate.gateway.tools.run.kept_keys import KeysError, RunKeys, load_or_make_keys, state_dir

__all__ = ["CLIENT", "OPERATOR", "KeySource", "NoKeyError", "with_scheme"]

_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")


class NoKeyError(Exception):
    """No key was found. The text says where a key is looked for."""


@dataclass(frozen=True, slots=True)
class KeySource:
    """The places where one kind of key is looked for."""

    variable: str
    """The environment variable that may hold the key."""
    of_run: Callable[[RunKeys], str]
    """Selects the key from those that `slotgate run` keeps."""
    name: str
    """The name of the kind, for error messages."""

    def find(
        self, url: str, key_file: Path | None, environ: Mapping[str, str], ask: Callable[[], str] | None
    ) -> str:
        """Return the first key found: in the file, in the variable, kept by `slotgate run`, or from `ask`.

        `ask` prompts for the key; it is None if there is no terminal. Raises `NoKeyError`.
        """
        if key_file is not None:
            try:
                return _checked(key_file.read_text(errors="replace"), f"the file {key_file}")
            except OSError as error:
                raise NoKeyError(f"the file {key_file} cannot be read: {error.strerror}") from error
        if environ.get(self.variable):
            return _checked(environ[self.variable], f"the variable {self.variable}")
        kept = self._run_key(url, environ)
        if kept is not None:
            return kept
        if ask is None:
            raise NoKeyError(f"{self.name} is needed: set {self.variable}, or give --key-file FILE")
        return _checked(ask(), "the input")

    def _run_key(self, url: str, environ: Mapping[str, str]) -> str | None:
        """Return the key that `slotgate run` keeps, but only for a gateway on this machine."""
        folder = state_dir(environ)
        if urlsplit(url).hostname not in _THIS_MACHINE or not (folder / "keys.json").exists():
            return None
        try:
            return self.of_run(load_or_make_keys(folder))
        except KeysError:
            return None


OPERATOR = KeySource("SLOTGATE_OPERATOR_KEY", lambda keys: keys.operator, "an operator key")
CLIENT = KeySource("SLOTGATE_KEY", lambda keys: keys.client, "a key")


def with_scheme(url: str) -> str:
    """Return the URL, with `http://` in front if it has no scheme."""
    return url if "://" in url else f"http://{url}"


def _checked(text: str, where: str) -> str:
    """Return the key without surrounding space. Raises `NoKeyError` if an HTTP header cannot carry it."""
    key = text.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise NoKeyError(f"{where} holds no key")
    return key
