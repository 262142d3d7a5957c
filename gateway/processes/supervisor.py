"""A llama-server of ours: started, watched, started again when it dies, stopped, never left behind.

One task walks through `llama_state.TRANSITIONS`. A round of its loop is one process from its start until it
has been reaped, so the next one finds the memory of the last one free. `restart_policy` says when it may
start again, `llama_launch` how, and `llama_probe` whether it is ready and whether it is ours.

Restarts keep the port where they can: whoever talks to the server looks at `url` again when it is READY.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Self

import structlog

from slotgate.gateway.backends.kv_sharing import kv_unified_from_command, kv_unified_from_log
from slotgate.gateway.processes.command import LlamaCommand
from slotgate.gateway.processes.failure import Failure, LlamaStartError
from slotgate.gateway.processes.launcher import Launched, Launcher
from slotgate.gateway.processes.ports import free_port
from slotgate.gateway.processes.restart_policy import RestartLimits, RestartPolicy
from slotgate.gateway.processes.state import Event, State, next_state

log = structlog.stdlib.get_logger(__name__)

STOP_GRACE_S: Final = 5.0
DEFAULT_LIMITS: Final = RestartLimits()


class LlamaProcess:
    """Runs `command` again and again until it is stopped or hopeless.

    `on_change` is called after every change of state, synchronously, and must not raise. `async with` starts
    it and stops it; it does not wait until it is ready.
    """

    def __init__(
        self,
        command: LlamaCommand,
        environ: Mapping[str, str],
        *,
        limits: RestartLimits = DEFAULT_LIMITS,
        on_change: Callable[["LlamaProcess"], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        pick_port: Callable[[], int] = free_port,
    ) -> None:
        self._command = command
        self._launcher = Launcher(command, environ, pick_port)
        self._policy = RestartPolicy(limits)
        self.on_change = on_change
        self._clock = clock
        self._sleep = sleep
        self._state = State.STOPPED
        self._changed = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self._launched: Launched | None = None
        self._failure: Failure | None = None
        self._restart_reason: str | None = None
        self._grace_s = STOP_GRACE_S
        self.kv_unified = kv_unified_from_command(command.command)
        """Whether its slots share one context; None while nothing tells."""

    def __repr__(self) -> str:
        return f"<LlamaProcess {self.name} {self._state.value} pid={self.pid} {self._policy!r}>"

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    @property
    def name(self) -> str:
        return self._command.name

    @property
    def state(self) -> State:
        return self._state

    @property
    def url(self) -> str:
        """`http://127.0.0.1:PORT`, also before the first start; another where somebody took the port."""
        return self._launcher.url

    @property
    def api_key(self) -> str:
        """What the process wants as a bearer token; the same through all restarts."""
        return self._launcher.api_key

    @property
    def pid(self) -> int | None:
        return None if self._launched is None else self._launched.child.pid

    @property
    def failure(self) -> Failure | None:
        """How the last process ended that was not asked to; kept until the next one is ready."""
        return self._failure

    def start(self) -> None:
        """Starts it, from STOPPED or GIVEN_UP; then it goes on by itself. Needs a running event loop."""
        self._move(Event.START)
        self._policy.forgive()
        self._supervisor = asyncio.ensure_future(self._supervise())
        self._supervisor.add_done_callback(self._supervisor_ended)

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """SIGTERM, SIGKILL after `grace_s`, reaped; returns in STOPPED. Idempotent."""
        self.begin_stop(grace_s)
        while self._state is State.STOPPING:
            await self._changed.wait()

    def begin_stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """The same without waiting: it is STOPPING, or STOPPED already, when this returns."""
        if self._supervisor is not None and self._state not in {State.STOPPED, State.STOPPING}:
            self._grace_s = grace_s
            self._move(Event.STOP)
            self._supervisor.cancel()

    def kill(self) -> None:
        """SIGKILL to the process that runs, if any, without waiting: for a stop that is in a hurry."""
        if self._launched is not None:
            self._launched.child.kill()

    def restart(self, reason: str) -> None:
        """Ends a process that lives but no longer works; the next one starts after the usual pause."""
        if self._launched is not None and self._state in {State.LOADING, State.READY}:
            self._restart_reason = reason
            self.kill()

    async def wait_ready(self, timeout_s: float, attempts: int | None = None) -> None:
        """Returns in READY. Raises LlamaStartError when it gave up, is stopped, or after `timeout_s`.

        With `attempts`, that many failed starts in a row end the waiting, too; not the trying.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while self._state is not State.READY:
                    self._check_hope(attempts)
                    await self._changed.wait()
        except TimeoutError as error:
            message = f"{self.name} is not ready after {timeout_s:g} s ({self._state.value})"
            raise LlamaStartError(message, self._failure) from error

    def _check_hope(self, attempts: int | None) -> None:
        enough = attempts is not None and self._policy.failures >= attempts
        if not self._state.may_become_ready or (enough and self._state is State.BACKOFF):
            raise LlamaStartError(f"{self.name} does not start ({self._state.value})", self._failure)

    async def _supervise(self) -> None:
        """Ends by cancellation or by giving up; no process is left either way."""
        while True:
            if self._state is State.BACKOFF:
                await self._sleep(self._policy.delay_s(self._clock()))
                self._move(Event.RETRY)
            self._failure = await self._one_process()
            log.warning(
                "llama-server ended",
                backend=self.name,
                reason=self._failure.reason,
                last_line=self._failure.last_line,
            )
            self._move(Event.ENDED)
            if self._policy.is_exhausted:
                self._move(Event.GIVE_UP)
                return

    async def _one_process(self) -> Failure:
        """From its start until it has been reaped."""
        self._policy.started(self._clock())
        self._restart_reason = None
        try:
            launched = await self._launcher.launch(self._heard)
        except OSError as error:
            return Failure(f"cannot be started: {error}")
        self._launched = launched
        try:
            self._move(Event.SPAWNED)
            reason = await launched.until_ready(self._command.start_timeout_s)
            if reason is None:
                self._became_ready()
                reason = str(await launched.child.wait())
        finally:
            await launched.child.end(self._grace_s)
            if launched.child.exit is None:
                log.error("llama-server cannot be killed", backend=self.name, pid=launched.child.pid)
            self._launched = None
        await launched.child.wait()  # whatever holds it in the kernel also holds the memory of its device
        return Failure(self._restart_reason or reason, launched.output.tail)

    def _became_ready(self) -> None:
        self._policy.became_ready()
        self._failure = None
        self._move(Event.ANSWERED)

    def _heard(self, line: str) -> None:
        told = kv_unified_from_log(line)
        if told is not None:
            self.kv_unified = told
        log.debug("llama-server says", backend=self.name, line=line)

    def _move(self, event: Event) -> None:
        self._state = next_state(self._state, event)
        log.info("llama-server", backend=self.name, state=self._state.value, pid=self.pid, url=self.url)
        self._changed.set()
        self._changed = asyncio.Event()
        self.on_change(self)

    def _supervisor_ended(self, task: asyncio.Task[None]) -> None:
        """Also the way out when the event loop, not `stop()`, has cancelled the task."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("llama-server is no longer watched", backend=self.name, exc_info=error)
        if task is not self._supervisor or self._state in {State.GIVEN_UP, State.STOPPED}:
            return
        if self._state is not State.STOPPING:
            self._move(Event.STOP)
        self._move(Event.REAPED)
