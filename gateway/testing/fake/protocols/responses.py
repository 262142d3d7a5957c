"""Formats answers of `/v1/responses` as llama-server does, which differs from OpenAI in these points:

* events have no sequence numbers;
* the status is `completed` even if the token limit ended the answer;
* the reasoning item ends behind all text and has no parts;
* no event marks the end of a call's arguments.
"""

from __future__ import annotations

from slotgate.gateway.testing.fake.net.wire import Json, data, named
from slotgate.gateway.testing.fake.protocols.answer import GeneratedAnswer
from slotgate.gateway.testing.fake.script.answer_content import Token, TokenKind

__all__ = ["ResponsesFormatter"]


class ResponsesFormatter:
    """Formats one response."""

    def __init__(self, answer: GeneratedAnswer) -> None:
        self.answer = answer
        context = answer.context
        self._id = f"resp_{context.id}"
        self._item = f"msg_{context.new_id()}"
        self._reasoning_id = f"rs_{context.new_id()}"
        self._call_ids: list[str] = []
        self._opened = False
        self._kind: TokenKind | None = None

    def add(self, token: Token) -> bytes:
        self.answer.append(token)
        begun = self._opening() + (b"" if token.kind is self._kind else self._begun(token))
        self._kind = token.kind
        return begun + self._delta(token)

    def finish(self) -> list[bytes]:
        answer = self.answer
        ending = [self._opening()]
        if answer.reasoning:
            ending.append(named("response.output_item.done", item=self._thought()))
        if answer.text:
            part = self._part(answer.text)
            ending += [
                named("response.output_text.done", item_id=self._item, text=answer.text),
                named("response.content_part.done", item_id=self._item, part=part),
                named("response.output_item.done", item=self._message_done()),
            ]
        ending += [named("response.output_item.done", item=call) for call in self._calls()]
        ending.append(named("response.completed", response=self._completed(), timings=answer.timings()))
        return [b"".join(ending)]

    def body(self) -> Json:
        answer, context = self.answer, self.answer.context
        output: list[Json] = []
        if answer.reasoning:
            output.append({**self._thought(), "status": "completed"})
        if answer.text or not answer.calls:
            message = {"content": [self._part(answer.text)], "id": self._item, "role": "assistant"}
            output.append({**message, "status": "completed", "type": "message"})
        output += self._calls()
        return {
            "completed_at": context.created,
            "created_at": context.created,
            "id": self._id,
            "model": context.model,
            "object": "response",
            "output": output,
            "status": "completed",
            "usage": self._usage(),
        }

    def error_event(self, error: Json) -> bytes:
        return data(error)

    # -- the parts

    def _opening(self) -> bytes:
        if self._opened:
            return b""
        self._opened = True
        begun = {"id": self._id, "object": "response", "status": "in_progress"}
        return named("response.created", response=begun) + named("response.in_progress", response=begun)

    def _begun(self, token: Token) -> bytes:
        if token.kind is TokenKind.TEXT:
            item = {
                "content": [],
                "id": self._item,
                "role": "assistant",
                "status": "in_progress",
                "type": "message",
            }
            part = {"type": "output_text", "text": ""}
            return named("response.output_item.added", item=item) + named(
                "response.content_part.added", item_id=self._item, part=part
            )
        if token.kind is TokenKind.REASONING:
            item = {**self._thinking([]), "status": "in_progress"}
            return named("response.output_item.added", item=item)
        return b""

    def _delta(self, token: Token) -> bytes:
        if token.kind is TokenKind.TEXT:
            return named("response.output_text.delta", item_id=self._item, delta=token.text)
        if token.kind is TokenKind.REASONING:
            return named("response.reasoning_text.delta", delta=token.text, item_id=self._reasoning_id)
        if token.kind is TokenKind.CALL:
            self._call_ids.append(self.answer.context.new_id())
            begun = {"type": "function_call", "status": "in_progress"}
            item = {**self._call(len(self._call_ids) - 1, token.text, ""), **begun}
            return named("response.output_item.added", item=item)
        item_id = f"fc_{self._call_ids[-1]}"
        return named("response.function_call_arguments.delta", delta=token.text, item_id=item_id)

    def _call(self, index: int, name: str, arguments: str) -> Json:
        call_id = self._call_ids[index]
        return {"id": f"fc_{call_id}", "arguments": arguments, "call_id": f"call_{call_id}", "name": name}

    def _thinking(self, content: list[Json]) -> Json:
        return {
            "id": self._reasoning_id,
            "summary": [],
            "type": "reasoning",
            "content": content,
            "encrypted_content": "",
        }

    def _thought(self) -> Json:
        return self._thinking([{"text": self.answer.reasoning, "type": "reasoning_text"}])

    def _part(self, text: str) -> Json:
        return {"type": "output_text", "annotations": [], "logprobs": [], "text": text}

    def _message_done(self) -> Json:
        content = [self._part(self.answer.text)]
        return {
            "type": "message",
            "status": "completed",
            "id": self._item,
            "content": content,
            "role": "assistant",
        }

    def _calls(self) -> list[Json]:
        while len(self._call_ids) < len(self.answer.calls):
            self._call_ids.append(self.answer.context.new_id())
        done = {"type": "function_call", "status": "completed"}
        calls = (self._call(index, *call) for index, call in enumerate(self.answer.calls))
        return [{"id": call.pop("id"), **done, **call} for call in calls]

    def _completed(self) -> Json:
        answer, context = self.answer, self.answer.context
        output = [self._thought()] if answer.reasoning else []
        if answer.text:
            output.append(self._message_done())
        return {
            "id": self._id,
            "object": "response",
            "created_at": context.created,
            "status": "completed",
            "model": context.model,
            "output": [*output, *self._calls()],
            "usage": self._usage(),
        }

    def _usage(self) -> Json:
        answer, context = self.answer, self.answer.context
        return {
            "input_tokens": context.prompt_tokens,
            "output_tokens": answer.predicted,
            "total_tokens": context.prompt_tokens + answer.predicted,
            "input_tokens_details": {"cached_tokens": context.cached_tokens},
        }
