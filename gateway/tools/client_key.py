"""The key with which a command asks a gateway: from a file, the environment, what `slotgate run` keeps, or a
prompt.

Never an argument: arguments of a process can be read by everybody on the machine.
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
    """There is no key to be had; says where one may stand."""


@dataclass(frozen=True, slots=True)
class KeySource:
    """One kind of key: the variable that may hold it, and which of those of `slotgate run` it is."""

    variable: str
    of_run: Callable[[RunKeys], str]
    name: str

    def find(
        self, url: str, key_file: Path | None, environ: Mapping[str, str], ask: Callable[[], str] | None
    ) -> str:
        """The first of: the file, the variable, the key of `slotgate run` here, what `ask` returns.

        `ask` is None where nobody can be asked. Raises `NoKeyError`.
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
        return _checked(ask(), "what was typed")

    def _run_key(self, url: str, environ: Mapping[str, str]) -> str | None:
        """Shown to nobody but this machine."""
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
    """`gpu.example.org:8080` is a gateway's URL, too."""
    return url if "://" in url else f"http://{url}"


def _checked(text: str, where: str) -> str:
    """A key is one word, without what an HTTP header cannot carry."""
    key = text.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise NoKeyError(f"{where} holds no key")
    return key
