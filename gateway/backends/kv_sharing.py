"""Finds out if the slots of a llama-server share one context (`--kv-unified`).

If they do, one long request can use up the whole context, and llama-server then ends all requests.
`/props` does not say so: each slot's `n_ctx` is the whole context with a unified cache, and its part of it
without. The sources, the most reliable first:

* the setting `kv_unified`;
* of a process of ours, what it says in its log while it loads (`n_ctx_slot = 8192, kv_unified = 'true'`), or
  else its command: `--kv-unified`, or no number of slots, for which llama-server takes four that share;
* every slot having all the context that the model was trained for: so llama-server starts when it is told
  nothing, and few pay for that much memory several times.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["kv_unified_from_command", "kv_unified_from_log", "kv_unified_from_sizes"]

_LOGGED = re.compile(r"kv_unified\s*=\s*'?(true|false|1|0)\b")
_ON = ("--kv-unified", "-kvu")
_OFF = ("--no-kv-unified", "-no-kvu")
_SLOTS = ("--parallel", "-np")


def kv_unified_from_log(line: str) -> bool | None:
    """Return the value that a line of the log states, or None."""
    found = _LOGGED.search(line)
    return None if found is None else found[1] in ("true", "1")


def kv_unified_from_command(command: Sequence[str]) -> bool | None:
    """Return the value that a command implies; None if the command may be a script with its own options."""
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
    return True if any(word in ("-m", "--model", "-hf", "--hf-repo") for word in options) else None


def kv_unified_from_sizes(n_ctx: int | None, slots: int, n_ctx_train: int | None) -> bool:
    """Return True if each slot has the whole context of the model. `n_ctx` is the context of one slot."""
    return bool(n_ctx and n_ctx_train and slots > 1 and n_ctx >= n_ctx_train)
