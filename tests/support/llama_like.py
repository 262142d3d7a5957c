"""llama-server's behaviour on the wire: slots, silent deferral, control plane, generation.

Tests may change all state at any time. The counts matter most: behind a gateway that admits well, `deferred`
stays 0.

If a client closes before its answer is complete, the abandoned work keeps its slot busy until the whole
server has had no result for `linger_s`. Answers to `/slots` or `/metrics`, and bytes of any stream, are
results. 0 frees the slot at once; `math.inf` keeps it until `finish_abandoned()`.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support import llama_answers
from tests.support.connection import ReceivedRequest
from tests.support.notation import answer, error_body
from tests.support.pulse import Pulse
from tests.support.script import Script, Stall, Write

CONTROL_PATHS = frozenset({"/health", "/v1/health", "/props", "/slots", "/v1/models", "/models", "/metrics"})


class LlamaLike:
    def __init__(
        self,
        slots: int = 4,
        *,
        tokens: int = 8,
        rate: float = math.inf,
        n_ctx: int = 4096,
        model: str = "/srv/models/tiny.gguf",
        linger_s: float = 0.0,
    ) -> None:
        """A generation has `tokens` tokens, unless the request sets a limit, at `rate` tokens a second."""
        self.total_slots = slots
        self.tokens = tokens
        self.rate = rate
        self.n_ctx = n_ctx
        self.model = model
        self.linger_s = linger_s
        self.loading = False
        self.hanging: set[str] = set()
        """Control-plane paths that accept the request and never answer."""
        self.running = 0
        self.max_running = 0
        self.deferred = 0
        """The number of requests that ever waited for a slot."""
        self.abandoned = 0
        """The number of slots with abandoned work."""
        self.foreign = 0
        """The number of slots that other clients of llama-server use."""
        self.pulse = Pulse()
        """Beats at every change."""
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._last_result = 0.0

    def __repr__(self) -> str:
        return (
            f"<LlamaLike {self.running}/{self.total_slots} running, {len(self._waiting)} waiting, "
            f"{self.abandoned} abandoned, {self.deferred} ever deferred>"
        )

    @property
    def busy(self) -> int:
        return self.running + self.abandoned + self.foreign

    def is_control(self, path: str) -> bool:
        return path in CONTROL_PATHS

    def finish_abandoned(self, slots: int | None = None) -> None:
        self.abandoned -= self.abandoned if slots is None else slots
        self.grant()

    def had_result(self) -> None:
        self._last_result = asyncio.get_running_loop().time()

    # Slots

    @asynccontextmanager
    async def slot(self, request: ReceivedRequest) -> AsyncIterator[None]:
        """Wait for the slots of a request, in order of arrival, and hold them during the block."""
        width = min(llama_answers.width(request), self.total_slots)
        await self._take(width)
        try:
            yield
        except asyncio.CancelledError:
            self._abandon(width)
            raise
        finally:
            self.running -= width
            self.grant()

    def grant(self) -> None:
        """Give free slots to waiting requests. Call it after changing `total_slots` or `foreign`."""
        while self._waiting and self.busy + self._waiting[0][0] <= self.total_slots:
            width, waiter = self._waiting.popleft()
            self._start(width)
            if not waiter.done():
                waiter.set_result(None)
        self.pulse.beat()

    async def _take(self, width: int) -> None:
        if width == 0:
            return
        if not self._waiting and self.busy + width <= self.total_slots:
            self._start(width)
            return
        self.deferred += 1
        self.pulse.beat()
        place = (width, asyncio.get_running_loop().create_future())
        self._waiting.append(place)
        try:
            await place[1]
        except asyncio.CancelledError:
            if place in self._waiting:
                self._waiting.remove(place)
            else:
                self.running -= width
            self.grant()
            raise

    def _start(self, width: int) -> None:
        self.running += width
        self.max_running = max(self.max_running, self.running)
        self.pulse.beat()

    def _abandon(self, width: int) -> None:
        if self.linger_s:
            self.abandoned += width
        if 0 < self.linger_s < math.inf:
            self._last_result = max(self._last_result, asyncio.get_running_loop().time())
            self._notice_later(width)

    def _notice_later(self, width: int) -> None:
        loop = asyncio.get_running_loop()
        silent_at = self._last_result + self.linger_s
        if loop.time() < silent_at:
            loop.call_at(silent_at, self._notice_later, width)
        else:
            self.finish_abandoned(min(width, self.abandoned))

    # Answers

    def control(self, request: ReceivedRequest) -> Script | None:
        """Return the script of a control-plane path, or of any path while loading, else None."""
        if request.path in self.hanging:
            return [Stall()]
        if self.loading:
            close = b"Connection: close"
            return [Write(answer(503, error_body(503, "Loading model", "unavailable_error"), close))]
        if not self.is_control(request.path):
            return None
        if request.path in ("/slots", "/metrics"):
            self.had_result()
        return [Write(self._control_answer(request.path))]

    def _control_answer(self, path: str) -> bytes:
        if path == "/metrics":
            return answer(200, self._metrics(), content_type=b"text/plain; version=0.0.4")
        bodies: dict[str, Any] = {
            "/health": {"status": "ok"},
            "/v1/health": {"status": "ok"},
            "/props": llama_answers.props(self.total_slots, self.n_ctx, self.model),
            "/slots": [
                {"id": i, "n_ctx": self.n_ctx, "speculative": False, "is_processing": i < self.busy}
                for i in range(self.total_slots)
            ],
            "/v1/models": llama_answers.models(self.n_ctx, self.model),
            "/models": llama_answers.models(self.n_ctx, self.model),
        }
        return answer(200, bodies[path])

    def _metrics(self) -> bytes:
        return (
            "# HELP llamacpp:requests_processing Number of requests processing\n"
            "# TYPE llamacpp:requests_processing gauge\n"
            f"llamacpp:requests_processing {self.running + self.abandoned}\n"
            "# HELP llamacpp:requests_deferred Number of requests deferred\n"
            "# TYPE llamacpp:requests_deferred gauge\n"
            f"llamacpp:requests_deferred {len(self._waiting)}\n"
        ).encode()

    def generate(self, request: ReceivedRequest) -> Script:
        """Return the answer of a generation, paced by `rate`."""
        return llama_answers.generation(request, self.model, self.tokens, self.rate)
