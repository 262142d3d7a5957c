"""`GET /health` tells that the process lives, `GET /ready` that it can serve. Neither asks a backend."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from slotgate.admission import Scheduler
from slotgate.gateway.backends.fleet import Fleet
from slotgate.gateway.http.replies import send_json

__all__ = ["Health", "Ready"]


class Health:
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, 200, {"status": "ok"})


class Ready:
    def __init__(self, fleet: Fleet, scheduler: Scheduler) -> None:
        self._fleet = fleet
        self._scheduler = scheduler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        draining = self._scheduler.draining
        ready = self._fleet.ready and not draining
        backends = [
            {"name": backend.name, "state": backend.state.label, "reason": backend.explanation}
            for backend in self._fleet.backends.values()
        ]
        status = "ready" if ready else "draining" if draining else "not ready"
        await send_json(send, 200 if ready else 503, {"status": status, "backends": backends})
