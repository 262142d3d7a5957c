"""The texts that `slotgate run` prints: progress while the model loads, and a banner when it is loaded."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable
from typing import Final, TextIO

from slotgate.gateway.tools.run.kept_keys import RunKeys
from slotgate.gateway.tools.run.plan import RunPlan

__all__ = ["LoadProgress", "banner", "url_of"]

_QUIET_S: Final = 10.0
_BANNER: Final = """\

slotgate serves {alias} at {url}

  key           {client}
  operator key  {operator}

  playground    {url}/admin/chat   (sign in with the operator key)
  dashboard     {url}/admin

  curl -N {url}/v1/chat/completions \\
    -H 'Authorization: Bearer {client}' -H 'Content-Type: application/json' \\
    -d '{{"model":"{alias}","stream":true,"messages":[{{"role":"user","content":"Hello!"}}]}}'

Ctrl-C stops the gateway and llama-server.
"""


def banner(plan: RunPlan, keys: RunKeys) -> str:
    """Return the text for the loaded model: the URLs, the keys, and a curl command to paste."""
    url = url_of(plan.options.host, plan.options.port)
    return _BANNER.format(alias=plan.alias, url=url, client=keys.client, operator=keys.operator)


def url_of(host: str, port: int) -> str:
    """Return the URL at which a client on this machine reaches a server that listens on `host`."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"http://{host}:{port}"
    if address.is_unspecified:
        address = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
    return f"http://[{address}]:{port}" if address.version == 6 else f"http://{address}:{port}"


class LoadProgress:
    """Shows the seconds since the start: on a terminal in one line that is rewritten, else every ten seconds.

    It does not sleep: the caller calls `tick`.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._rewrites = stream.isatty()
        self._began = clock()
        self._told = self._began
        self._what = ""

    def begin(self, what: str) -> None:
        self._what = what
        self._began = self._told = self._clock()
        self._write(f"{what} …\n")

    def tick(self) -> None:
        now = self._clock()
        if self._rewrites:
            self._write(f"\r  {now - self._began:.0f} s")
        elif now - self._told >= _QUIET_S:
            self._told = now
            self._write(f"{self._what}: {now - self._began:.0f} s\n")

    def end(self, how: str) -> None:
        start = "\r" if self._rewrites else ""
        self._write(f"{start}{how} after {self._clock() - self._began:.1f} s\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
