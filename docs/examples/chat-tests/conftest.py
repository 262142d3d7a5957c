"""A client for the tests of this example. It needs only the standard library."""

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest


class Chat:
    """Stands for the client code of the application under test."""

    def __init__(self, slotgate: Any) -> None:
        self._slotgate = slotgate

    def open(self, said: str, **members: Any) -> Any:
        """Send the request and return the open response."""
        body = {"model": "fake", "messages": [{"role": "user", "content": said}], **members}
        request = urllib.request.Request(
            f"{self._slotgate.url}/v1/chat/completions",
            json.dumps(body).encode(),
            {**self._slotgate.headers, "Content-Type": "application/json"},
        )
        return urllib.request.urlopen(request, timeout=10)

    def ask(self, said: str, **members: Any) -> Any:
        """Return the message of an answer without a stream."""
        with self.open(said, **members) as answer:
            return json.load(answer)["choices"][0]["message"]

    def stream(self, said: str, **members: Any) -> Iterator[dict[str, Any]]:
        """Yield the chunks of a stream as they come. `[DONE]` becomes `{}`."""
        with self.open(said, stream=True, **members) as answer:
            for line in answer:
                if line.startswith(b"data: "):
                    yield {} if line == b"data: [DONE]\n" else json.loads(line[6:])


@pytest.fixture
def chat(slotgate: Any) -> Chat:
    return Chat(slotgate)
