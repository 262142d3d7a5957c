"""Replaces and leads the scripted llama-server behind a running gateway."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from slotgate.gateway.testing.cassette.player import speed_of
from slotgate.gateway.testing.ci.recording import RecordedServer
from slotgate.gateway.testing.fake import FakeServer, Scene, scene_of
from slotgate.gateway.testing.fake.llama import ServedRequest
from slotgate.gateway.testing.fake.script.answer_content import Token, TokenKind
from slotgate.gateway.testing.fake.script.cues import Cue, CuedAnswers
from slotgate.gateway.testing.fake.script.reader import read_fault
from slotgate.gateway.testing.fake.script.scene import ScriptedFault

__all__ = ["Changed", "ScriptedControl"]

Members = dict[str, Any]
Changed = Callable[[Members], Awaitable[None]]


class ScriptedControl:
    """The `ControlActions` of a scripted llama-server.

    `on_reset` makes the gateway use the new server and the settings that it is given.
    """

    def __init__(self, scene: Scene, on_reset: Changed) -> None:
        self._scene = scene
        self._on_reset = on_reset
        self._cued = CuedAnswers()
        self._changed = asyncio.Event()
        self.meant_to_fail: set[str] = set()
        """Ids of requests to earlier servers that their scripts made fail."""
        self.unmatched: list[str] = []
        self.server = self._new(scene)
        self.recording: RecordedServer | None = None
        """The recording that is played in place of the scripted server, or None."""

    def __repr__(self) -> str:
        return f"<ScriptedControl {self.server!r}>"

    # -- ControlActions

    async def reset(self, said: Members) -> Members:
        """Replace the server. If this raises, the old server stays.

        Raises `ScriptError`, `CassetteError` and `SettingsError`.
        """
        recording, speed = said.get("cassette"), said.get("speed", "max")
        player = None if recording is None else RecordedServer(Path(recording), speed_of(speed))
        scene = scene_of(said["script"]) if said.get("script") is not None else self._scene
        cued, before, played = self._cued, self.server, self.recording
        async with AsyncExitStack() as undo:
            undo.callback(self._put_back, cued, before, played)
            self._cued = CuedAnswers()
            self.server = self._new(scene)
            await self.server.listen()
            undo.push_async_callback(self.server.close)
            self.recording = player
            if player is not None:
                await undo.enter_async_context(player)
            await self._on_reset(said.get("settings") or {})
            undo.pop_all()
        if played is not None:
            await played.__aexit__(None, None, None)
        self.meant_to_fail |= before.llama.meant_to_fail
        self.unmatched += before.llama.unmatched
        await before.close()
        return {"models": scene.models}

    async def close(self) -> None:
        await self.server.close()
        if self.recording is not None:
            await self.recording.__aexit__(None, None, None)

    async def reply(self, said: Members) -> Members:
        llama = self.server.llama
        [reply] = scene_of({"reply": [said["reply"]]}).replies
        llama.replace_replies(dataclasses.replace(llama.scene, replies=(reply, *llama.scene.replies)))
        return {}

    async def lead(self, said: Members) -> Members:
        self._cued.leading = bool(said["on"])
        return {}

    async def arrival(self, said: Members) -> Members:
        number = int(said["number"])
        await self._until(lambda: len(self._cued.sources) > number, said)
        asked = self._cued.sources[number].request
        return {"path": asked.path, "body": asked.body}

    async def cue(self, said: Members) -> Members:
        source = self._cued.sources[int(said["number"])]
        for cue in said["cues"]:
            source.cue(_cue(cue))
        return {}

    async def ended(self, said: Members) -> Members:
        """Wait for the end of a request, by its number among all requests for work."""
        number = int(said["number"])
        served_requests = self.server.llama.served_requests
        await self._until(
            lambda: len(served_requests) > number and served_requests[number].outcome != "running", said
        )
        return _as_members(served_requests[number])

    async def state(self, said: Members) -> Members:
        llama = self.server.llama
        return {
            "busy": sorted(llama.slots.busy),
            "deferred": llama.slots.deferred,
            "ever_deferred": llama.slots.ever_deferred,
            "connections": self.server.connections,
            "misses": self.recording.unmatched() if self.recording else [],
            "requests": [_as_members(served) for served in llama.served_requests],
        }

    # -- the parts

    def _put_back(self, cued: CuedAnswers, server: FakeServer, recording: RecordedServer | None) -> None:
        self._cued, self.server, self.recording = cued, server, recording

    def _new(self, scene: Scene) -> FakeServer:
        server = FakeServer(scene)
        server.llama.choose_token_source = self._cued
        server.llama.on_change = self._beat
        return server

    def _beat(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _until(self, condition: Callable[[], bool], said: Members) -> None:
        """Wait until the condition holds. Raises TimeoutError that lists the requests so far."""
        within = float(said.get("within", 5.0))
        try:
            async with asyncio.timeout(within):
                while not condition():
                    await self._changed.wait()
        except TimeoutError as error:
            seen = [f"{served.summary} {served.outcome}" for served in self.server.llama.served_requests]
            raise TimeoutError(f"not within {within:g} s; requests so far: {seen}") from error


def _as_members(served: ServedRequest) -> Members:
    return {
        "path": served.request.path,
        "body": served.request.body,
        "request_id": served.request_id,
        "status": served.status,
        "outcome": served.outcome,
    }


def _cue(said: Members) -> Cue:
    """Parse a cue: one member named text, reasoning, call, arguments, fault or finish."""
    kinds = {
        "text": TokenKind.TEXT,
        "reasoning": TokenKind.REASONING,
        "call": TokenKind.CALL,
        "arguments": TokenKind.ARGUMENTS,
    }
    [(name, value)] = said.items()
    if name in kinds:
        return Token(kinds[name], value)
    if name == "finish":
        return str(value)
    fault: ScriptedFault = read_fault(value)
    return fault
