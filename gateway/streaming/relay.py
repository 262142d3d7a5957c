"""Relays one stream from its upstream to its client, ends it, and releases its lease.

    OPENING --headers 200--> STREAMING --its end-> SENTINEL --upstream's end--> SUCCEEDED
        \\                        \\                    \\------grace over------> SUCCEEDED
         \\--other status--> REFUSING --its end----------------------------------> FAILED
          \\----------------------\\--- error, lost, timeout, closed --------------> FAILED

The relay is the sink of the upstream exchange. All of it runs in the event loop's callbacks, however far
behind the client is. The three rules of an early release meet in `ended`:

* The lease is released *before* the success sentinel is passed on to the client.
* Only the success sentinel causes an early release. An error first closes the upstream, then releases.
* The lease is released as FINISHED only if the upstream completed its message by itself. Otherwise (it did
  not
  end within the grace period, its connection was lost, or the gateway closed it) the slot has to be verified.

An exception in a callback would only reach the event loop, and the stream would end in silence. Therefore it
fails the relay.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from enum import Enum
from typing import Concatenate, ParamSpec

from slotgate.admission import Lease, Outcome
from slotgate.gateway.api.upstream_errors import error_of_answer, error_of_event
from slotgate.gateway.http.context import RequestContext
from slotgate.gateway.http.errors import GatewayError, UpstreamError, internal_error
from slotgate.gateway.http.headers import Headers
from slotgate.gateway.streaming.alarm import Alarm
from slotgate.gateway.streaming.deadlines import StreamTimes
from slotgate.gateway.streaming.downstream import Downstream
from slotgate.gateway.streaming.frames import Frames
from slotgate.gateway.upstream import End, UpstreamExchange, UpstreamRequest, UpstreamTransport

__all__ = ["Relay", "RelayState"]

MAX_ANSWER_BYTES = 1024 * 1024
"""The limit of an answer that is not a stream. The rest of a longer one is not awaited."""
P = ParamSpec("P")


class RelayState(Enum):
    OPENING = "opening"
    REFUSING = "refusing"
    STREAMING = "streaming"
    SENTINEL = "sentinel"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


_OVER = (RelayState.SUCCEEDED, RelayState.FAILED)


def _guarded(callback: Callable[Concatenate[Relay, P], None]) -> Callable[Concatenate[Relay, P], None]:
    """Make an exception in a callback of the event loop fail the relay."""

    @functools.wraps(callback)
    def guarded(relay: Relay, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            callback(relay, *args, **kwargs)
        except Exception as error:
            relay.crashed(error)

    return guarded


class Relay:
    """`error` is the reason of FAILED. `close()` must be called at the end, and may be called at any time."""

    def __init__(
        self,
        lease: Lease,
        frames: Frames,
        out: Downstream,
        context: RequestContext,
        *,
        grace_s: float,
        scrub: Callable[[bytes], bytes],
        loop: asyncio.AbstractEventLoop,
        on_answer: Callable[[], None],
        on_first_event: Callable[[], None],
    ) -> None:
        """`on_answer` is called at the backend's first sign of work: an event, or a complete answer.
        `on_first_event` is called once, at the first event."""
        self.state = RelayState.OPENING
        self.error: GatewayError | None = None
        self._lease = lease
        self._frames = frames
        self._out = out
        self._context = context
        self._grace_s = grace_s
        self._scrub = scrub
        self._loop = loop
        self._on_answer = on_answer
        self._on_first_event = on_first_event
        self._exchange: UpstreamExchange | None = None
        self._output_seen = False
        self._status = 0
        self._answer = bytearray()
        self._grace: Alarm | None = None
        self._paused_since: float | None = None
        self._paused_s = 0.0
        self._resumed_at: float | None = None

    def __repr__(self) -> str:
        return f"<Relay {self.state.value} {self._lease!r} {self._out!r}>"

    @property
    def over(self) -> bool:
        return self.state in _OVER

    @property
    def succeeded(self) -> bool:
        """True once the stream has said that it succeeded and its end has been put into the buffer."""
        return self.state is RelayState.SUCCEEDED

    def start(self, transport: UpstreamTransport, request: UpstreamRequest) -> None:
        """Send the request. The relay fails if the backend cannot be reached."""
        self._context.asked_at = self._loop.time()
        self._exchange = transport.begin(request, self)

    @_guarded
    def fail(self, error: GatewayError) -> None:
        """End the stream for a reason of the gateway. The upstream is closed, then the lease is released."""
        if not self.over:
            self._fail(error, Outcome.ABANDONED)

    def crashed(self, error: Exception) -> None:
        """Fail because of an exception in a callback, which has no caller to tell."""
        failure = error if isinstance(error, GatewayError) else internal_error(error, self._context.id)
        if self.state is not RelayState.FAILED:
            self._fail(failure, Outcome.ABANDONED)

    def close(self) -> None:
        """Make sure that the upstream connection is closed and the lease released."""
        if not self.over:
            self.state = RelayState.FAILED
        self._let_go(Outcome.ABANDONED)

    def take_error(self) -> GatewayError:
        """Return the error and forget it, so that the relay is freed before the error's traceback."""
        error, self.error = self.error, None
        assert error is not None
        return error

    def times(self) -> StreamTimes:
        """Return the times that the deadlines compare."""
        return StreamTimes(
            began_at=self._context.began_at,
            asked_at=None if self.over else self._context.asked_at,
            last_event_at=self._frames.last_event_at,
            untimed=self._frames.untimed,
            sending_since=self._out.sending_since,
            paused_since=self._paused_since,
            paused_s=self._paused_s,
            resumed_at=self._resumed_at,
        )

    # -- the sink of the upstream exchange

    @_guarded
    def head(self, status: int, headers: Headers) -> None:
        self._lease.start()
        self._context.answered_at = self._loop.time()
        self._status = status
        streams = any(name == b"content-type" and b"event-stream" in value.lower() for name, value in headers)
        self.state = RelayState.STREAMING if status == 200 and streams else RelayState.REFUSING

    def body(self, data: bytes) -> None:
        """Guarded by hand, like `read_over`: the wrapper would cost a call for every frame."""
        try:
            if self.state is RelayState.STREAMING:
                frames = self._frames
                if frames.learnable is not None:
                    frames.learn()  # more deltas have come in the same read
                if frames.feed(data):
                    return  # it was one plain delta
                if frames.learnable is not None:
                    self._loop.call_soon(self._learn)
                if frames.parsed and not self._lease.delivered:
                    self._delivers()
                if not self._output_seen and frames.first_output_at is not None:
                    self._output_seen = True
                    self._out.hand_over()  # the first token does not wait for the rest of its read
                if frames.sentinel or frames.error is not None:
                    self._ending()
            elif self.state is RelayState.REFUSING:
                self._answer += data
                if len(self._answer) > MAX_ANSWER_BYTES:
                    self._fail(self._refusal(), Outcome.ABANDONED)
        except Exception as error:
            self.crashed(error)

    def read_over(self) -> Callable[[bytes], bool] | None:
        try:
            self._out.hand_over()
        except Exception as error:
            self.crashed(error)
        return self._frames.fast_path.for_next_read()

    @_guarded
    def ended(self, end: End) -> None:
        self._out.hand_over()  # frames do not wait until the lease is released
        complete = end is End.COMPLETE
        if self.state is RelayState.STREAMING:
            self._frames.finish()
            if self._frames.parsed and not self._lease.delivered:
                self._delivers()
            self._ending()
        if self.state is RelayState.SENTINEL:
            self._succeed(Outcome.FINISHED if complete else Outcome.ABANDONED)
        elif self.state is RelayState.REFUSING and complete:
            self._on_answer()
            self._fail(self._refusal(), Outcome.REFUSED if self._status != 200 else Outcome.ABANDONED)
        elif not self.over:
            self._fail(self._upstream_failure(end), Outcome.ABANDONED)

    # -- the source of the client's frames

    def pause(self) -> None:
        """Stop reading from the upstream, because the client's buffer is full."""
        if self._exchange is not None and not self.over:
            self._paused_since = self._loop.time()
            self._exchange.pause()

    def resume(self) -> None:
        if self._exchange is not None and self._paused_since is not None:
            self._resumed_at = self._loop.time()
            self._paused_s += self._resumed_at - self._paused_since
            self._paused_since = None
            self._exchange.resume()

    # -- mechanism

    def _delivers(self) -> None:
        """React to the first event: from now on the request is not tried again."""
        self._lease.delivered = True
        self._on_first_event()
        self._on_answer()

    @_guarded
    def _learn(self) -> None:
        self._frames.learn()

    def _upstream_failure(self, end: End) -> GatewayError:
        if end is not End.UNREACHABLE:
            return _broken_or_truncated(end)
        error = UpstreamError("upstream_unreachable", "the backend could not be reached", retry_safe=True)
        error.__cause__ = self._exchange.failure if self._exchange is not None else None
        return error

    def _refusal(self) -> GatewayError:
        """Return the error that an answer in place of a stream stands for, as far as it has come."""
        return error_of_answer(self._status, bytes(self._answer), self._scrub)

    def _ending(self) -> None:
        """React to the stream's last event, if it has come. The body may be over without one."""
        if self._frames.error is not None:
            self._fail(error_of_event(self._frames.error, self._scrub), Outcome.ABANDONED)
        elif self._frames.sentinel:
            self.state = RelayState.SENTINEL
            self._grace = Alarm(self._loop, self._grace_over)
            self._grace.set(self._loop.time() + self._grace_s)

    @_guarded
    def _grace_over(self) -> None:
        if self.state is RelayState.SENTINEL:
            self._succeed(Outcome.ABANDONED)

    def _succeed(self, outcome: Outcome) -> None:
        self._frames.finish()
        self.state = RelayState.SUCCEEDED
        self._let_go(outcome)
        self._out.close(self._frames.terminal)

    def _fail(self, error: GatewayError, outcome: Outcome) -> None:
        self.state = RelayState.FAILED
        self.error = error
        try:
            self._let_go(outcome)
        finally:
            self._out.wake()

    def _let_go(self, outcome: Outcome) -> None:
        """Close the upstream, then release the lease. Does nothing if that was done before."""
        if self._grace is not None:
            self._grace.close()
        exchange = self._exchange
        if exchange is None:
            self._lease.release(Outcome.UNUSED)
            return
        try:
            exchange.close()
        finally:
            self._lease.release(outcome if exchange.sent else Outcome.UNUSED)


def _broken_or_truncated(end: End) -> UpstreamError:
    if end is End.BROKEN:
        return UpstreamError("upstream_broken", "the backend sent something that is not HTTP")
    message = "upstream closed the stream before it finished"
    return UpstreamError("upstream_truncated", message, lost=end is End.CUT_SHORT)
