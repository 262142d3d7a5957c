"""The Node clients: the official `openai` package, and the AI SDK. `node/drive.mjs` drives them."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE
from pathlib import Path

from tests.clients import openai_python
from tests.clients.driven import (
    PARAMETERS,
    TOOL,
    ClientFailure,
    ClientReport,
    ClientRequest,
    DrivenClient,
    Run,
)
from tests.support.gateway import CHAT

HOME = Path(__file__).with_name("node")
WITHIN_S = 30.0
"""The time limit of a run. Starting the programs takes half a second."""
ERRORS = openai_python.ERRORS
AI_SDK_ERRORS = {**dict.fromkeys(ERRORS, "AI_APICallError"), 200: "Object"}
"""The AI SDK gives its user an error inside a stream as the object that the gateway sent."""


def drives(client: str) -> Run:
    async def run(ask: ClientRequest) -> ClientReport:
        given = {
            "base": ask.base,
            "key": ask.key,
            "model": ask.model,
            "prompt": ask.prompt,
            "messages": ask.messages,
            "max_tokens": ask.max_tokens,
            "tools": ask.tools,
            "tool": TOOL,
            "parameters": PARAMETERS,
            "headers": ask.headers,
            "leave_after": ask.leave_after,
            "idle_ms": ask.idle_ms,
        }
        command = ("node", "drive.mjs", client, json.dumps(given))
        process = await asyncio.create_subprocess_exec(
            *command, cwd=HOME, stdin=PIPE, stdout=PIPE, stderr=PIPE
        )
        try:
            async with asyncio.timeout(WITHIN_S):
                return await _listen(process, ask)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    return run


async def _listen(process: asyncio.subprocess.Process, ask: ClientRequest) -> ClientReport:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    report, whole = ClientReport(), False
    async for line in process.stdout:
        said = json.loads(line)
        if "piece" in said:
            report.pieces.append(said["piece"])
        elif "left" in said:
            await ask.left()
            process.stdin.close()
        else:
            whole = True
            report.finish, report.tokens = said["told"]["finish"], said["told"]["tokens"]
            call, failure = said["told"]["call"], said["told"]["failure"]
            report.call = tuple(call) if call else None
            report.failure = ClientFailure(**failure) if failure else None
    complaints = (await process.stderr.read()).decode()
    assert await process.wait() == 0, complaints
    assert whole, complaints
    return report


CLIENTS = (
    DrivenClient("node openai chat", CHAT, drives("chat"), needs_node=True, errors=ERRORS),
    DrivenClient(
        "node openai responses, helper",
        "/v1/responses",
        drives("responses"),
        needs_node=True,
        errors=openai_python.EVENTS,
    ),
    DrivenClient("ai sdk", CHAT, drives("ai-sdk"), needs_node=True, errors=AI_SDK_ERRORS),
)
