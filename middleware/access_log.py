"""Write one log line per request, and tell the observers that the request has ended.

A line has no prompt and no key. Identical failures (clients that leave, a wrong key in a loop) are limited,
and then counted in one line (`telemetry/log_limiter.py`). Successful requests always have a line.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from slotgate.gateway.http.context import RequestContext, context_of
from slotgate.gateway.http.delivery import Delivered, delivery_of, until_delivered
from slotgate.gateway.http.errors import ClientGone
from slotgate.gateway.telemetry.log_limiter import LogLimiter

__all__ = ["AccessLog"]

_QUIET = ("/health", "/v1/health", "/ready", "/metrics", "/admin/static/")
"""Prefixes of paths that are requested often and are of no interest: logged at DEBUG."""
_OUTCOMES = {Delivered.SENT: None, Delivered.GONE: "client_gone", Delivered.STALLED: "client_stalled"}
log = structlog.stdlib.get_logger("slotgate.access")


class AccessLog:
    """Catches `ClientGone`: a client that left is an outcome (499), not an error.

    A request has ended when its answer has been delivered, or given up. It is not `ok` before.
    """

    def __init__(
        self,
        app: ASGIApp,
        on_end: Callable[[RequestContext], None],
        log_limiter: LogLimiter,
        *,
        client_stall_timeout_s: float,
    ) -> None:
        """`on_end` is called with every request that has ended. It must not raise.

        A client that takes nothing of its answer for `client_stall_timeout_s` is given up.
        """
        self._app = app
        self._on_end = on_end
        self._log_limiter = log_limiter
        self._stall_timeout_s = client_stall_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        delivery = delivery_of(scope)
        if delivery is not None:
            delivery.stall_timeout_s = self._stall_timeout_s
        try:
            await self._app(scope, receive, send)
            if context.final_outcome == "ok":
                context.outcome = _OUTCOMES[await until_delivered(scope)]
        except ClientGone:
            stalled = delivery is not None and delivery.result is Delivered.STALLED
            context.outcome = context.outcome or ("client_stalled" if stalled else "client_gone")
        finally:
            context.ended_at = asyncio.get_running_loop().time()
            self._on_end(context)
            if self._is_logged(scope, context):
                self._line(scope, context.facts(context.ended_at) | {"trace_id": context.trace_id})

    def _is_logged(self, scope: Scope, context: RequestContext) -> bool:
        if scope["path"] in _QUIET or context.final_outcome == "ok":
            return True
        return self._log_limiter.allows(context.code or context.final_outcome)

    def _line(self, scope: Scope, facts: dict[str, Any]) -> None:
        level = logging.DEBUG if scope["path"].startswith(_QUIET) else logging.INFO
        facts = {"id": facts["id"], "method": scope["method"], "path": scope["path"], **facts}
        log.log(level, "request", **{name: value for name, value in facts.items() if value is not None})
