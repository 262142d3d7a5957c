"""Finds the reply of a script that answers a request.

A request can change its own reply. The later of these three overrides the earlier:

1. the reply of the script that matches;
2. headers `x-fake-NAME: VALUE`, which do not pass a gateway;
3. the body's member `fake`, which passes a gateway.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import orjson

from slotgate.gateway.testing.fake.net.http1 import Head
from slotgate.gateway.testing.fake.net.wire import LlamaRefusal
from slotgate.gateway.testing.fake.protocols.request import LlamaRequest
from slotgate.gateway.testing.fake.script.reader import ScriptError, with_members
from slotgate.gateway.testing.fake.script.scene import Reply, Scene, When

__all__ = ["ReplyMatcher"]

_PREFIX: Final = b"x-fake-"


class ReplyMatcher:
    """Counts the matches of each reply, for replies with `nth` or `times`."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._matched: Counter[int] = Counter()

    def reply(self, request: LlamaRequest, head: Head) -> Reply | None:
        """Return the reply, or None if no reply matches and the script is strict.

        Raises `LlamaRefusal` if the request changes its reply in a way that is not valid.
        """
        reply = self._matching(request)
        own = _from_headers(head) | _from_body(request.body)
        if not own:
            return reply
        reply = reply or self._scene.otherwise
        try:
            return with_members(reply, own)
        except ScriptError as error:
            raise LlamaRefusal(400, f"fake: {error}", "invalid_request_error") from error

    def _matching(self, request: LlamaRequest) -> Reply | None:
        for number, reply in enumerate(self._scene.replies):
            if not _matches(reply.when, request):
                continue
            self._matched[number] += 1
            nth, times = reply.when.nth, reply.when.times
            if nth in (None, self._matched[number]) and (times is None or self._matched[number] <= times):
                return reply
        return None if self._scene.machine.strict else self._scene.otherwise


def _matches(when: When, request: LlamaRequest) -> bool:
    return (
        when.model in (None, request.model)
        and when.path in (None, request.path)
        and (when.contains is None or when.contains in request.last_user_text)
        and when.stream in (None, request.stream)
        and when.tools in (None, bool(request.body.get("tools")))
    )


def _from_headers(head: Head) -> dict[str, Any]:
    named = {name: value for name, value in head.headers if name.startswith(_PREFIX)}
    return {
        name.removeprefix(_PREFIX).decode("ascii", "replace").replace("-", "_"): _value(value)
        for name, value in named.items()
    }


def _value(value: bytes) -> Any:  # noqa: ANN401
    """Return the value of a header: parsed if it is JSON, else as text."""
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value.decode("utf-8", "replace")


def _from_body(body: Mapping[str, Any]) -> dict[str, Any]:
    own = body.get("fake")
    return dict(own) if isinstance(own, Mapping) else {}
