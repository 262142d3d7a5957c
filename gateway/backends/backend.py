"""One llama-server as the gateway sees it: how to reach it, its slots, its state.

The state (`backend_state.py`) is what follows from three things: what was seen of it last (`observe`),
whether it is to get no new work (`hold`), and its circuit (`circuit.py`). Only READY admits. STARTING and
LOADING let requests wait; a backend that has been FAILED for `GIVE_UP_S`, was given up, or is held by order
is not waited for.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from enum import Enum
from typing import Any

import httpx
import orjson

from slotgate.admission import SlotPool
from slotgate.gateway.backends.circuit_breaker import CircuitBreaker, CircuitState
from slotgate.gateway.backends.kv_sharing import kv_unified_from_sizes
from slotgate.gateway.backends.state import NEXT, BackendState
from slotgate.gateway.http.headers import Headers
from slotgate.gateway.http.request_body import Body
from slotgate.gateway.upstream import UpstreamRequest, UpstreamTransport
from slotgate.gateway.upstream.address import BackendAddress

__all__ = ["Backend", "BackendState", "Hold"]

GIVE_UP_S = 10.0

_MODEL_FILE = b".gguf"
_word = re.compile(rb"[^\s\"']+")


class Hold(Enum):
    """Why a backend gets no new work; what runs goes on."""

    BY_ORDER = "drained by order"
    TO_STOP = "its process is about to be stopped"
    """Requests wait meanwhile: it, or another one, is there again soon."""


class Backend:
    """`models` are the names it was found or configured to serve, as the backend itself writes them."""

    def __init__(
        self,
        name: str,
        base_url: str,
        *,
        api_key: str | None,
        unix_socket: str | None = None,
        slots: int | None = None,
        shared: bool = False,
        kv_unified: bool | None = None,
        pool_name: str = "",
        connect_timeout_s: float = 5.0,
        start_timeout_s: float = 300.0,
    ) -> None:
        self.name = name
        self.base_url = httpx.URL(base_url)
        self.api_key = api_key
        self.fixed_slots = slots
        self.kv_unified = kv_unified
        """Whether its slots share one context, by the configuration; None: to be found out."""
        self.says_unified: bool | None = None
        """What its process says of that, where it is one of ours."""
        self.n_ctx_train: int | None = None
        """The context that its model was trained for, in tokens."""
        self._start_timeout_s = start_timeout_s
        self.pool = SlotPool(pool_name or name, slots or 0, shared=shared, admitting=False)
        self.transport = UpstreamTransport(
            BackendAddress.of(self.base_url, unix_socket), connect_timeout_s=connect_timeout_s
        )
        self._control = UpstreamTransport(
            BackendAddress.of(self.base_url, unix_socket),
            connect_timeout_s=connect_timeout_s,
            keep_idle=False,
        )
        self._questions: dict[str, httpx.Request] = {}
        self._starts: dict[str, bytes] = {}
        """By path, what the heads of all requests there begin with."""
        self.state = BackendState.STARTING
        self.reason = "not asked yet"
        self.circuit = CircuitBreaker()
        self.held: Hold | None = None
        self.given_up = False
        """Whether its process will not be started again by itself."""
        self.on_request = False
        """Whether its process is loaded when somebody asks for its model."""
        self.will_load = True
        """Whether it is worth waiting for while its process is not loaded."""
        self._observed = BackendState.STARTING
        self.process = ""
        """What is wrong with its process, where that is one of ours."""
        self.since = 0.0
        self.models: tuple[str, ...] = ()
        self.n_ctx: int | None = None
        """Context of one slot, in tokens."""
        self.states_usage = True
        """Whether its streams state token counts without being asked for the usage chunk."""
        self.model_path: str | None = None
        self.props: dict[str, Any] = {}
        """What it last said of itself."""
        self.on_restart: Callable[[], None] = lambda: None
        """Its process is another one: nothing that it had in its cache is there any more."""
        self.on_change: Callable[[Backend], None] = lambda _: None

    def __repr__(self) -> str:
        return f"<Backend {self.name} {self.state.value} {self.pool!r}>"

    @property
    def explanation(self) -> str:
        """Why it is not ready, as far as known."""
        held = self.held.value if self.held else ""
        return "; ".join(part for part in (held, self.circuit.reason, self.process, self.reason) if part)

    def move_to(self, url: str) -> None:
        """Its process listens there now."""
        self.base_url = httpx.URL(url)
        self._forget_requests()
        for transport in (self.transport, self._control):
            transport.move_to(BackendAddress.of(self.base_url, None))

    def adjust(
        self,
        *,
        api_key: str | None,
        slots: int | None,
        shared: bool,
        kv_unified: bool | None,
        connect_timeout_s: float,
    ) -> None:
        """What may change while requests run on it. Whoever calls it has admission look again."""
        self.api_key = api_key
        self._forget_requests()
        self.fixed_slots = slots
        self.kv_unified = kv_unified
        self.pool.total = slots or self.pool.total
        self.pool.quarantine.shared = shared
        for transport in (self.transport, self._control):
            transport.connect_timeout_s = connect_timeout_s

    def _forget_requests(self) -> None:
        """They were made for another address or key."""
        self._questions.clear()
        self._starts.clear()

    @property
    def lost(self) -> bool:
        """Whether those that wait for this backend already should be told that it does not come."""
        failed = self.given_up and self.state is BackendState.FAILED
        stopped = self.state is BackendState.STOPPED and not self.will_load
        return self.held is Hold.BY_ORDER or failed or stopped

    @property
    def can_serve(self) -> bool:
        """Whether it is ready, or is loaded when somebody asks."""
        loadable = self.on_request and self.state is not BackendState.FAILED
        return self.state is BackendState.READY or (loadable and self.held is not Hold.BY_ORDER)

    def hopeless(self, now: float) -> bool:
        """Whether a request should not wait for this backend."""
        return self.lost or (self.state is BackendState.FAILED and now - self.since >= GIVE_UP_S)

    @property
    def observed(self) -> BackendState:
        """What was seen of it last, whatever it is held for."""
        return self._observed

    def observe(self, state: BackendState, reason: str = "") -> None:
        """What is seen of it now. An impossible change is a programming error."""
        self.reason = reason
        self._observed = state
        self._settle()

    def hold(self, why: Hold | None) -> None:
        """Give it no new work for now; None: give it work again."""
        if why is not self.held:
            self.held = why
            self._settle()
            self.on_change(self)

    def answered(self) -> None:
        """A request had an event, or a complete answer, whatever it says."""
        if self.circuit.state is not CircuitState.CLOSED:
            self.circuit.answered()
            self._settle()
        self.circuit.answered()

    def silent(self) -> None:
        """A request had no event in time."""
        self.circuit.silent(asyncio.get_running_loop().time())
        self._settle()

    def look_at_circuit(self) -> None:
        """Time has passed: a circuit that was open long enough lets one request try."""
        if self.circuit.retry_at is not None:
            self.circuit.rested(asyncio.get_running_loop().time())
            self._settle()

    def _settle(self) -> None:
        """Draw the conclusion from all that is known."""
        state = self._observed
        if state is not BackendState.STOPPED:
            if self.held is not None:
                state = BackendState.DRAINING
            elif self.circuit.state is CircuitState.OPEN:
                state = BackendState.FAILED
        self.pool.on_trial = self.circuit.state is CircuitState.HALF_OPEN
        begins_to_come = state.is_coming and self.pool.loading_until is None
        if begins_to_come:
            self.pool.loading_until = asyncio.get_running_loop().time() + self._start_timeout_s
        if state is not self.state:
            if state not in NEXT[self.state]:
                raise ValueError(f"backend {self.name}: {self.state.value} cannot become {state.value}")
            self.state = state
            self.since = asyncio.get_running_loop().time()
            self.pool.admitting = state is BackendState.READY
            if not state.is_coming:
                self.pool.loading_until = None
            self.on_change(self)
        elif begins_to_come:
            self.on_change(self)

    def resize(self, total: int) -> None:
        """It has so many slots, and what `n_ctx` says is known."""
        told = (
            self.kv_unified,
            self.says_unified,
            kv_unified_from_sizes(self.n_ctx, total, self.n_ctx_train),
        )
        unified = next(word for word in told if word is not None)
        context = self.n_ctx or 0 if unified else 0
        if (total, context) != (self.pool.total, self.pool.context):
            self.pool.total, self.pool.context = total, context
            self.on_change(self)

    async def ask(self, path: str, method: str = "GET") -> httpx.Response:
        """One of its own pages, whole, on a connection of its own; raises `httpx.TransportError`.

        Asked every few seconds for as long as the gateway runs: the request is built once. The connection is
        not kept, because llama-server closes idle ones: it would be stale as often as not.
        """
        question = self._questions.get(path)
        if question is None:
            headers = [(b"host", self.base_url.netloc), (b"connection", b"close"), *self._own_key()]
            question = self._questions[path] = httpx.Request(method, self._url(path), headers=headers)
        answer = await self._control.handle_async_request(question)
        try:
            await answer.aread()
        finally:
            await answer.aclose()
        return answer

    def request(self, path: str, body: Body, headers: Headers) -> httpx.Request:
        """A POST for this backend, with its own key and nothing of the client's but `headers`."""
        own = [(b"host", self.base_url.netloc), (b"accept-encoding", b"identity"), *self._own_key()]
        return httpx.Request(
            "POST",
            self._url(path),
            headers=[*own, *headers, (b"content-length", b"%d" % sum(map(len, body)))],
            extensions={"body": body},
        )

    def outgoing(self, path: str, body: Body, headers: Headers) -> UpstreamRequest:
        """The same for a stream."""
        start = self._starts.get(path)
        if start is None:
            lines = [b"POST %s HTTP/1.1" % self._url(path).raw_path, b"host: %s" % self.base_url.netloc]
            lines += [b"%s: %s" % pair for pair in ((b"accept-encoding", b"identity"), *self._own_key())]
            start = self._starts[path] = b"\r\n".join(lines)
        lines = [start, *[b"%s: %s" % pair for pair in headers]]
        size = sum(map(len, body))
        return UpstreamRequest(b"%s\r\ncontent-length: %d\r\n\r\n" % (b"\r\n".join(lines), size), body)

    def _own_key(self) -> Headers:
        return [(b"authorization", b"Bearer " + self.api_key.encode())] if self.api_key else []

    def _url(self, path: str) -> httpx.URL:
        return self.base_url.copy_with(raw_path=self.base_url.raw_path.rstrip(b"/") + path.encode())

    def scrubber(self, public_name: str) -> Callable[[bytes], bytes]:
        """For JSON texts: the public name stands wherever the backend writes the path of a model's file.

        Its own key is left out: a proxy in front of it may repeat what it was sent.
        """
        path = orjson.dumps(self.model_path or "")[1:-1]
        name = orjson.dumps(public_name)[1:-1]
        key = orjson.dumps(self.api_key or "")[1:-1]

        def scrub(text: bytes) -> bytes:
            if key:
                text = text.replace(key, b"***")
            if path and path != name:
                text = text.replace(path, name)
            if _MODEL_FILE not in text:
                return text
            return _word.sub(lambda word: _without_path(word[0], name), text)

        return scrub

    async def aclose(self) -> None:
        await self._control.aclose()
        await self.transport.aclose()


def _without_path(word: bytes, name: bytes) -> bytes:
    start, end = word.find(b"/"), word.rfind(_MODEL_FILE)
    return word if not 0 <= start < end else word[:start] + name + word[end + len(_MODEL_FILE) :]
