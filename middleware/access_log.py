"""One line a request, whatever happened to it. Nothing per frame; no prompt, no key."""

from __future__ import annotations

import asyncio
import logging

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.context import RequestContext, context_of
from gateway.errors import ClientGone

__all__ = ["AccessLog"]

_QUIET = frozenset({"/health", "/ready", "/metrics"})
log = structlog.stdlib.get_logger("slotgate.access")


class AccessLog:
    """A client that left is an outcome, logged at the level of any other (499), and goes no further."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        try:
            await self._app(scope, receive, send)
        except ClientGone:
            context.outcome = context.outcome or "client_gone"
        finally:
            self._line(scope, context)

    def _line(self, scope: Scope, context: RequestContext) -> None:
        level = logging.DEBUG if scope["path"] in _QUIET else logging.INFO
        status = 499 if context.outcome == "client_gone" else context.status
        facts = {
            "id": context.id,
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "outcome": context.outcome or _outcome(context),
            "code": context.code,
            "tenant": context.tenant.name,
            "model": context.model,
            "backend": context.backend,
            "stream": context.stream,
            "queue_ms": _ms(context.queue_s),
            "ttft_ms": _ms(context.first_output_s),
            "total_ms": _ms(asyncio.get_running_loop().time() - context.began_at),
            "prompt_tokens": context.prompt_tokens,
            "cached_tokens": context.cached_tokens,
            "completion_tokens": context.completion_tokens,
        }
        log.log(level, "request", **{name: value for name, value in facts.items() if value is not None})


def _outcome(context: RequestContext) -> str:
    if context.code is not None or context.status is None or context.status >= 400:
        return "error"
    return "ok"


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
