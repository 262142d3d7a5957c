"""curl with different versions of HTTP. It shows the bytes of the stream."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE

import orjson

from tests.clients.driven import ClientFailure, ClientReport, ClientRequest, DrivenClient, Run
from tests.support.gateway import CHAT
from tests.support.http1 import parse_head
from tests.support.sse import FrameReader, data_of

WITHIN_S = 30.0
DONE = b"[DONE]"
STATUSES = dict.fromkeys((200, 400, 401, 404, 429, 500, 503), "curl")


def speaks(*options: str) -> Run:
    async def run(ask: ClientRequest) -> ClientReport:
        body = {"model": ask.model, "messages": ask.messages, "temperature": 0, "stream": True}
        body["stream_options"] = {"include_usage": True}
        if ask.max_tokens is not None:
            body["max_tokens"] = ask.max_tokens
        headers = {"content-type": "application/json", "authorization": f"Bearer {ask.key}", **ask.headers}
        lines = [word for name, value in headers.items() for word in ("-H", f"{name}: {value}")]
        request = ("--data-binary", "@-", f"{ask.base}{CHAT}")
        command = ("curl", "-q", "-sS", "-N", "-i", "--noproxy", "*", *options, *lines, *request)
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        try:
            async with asyncio.timeout(WITHIN_S):
                return await _listen(process, ask, json.dumps(body).encode())
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    return run


async def _listen(process: asyncio.subprocess.Process, ask: ClientRequest, body: bytes) -> ClientReport:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdin.write(body)
    process.stdin.close()
    report, reader, done = ClientReport(), FrameReader(), False
    head = parse_head((await process.stdout.readuntil(b"\r\n\r\n")).removesuffix(b"\r\n\r\n"))
    status = int(head.start_line.split(b" ")[1])
    report.request_id = dict(head.headers)[b"x-request-id"].decode()
    if status != 200:
        error = orjson.loads(await process.stdout.read())["error"]
        report.failure = ClientFailure("curl", status, error["code"], report.request_id, error["message"])
    while data := await process.stdout.read(65536):
        for frame in reader.feed(data):
            assert not done, f"{frame!r} behind the end"
            done = data_of(frame) == DONE
            if data_of(frame) and not done:
                _hear(report, orjson.loads(data_of(frame)))
            if ask.must_leave(report):
                process.terminate()
                await process.wait()
                await ask.left()
                return report
    assert not reader.rest, reader.rest
    complaints = (await process.stderr.read()).decode()
    assert await process.wait() == 0, complaints
    assert done == (report.failure is None), report
    return report


def _hear(report: ClientReport, chunk: dict[str, object]) -> None:
    if isinstance(error := chunk.get("error"), dict):
        report.failure = ClientFailure("curl", None, error["code"], report.request_id, error["message"])
        return
    if isinstance(usage := chunk.get("usage"), dict):
        report.tokens = usage["completion_tokens"]
    choices = chunk["choices"]
    assert isinstance(choices, list)
    for choice in choices:
        report.finish = choice["finish_reason"] or report.finish
        if choice["delta"].get("content"):
            report.pieces.append(choice["delta"]["content"])


CLIENTS = (
    DrivenClient("curl", CHAT, speaks("--http1.1"), errors=STATUSES),
    DrivenClient("curl http/1.0", CHAT, speaks("--http1.0"), errors=STATUSES),
    DrivenClient("curl http/2 upgrade", CHAT, speaks("--http2"), errors=STATUSES),
)
