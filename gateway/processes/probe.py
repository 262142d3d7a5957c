"""Is that our llama-server, and has it loaded its model? Two questions on one port, asked together.

Anybody may have taken a port between the moment we chose it and the moment our child binds it, and a
stranger may well answer 200 to `/health` (llama-server and most other servers leave it open). So ready
means: `/health` says 200, `/props` refuses a caller without a key, and takes the key that only our child was
given. The key is shown last, to a server that has asked for one.

`/health` and `/props` neither wake a sleeping llama-server nor keep abandoned work alive.
"""

import asyncio
from enum import Enum
from typing import Final, Self

import httpx

_ANSWER_TIMEOUT_S: Final = 2.0


class Answer(Enum):
    """What a port said of itself."""

    SILENT = "does not answer yet"
    LOADING = "is loading the model"
    READY = "is ready"
    KEYLESS = "answers without a key, so it is not the server that was started"
    KEY_REFUSED = "refuses the key it was started with, so it is not the server that was started"
    UNKNOWN = "does not answer as llama-server does, so it is not the server that was started"

    @property
    def is_a_stranger(self) -> bool:
        return self in {Answer.KEYLESS, Answer.KEY_REFUSED, Answer.UNKNOWN}


class Probe:
    """Asks one server, on a client of its own: `async with Probe(url, key) as probe`."""

    def __init__(self, url: str, api_key: str) -> None:
        self._key = {"authorization": f"Bearer {api_key}"}
        self._client = httpx.AsyncClient(
            base_url=url,
            trust_env=False,  # a proxy from the environment would be asked for loopback addresses, too
            verify=False,  # plain http; it saves loading the certificates of the whole world
            timeout=_ANSWER_TIMEOUT_S,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._client.aclose()

    async def ask(self) -> Answer:
        """One look, at most 2 seconds long. A server that does not answer, or not in time, is silent."""
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                return await self._look()
        except (httpx.RequestError, TimeoutError):
            return Answer.SILENT

    async def _look(self) -> Answer:
        health = await self._status("/health")
        if health != 200:
            return _loading_or(Answer.UNKNOWN, health)
        without = await self._status("/props")
        if without == 200:
            return Answer.KEYLESS
        if without != 401:
            return _loading_or(Answer.UNKNOWN, without)
        with_key = await self._status("/props", self._key)
        return Answer.READY if with_key == 200 else _loading_or(Answer.KEY_REFUSED, with_key)

    async def _status(self, path: str, headers: dict[str, str] | None = None) -> int:
        """The status alone: the body of a stranger could be endless."""
        async with self._client.stream("GET", path, headers=headers) as response:
            return response.status_code


def _loading_or(otherwise: Answer, status: int) -> Answer:
    return Answer.LOADING if status == 503 else otherwise
