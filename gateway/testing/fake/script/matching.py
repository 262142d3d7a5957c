"""Which reply of a script answers a request, and what the request itself says about its answer.

Three ways to say it, each over the one before: the reply that matches; headers `x-fake-NAME: VALUE`; the
body's member `fake`. Headers do not pass a gateway, the model's name and members of the body do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import orjson

from slotgate.gateway.testing.fake.net.http1 import Head
from slotgate.gateway.testing.fake.net.wire import Problem
from slotgate.gateway.testing.fake.protocols.request import Asked
from slotgate.gateway.testing.fake.script.reader import ScriptError, changed
from slotgate.gateway.testing.fake.script.scene import Reply, Scene, When

__all__ = ["Choosing"]

_PREFIX: Final = b"x-fake-"


class Choosing:
    """Counts what has matched, for replies that answer only some of their requests."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._matched: Counter[int] = Counter()

    def reply(self, asked: Asked, head: Head) -> Reply | None:
        """None: nothing matches. Raises `Problem` where the request says what cannot be played."""
        reply = self._matching(asked)
        own = _from_headers(head) | _from_body(asked.body)
        if not own:
            return reply
        reply = reply or self._scene.otherwise
        try:
            return changed(reply, own)
        except ScriptError as error:
            raise Problem(400, f"fake: {error}", "invalid_request_error") from error

    def _matching(self, asked: Asked) -> Reply | None:
        for number, reply in enumerate(self._scene.replies):
            if not _matches(reply.when, asked):
                continue
            self._matched[number] += 1
            nth, times = reply.when.nth, reply.when.times
            if nth in (None, self._matched[number]) and (times is None or self._matched[number] <= times):
                return reply
        return None if self._scene.machine.strict else self._scene.otherwise


def _matches(when: When, asked: Asked) -> bool:
    return (
        when.model in (None, asked.model)
        and when.path in (None, asked.path)
        and (when.contains is None or when.contains in asked.said)
        and when.stream in (None, asked.stream)
        and when.tools in (None, bool(asked.body.get("tools")))
    )


def _from_headers(head: Head) -> dict[str, Any]:
    named = {name: value for name, value in head.headers if name.startswith(_PREFIX)}
    return {
        name.removeprefix(_PREFIX).decode("ascii", "replace").replace("-", "_"): _value(value)
        for name, value in named.items()
    }


def _value(value: bytes) -> Any:  # noqa: ANN401
    """A header's value is JSON where it can be read as such, else a text."""
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value.decode("utf-8", "replace")


def _from_body(body: Mapping[str, Any]) -> dict[str, Any]:
    own = body.get("fake")
    return dict(own) if isinstance(own, Mapping) else {}
