"""Supervises one llama-server: starts it, starts it again when it dies, stops it, and never leaves it behind.

One task walks through `state.TRANSITIONS`. Each round of its loop is one process, from its start until it has
been reaped, so that the next process finds the memory of the last one free. `restart_policy` says when the
next process may start, `launcher` starts it, and `readiness_probe` finds out if it is ready and if it is
ours.

A restart keeps the port if it is still free. Read `url` again when the process is READY.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, Self

import structlog

from slotgate.gateway.backends.kv_sharing import kv_unified_from_command, kv_unified_from_log
from slotgate.gateway.processes.command import LlamaCommand
from slotgate.gateway.processes.failure import ProcessFailure, failure_before_ready
from slotgate.gateway.processes.launcher import LaunchedProcess, Launcher
from slotgate.gateway.processes.ports import free_port
from slotgate.gateway.processes.restart_policy import RestartLimits, RestartPolicy
from slotgate.gateway.processes.state import (
    LlamaStartError,
    ProcessEvent,
    ProcessState,
    next_state,
)

log = structlog.stdlib.get_logger(__name__)

__all__ = ["DEFAULT_LIMITS", "STOP_GRACE_S", "LlamaProcess"]

STOP_GRACE_S: Final = 5.0
DEFAULT_LIMITS: Final = RestartLimits()
_LASTING: Final = (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR)


class LlamaProcess:
    """Runs `command` again and again until it is stopped or has failed too often.

    The observers in `on_change` are called after every change of state, synchronously and in order; they must
    not raise. `async with` starts the process and stops it, and does not wait until it is ready.
    """

    def __init__(
        self,
        command: LlamaCommand,
        environ: Mapping[str, str],
        *,
        limits: RestartLimits = DEFAULT_LIMITS,
        waits_for_requests: bool = False,
        on_change: Iterable[Callable[[LlamaProcess], None]] = (),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        pick_port: Callable[[], int] = free_port,
    ) -> None:
        """`waits_for_requests`: requests load it, so there is no second attempt after a lasting failure."""
        self.command = command
        """The command of the process that runs, or of the next one if none runs."""
        self.next_command = command
        """The command of the next process."""
        self._launcher = Launcher(command, environ, pick_port)
        self._policy = RestartPolicy(limits)
        self._waits_for_requests = waits_for_requests
        self.on_change: Final[list[Callable[[LlamaProcess], None]]] = list(on_change)
        self._clock = clock
        self._sleep = sleep
        self._state = ProcessState.STOPPED
        self._changed = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self._launched: LaunchedProcess | None = None
        self._failure: ProcessFailure | None = None
        self._restart_reason: str | None = None
        self._grace_s = STOP_GRACE_S
        self.kv_unified = kv_unified_from_command(command.command)
        """True if its slots share one context; None while that is unknown."""

    def __repr__(self) -> str:
        return f"<LlamaProcess {self.name} {self._state.value} pid={self.pid} {self._policy!r}>"

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    @property
    def name(self) -> str:
        return self.command.name

    @property
    def state(self) -> ProcessState:
        return self._state

    @property
    def url(self) -> str:
        """`http://127.0.0.1:PORT`, also before the first start. It changes if another program took it."""
        return self._launcher.url

    @property
    def api_key(self) -> str:
        """The bearer token that the process asks for; the same through all restarts."""
        return self._launcher.api_key

    @property
    def pid(self) -> int | None:
        return None if self._launched is None else self._launched.child.pid

    @property
    def failure(self) -> ProcessFailure | None:
        """The last end that was not asked for; kept until the next process is ready."""
        return self._failure

    @property
    def rest_s(self) -> float:
        """Seconds for which requests do not load it after it was given up."""
        return self._policy.rest_s

    @property
    def has_failed(self) -> bool:
        """True if it was given up and has not been ready since."""
        return self._policy.has_failed

    @property
    def takes_next_command(self) -> bool:
        """True while no process runs, or is about to."""
        return self._state in {ProcessState.STOPPED, ProcessState.GIVEN_UP, ProcessState.BACKOFF}

    def change_command(self, command: LlamaCommand, *, waits_for_requests: bool) -> None:
        """Use this command for the next process."""
        self.next_command = command
        self._waits_for_requests = waits_for_requests
        if self.takes_next_command:
            self._take_next_command()

    def start(self) -> None:
        """Start it, from STOPPED or GIVEN_UP, and restart it when it dies. Needs a running loop."""
        self._move(ProcessEvent.START)
        self._policy.forgive()
        self._supervisor = asyncio.ensure_future(self._supervise())
        self._supervisor.add_done_callback(self._supervisor_ended)

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Send SIGTERM, after `grace_s` SIGKILL, and return when the process is STOPPED. Idempotent."""
        self.begin_stop(grace_s)
        while self._state is ProcessState.STOPPING:
            await self._changed.wait()

    def begin_stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Begin to stop without waiting: the process is STOPPING or STOPPED when this returns."""
        if self._supervisor is not None and self._state not in {ProcessState.STOPPED, ProcessState.STOPPING}:
            self._grace_s = grace_s
            self._move(ProcessEvent.STOP)
            self._supervisor.cancel()

    def kill(self) -> None:
        """Send SIGKILL to the process, if one runs, without waiting."""
        if self._launched is not None:
            self._launched.child.kill()

    def restart(self, reason: str) -> None:
        """Kill a process that lives but no longer works. The next one starts after the usual pause."""
        if self._launched is not None and self._state in {ProcessState.LOADING, ProcessState.READY}:
            self._restart_reason = reason
            self.kill()

    async def wait_ready(self, timeout_s: float, attempts: int | None = None) -> None:
        """Return when READY. Raises LlamaStartError if it gave up, is stopped, or after `timeout_s`.

        With `attempts`, that many failed starts in a row also end the waiting. The restarts go on.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while self._state is not ProcessState.READY:
                    self._check_may_become_ready(attempts)
                    await self._changed.wait()
        except TimeoutError as error:
            message = f"{self.name} is not ready after {timeout_s:g} s ({self._state.value})"
            raise LlamaStartError(message, self._failure) from error

    def _check_may_become_ready(self, attempts: int | None) -> None:
        enough = attempts is not None and self._policy.failures >= attempts
        if not self._state.may_become_ready or (enough and self._state is ProcessState.BACKOFF):
            raise LlamaStartError(f"{self.name} does not start ({self._state.value})", self._failure)

    async def _supervise(self) -> None:
        """Run one process after another until cancelled or given up. No process is left either way."""
        while True:
            if self._state is ProcessState.BACKOFF:
                await self._sleep(self._policy.delay_s(self._clock()))
                self._move(ProcessEvent.RETRY)
            self._failure = await self._one_process()
            log.warning(
                "llama-server ended",
                backend=self.name,
                reason=self._failure.reason,
                last_line=self._failure.last_line,
            )
            self._move(ProcessEvent.ENDED)
            if self._policy.is_exhausted or (self._waits_for_requests and self._failure.lasting):
                self._policy.given_up()
                self._move(ProcessEvent.GIVE_UP)
                return

    async def _one_process(self) -> ProcessFailure:
        """Run one process from its start until it has been reaped."""
        self._take_next_command()
        self._policy.started(self._clock())
        self._restart_reason = None
        try:
            launched = await self._launcher.launch(self._line_written)
        except OSError as error:
            return ProcessFailure(f"cannot be started: {error.strerror}", lasting=error.errno in _LASTING)
        self._launched = launched
        try:
            self._move(ProcessEvent.SPAWNED)
            reason = await launched.until_ready(self.command.start_timeout_s)
            ready, end = reason is None, launched.child.exit
            if reason is None:
                self._became_ready()
                reason = str(await launched.child.wait())
        finally:
            await launched.child.end(self._grace_s)
            if launched.child.exit is None:
                log.error("llama-server cannot be killed", backend=self.name, pid=launched.child.pid)
            self._launched = None
        await (
            launched.child.wait()
        )  # a process that the kernel still holds also holds the memory of its device
        if not ready:
            return failure_before_ready(self._restart_reason or reason, end, launched.output.tail)
        return ProcessFailure(self._restart_reason or reason, launched.output.tail)

    def _take_next_command(self) -> None:
        if self.next_command.command != self.command.command:
            self.kv_unified = kv_unified_from_command(self.next_command.command)
        self.command = self.next_command
        self._launcher.change_command(self.command)

    def _became_ready(self) -> None:
        self._policy.became_ready()
        self._failure = None
        self._move(ProcessEvent.ANSWERED)

    def _line_written(self, line: str) -> None:
        unified = kv_unified_from_log(line)
        if unified is not None:
            self.kv_unified = unified
        log.debug("llama-server says", backend=self.name, line=line)

    def _move(self, event: ProcessEvent) -> None:
        self._state = next_state(self._state, event)
        if self.takes_next_command:
            self._take_next_command()
        log.info("llama-server", backend=self.name, state=self._state.value, pid=self.pid, url=self.url)
        self._changed.set()
        self._changed = asyncio.Event()
        for observer in tuple(self.on_change):
            observer(self)

    def _supervisor_ended(self, task: asyncio.Task[None]) -> None:
        """Reach an end state also if the event loop, and not `stop()`, has cancelled the task."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("llama-server is no longer watched", backend=self.name, exc_info=error)
        if task is not self._supervisor or self._state in {ProcessState.GIVEN_UP, ProcessState.STOPPED}:
            return
        if self._state is not ProcessState.STOPPING:
            self._move(ProcessEvent.STOP)
        self._move(ProcessEvent.REAPED)
