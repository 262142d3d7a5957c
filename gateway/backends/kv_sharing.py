"""Finds out if the slots of a llama-server share one context (`--kv-unified`).

If they do, one long request can use up the whole context, and llama-server then ends all requests. No page of
llama-server says so: each slot's `n_ctx` is the whole context with a unified cache, and its part of it
without. The sources, the most reliable first:

* the setting `kv_unified`;
* of a process of ours, what it says in its log while it loads (`n_ctx_slot = 8192, kv_unified = 'true'`), or
  else its command: `--kv-unified`, or no number of slots, for which llama-server takes four that share;
* of another process on this machine, its command in the same way (`local_command.py`);
* requests that llama-server ended with "Context size has been exceeded": only a shared context gets full;
* four slots with all the context that the model was trained for: so llama-server starts when it is told
  nothing. With another number of slots `-np` was given, and then slots share only if that was asked for.

Otherwise each slot is assumed to have a context of its own. If that is wrong, the first overflow shows it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

__all__ = [
    "kv_unified_from_command",
    "kv_unified_from_log",
    "kv_unified_from_sizes",
]

_LOGGED = re.compile(r"kv_unified\s*=\s*'?(true|false|1|0)\b")
_ON = ("--kv-unified", "-kvu")
_OFF = ("--no-kv-unified", "-no-kvu")
_SLOTS = ("--parallel", "-np")
_NO_ENVIRON: Final[Mapping[str, str]] = MappingProxyType({})
AUTOMATIC_SLOTS: Final = 4
"""The number of slots that llama-server takes without `-np`."""


def kv_unified_from_log(line: str) -> bool | None:
    """Return the value that a line of the log states, or None."""
    found = _LOGGED.search(line)
    return None if found is None else found[1] in ("true", "1")


def kv_unified_from_command(command: Sequence[str], environ: Mapping[str, str] = _NO_ENVIRON) -> bool | None:
    """Return the value that a command implies; None if the command may be a script with its own options.

    `environ` holds variables that llama-server takes for options that the command does not have.
    """
    options = [word.partition("=")[0] for word in command]
    if any(word in _ON for word in options):
        return True
    if any(word in _OFF for word in options):
        return False
    for name in _SLOTS:
        if name in options:
            at = options.index(name)
            given = command[at].partition("=")[2] or "".join(command[at + 1 : at + 2])
            return given.startswith("-")
    by_environ = _from_environ(environ)
    if by_environ is not None:
        return by_environ
    return True if any(word in ("-m", "--model", "-hf", "--hf-repo") for word in options) else None


def _from_environ(environ: Mapping[str, str]) -> bool | None:
    if "LLAMA_ARG_KV_UNIFIED" in environ:
        return environ["LLAMA_ARG_KV_UNIFIED"].lower() in ("1", "true", "on", "enabled")
    if "LLAMA_ARG_NO_KV_UNIFIED" in environ:
        return False
    slots = environ.get("LLAMA_ARG_N_PARALLEL")
    return None if slots is None else slots.startswith("-")


def kv_unified_from_sizes(n_ctx: int | None, slots: int, n_ctx_train: int | None) -> bool:
    """Return True if llama-server was probably told nothing. `n_ctx` is the context of one slot."""
    return bool(slots == AUTOMATIC_SLOTS and n_ctx and n_ctx_train and n_ctx == n_ctx_train)
