"""The operator key for a view: from a file, the environment, what `slotgate run` keeps, or a prompt.

Never an argument: arguments of a process can be read by everybody on the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from gateway.keys import KeysError, load_or_make_keys, state_dir

__all__ = ["VARIABLE", "NoKeyError", "operator_key", "with_scheme"]

VARIABLE = "SLOTGATE_OPERATOR_KEY"
_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")


class NoKeyError(Exception):
    """There is no key to be had; says where one may stand."""


def operator_key(
    url: str, key_file: Path | None, environ: Mapping[str, str], ask: Callable[[], str] | None
) -> str:
    """The first of: the file, the variable, the key of `slotgate run` on this machine, what `ask` returns.

    `ask` is None where nobody can be asked. Raises `NoKeyError`.
    """
    if key_file is not None:
        try:
            return _checked(key_file.read_text(errors="replace"), f"the file {key_file}")
        except OSError as error:
            raise NoKeyError(f"the file {key_file} cannot be read: {error.strerror}") from error
    if environ.get(VARIABLE):
        return _checked(environ[VARIABLE], f"the variable {VARIABLE}")
    kept = _of_run(url, environ)
    if kept is not None:
        return kept
    if ask is None:
        raise NoKeyError(f"an operator key is needed: set {VARIABLE}, or give --key-file FILE")
    return _checked(ask(), "what was typed")


def with_scheme(url: str) -> str:
    """`gpu.example.org:8080` is a gateway's URL, too."""
    return url if "://" in url else f"http://{url}"


def _of_run(url: str, environ: Mapping[str, str]) -> str | None:
    """Shown to nobody but this machine."""
    folder = state_dir(environ)
    if urlsplit(url).hostname not in _THIS_MACHINE or not (folder / "keys.json").exists():
        return None
    try:
        return load_or_make_keys(folder).operator
    except KeysError:
        return None


def _checked(text: str, where: str) -> str:
    """A key is one word, without what an HTTP header cannot carry."""
    key = text.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise NoKeyError(f"{where} holds no key")
    return key
