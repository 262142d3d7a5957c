"""What `slotgate run` prints when the model is loaded: all that a client needs, ready to paste."""

from __future__ import annotations

import ipaddress
from typing import Final

from slotgate.gateway.tools.run.kept_keys import RunKeys
from slotgate.gateway.tools.run.plan import RunPlan

__all__ = ["banner", "url_of"]

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
    url = url_of(plan.options.host, plan.options.port)
    return _BANNER.format(alias=plan.alias, url=url, client=keys.client, operator=keys.operator)


def url_of(host: str, port: int) -> str:
    """Where a client on this machine reaches a server that listens on `host`."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"http://{host}:{port}"
    if address.is_unspecified:
        address = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
    return f"http://[{address}]:{port}" if address.version == 6 else f"http://{address}:{port}"
