"""Asks a port two things at once: does our llama-server listen there, and has it loaded its model?

Another program may take the port between the moment when we choose it and the moment when our child binds it.
That program may well answer 200 to `/health`, which llama-server and most other servers leave open. So ready
means: `/health` answers 200, `/props` refuses a caller without a key, and `/props` accepts the key that only
our child was given. The key is sent last, and only to a server that has asked for one.

`/health` and `/props` neither wake a sleeping llama-server nor keep abandoned work alive.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Final, Self

import httpx

__all__ = ["ProbeAnswer", "ReadinessProbe"]

_ANSWER_TIMEOUT_S: Final = 2.0


class ProbeAnswer(Enum):
    """The answer of a port, as a clause for messages."""

    SILENT = "does not answer yet"
    LOADING = "is loading the model"
    READY = "is ready"
    KEYLESS = "answers without a key, so it is not the server that was started"
    KEY_REFUSED = "refuses the key it was started with, so it is not the server that was started"
    UNKNOWN = "does not answer as llama-server does, so it is not the server that was started"

    @property
    def is_a_stranger(self) -> bool:
        """Return True if another program than our child has answered."""
        return self in {ProbeAnswer.KEYLESS, ProbeAnswer.KEY_REFUSED, ProbeAnswer.UNKNOWN}


class ReadinessProbe:
    """Asks one server, with an HTTP client of its own: `async with ReadinessProbe(url, key) as probe`."""

    def __init__(self, url: str, api_key: str) -> None:
        self._key = {"authorization": f"Bearer {api_key}"}
        self._client = httpx.AsyncClient(
            base_url=url,
            trust_env=False,  # or a proxy from the environment would be asked for loopback addresses
            verify=False,  # the URL is plain http, so loading certificates would be wasted time
            timeout=_ANSWER_TIMEOUT_S,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._client.aclose()

    async def ask(self) -> ProbeAnswer:
        """Ask once. A server that does not answer within 2 seconds is SILENT."""
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                return await self._look()
        except (httpx.RequestError, TimeoutError):
            return ProbeAnswer.SILENT

    async def _look(self) -> ProbeAnswer:
        health = await self._status("/health")
        if health != 200:
            return _loading_or(ProbeAnswer.UNKNOWN, health)
        without = await self._status("/props")
        if without == 200:
            return ProbeAnswer.KEYLESS
        if without != 401:
            return _loading_or(ProbeAnswer.UNKNOWN, without)
        with_key = await self._status("/props", self._key)
        return ProbeAnswer.READY if with_key == 200 else _loading_or(ProbeAnswer.KEY_REFUSED, with_key)

    async def _status(self, path: str, headers: dict[str, str] | None = None) -> int:
        """Return the status. The body is not read, because that of another program could be endless."""
        async with self._client.stream("GET", path, headers=headers) as response:
            return response.status_code


def _loading_or(otherwise: ProbeAnswer, status: int) -> ProbeAnswer:
    return ProbeAnswer.LOADING if status == 503 else otherwise
