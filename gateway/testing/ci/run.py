"""`slotgate ci`: runs a stand-in, a gateway and a command together, and ends with one exit code.

    stand-in -> gateway -> ready file -> command, or wait for a signal -> drain -> verdict, JUnit

Exit codes: the command's own if it is not 0; 1 if requests failed unexpectedly; 2 for mistakes of the user;
124 when `--max-s` is over, as `timeout` has it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import uvloop

from slotgate.gateway.app.reload import LiveGateway
from slotgate.gateway.app.serve import assemble
from slotgate.gateway.auth.keys import hash_key, new_key
from slotgate.gateway.backends.backend import Backend, BackendState
from slotgate.gateway.backends.fleet import Fleet
from slotgate.gateway.processes.exec_wrapper import die_with_parent
from slotgate.gateway.processes.managed_processes import ManagedProcesses
from slotgate.gateway.processes.ports import LOOPBACK
from slotgate.gateway.server.listener import Listener, ListenError
from slotgate.gateway.server.signals import stop_signals
from slotgate.gateway.settings import Settings, SettingsError, parse
from slotgate.gateway.telemetry.logs import configure_logging
from slotgate.gateway.testing.ci.command import environment_for, run_command
from slotgate.gateway.testing.ci.control import ControlServer
from slotgate.gateway.testing.ci.junit import junit_xml, write_junit
from slotgate.gateway.testing.ci.options import CiOptions
from slotgate.gateway.testing.ci.recording import RecordedServer
from slotgate.gateway.testing.ci.scripted_control import Changed
from slotgate.gateway.testing.ci.stand_in import RealModel, RunningServer, ScriptedServer, StandIn, Table
from slotgate.gateway.testing.ci.verdict import Verdict, in_words
from slotgate.gateway.testing.fake.net.connection import LlamaConnection
from slotgate.gateway.testing.fake_program import FakeOptions, scene_for
from slotgate.gateway.testing.ready_file import ReadyFile

__all__ = ["run_ci"]

FAILED: Final = 1
USAGE_ERROR: Final = 2
TIMED_OUT: Final = 124


@dataclass(frozen=True, slots=True)
class _Keys:
    client: str = field(repr=False)
    operator: str = field(default_factory=new_key, repr=False)


def run_ci(options: CiOptions, environ: Mapping[str, str] = os.environ) -> int:
    """Return the exit code. Raises `ScriptError`, `SettingsError`, `CassetteError`, `NotFoundError`."""
    if options.with_parent:
        die_with_parent(signal.SIGTERM)
    configure_logging(logging.INFO if options.verbose else logging.WARNING)
    try:
        return uvloop.run(_Run(options, environ).main())
    except (ListenError, OSError) as error:
        print(f"slotgate ci: {error}", file=sys.stderr)
        return USAGE_ERROR


class _Run:
    def __init__(self, options: CiOptions, environ: Mapping[str, str]) -> None:
        self._options = options
        self._environ = environ
        self._stand_in = _stand_in(options, environ, self._begin_anew)
        self._app: LiveGateway | None = None
        self._fleet: Fleet | None = None
        self._sections: Table = {}
        """Sections of the configuration that the test has set."""
        self._keys = _Keys(options.key or new_key())
        self._verdict = Verdict(options.expected)
        self._stop = asyncio.Event()
        self._timed_out = False

    async def main(self) -> int:
        with ReadyFile(self._options.ready) as ready, stop_signals() as stop:
            self._stop = stop
            alarm = asyncio.get_running_loop().call_later(self._options.max_s, self._time_is_over)
            try:
                async with self._stand_in:
                    async with self._gateway() as server, self._controlled() as control:
                        facts = self._facts(server.url) | control
                        ready.write(facts)
                        code = await self._use(facts)
                    return self._judged(code)  # the gateway has reported every request by now
            finally:
                alarm.cancel()

    # -- the gateway

    def _settings(self) -> Settings:
        options = self._options
        document: Table = {
            "server": {
                "host": options.host,
                "port": options.port,
                "cors_origins": list(options.origins),
                "operator_key_hashes": [hash_key(self._keys.operator)],
                "shutdown_grace_s": 2,
            },
            "tenant": [{"name": "ci", "key_hashes": [hash_key(self._keys.client)]}],
            "backend": [{"health_interval_s": 0.5, **self._stand_in.backend}],
            "usage": {"store": "none"},
        }
        for name, section in self._sections.items():
            both = isinstance(section, dict) and isinstance(document.get(name), dict)
            document[name] = {**document[name], **section} if both else section
        return parse(document, self._environ)

    @asynccontextmanager
    async def _gateway(self) -> AsyncIterator[Listener]:
        """Run the gateway. It is ready inside the block."""
        settings = self._settings()
        async with AsyncExitStack() as stack:
            children = await stack.enter_async_context(ManagedProcesses.of(settings, self._environ))
            located, environ = children.located(settings), children.environ(self._environ)
            assembled = assemble(
                located,
                environ,
                written=settings,
                load=self._settings,
                processes=children,
                observers=[self._verdict.note_request],
            )
            app, parts = await stack.enter_async_context(assembled)
            fleet = parts.runtime.fleet
            self._app, self._fleet = app, fleet
            server = Listener(app, settings.server)
            await server.listen()
            try:
                await self._ready(fleet)
                yield server
            finally:
                await server.drain(refuse=parts.drain, cancel=parts.runtime.cancel_running)

    async def _ready(self, fleet: Fleet) -> None:
        """Return when every backend is ready, or it is time to stop. Raises TimeoutError."""
        came = asyncio.Event()

        def look(backend: Backend) -> None:
            if all(one.state is BackendState.READY for one in fleet.backends.values()):
                came.set()

        watched = list(fleet.backends.values())
        for backend in watched:
            backend.on_change.append(look)
            look(backend)
        waits = [asyncio.ensure_future(event.wait()) for event in (came, self._stop)]
        try:
            within = self._options.start_s
            done, _ = await asyncio.wait(waits, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            for backend in watched:
                backend.on_change.remove(look)
        if not done:
            late = [one for one in fleet.backends.values() if one.state is not BackendState.READY]
            unready = "; ".join(f"{one.name} at {one.base_url}: {one.explanation}" for one in late)
            raise TimeoutError(f"not ready after {within:g} s (--start-s): {unready}")

    # -- controlled by a test

    @asynccontextmanager
    async def _controlled(self) -> AsyncIterator[Table]:
        """Serve the control interface. Yields its members of the ready file."""
        actions = self._stand_in.actions if isinstance(self._stand_in, ScriptedServer) else None
        if actions is None or not self._options.control:
            yield {}
            return
        token = new_key()
        control = ControlServer(actions, token)
        listener = await asyncio.get_running_loop().create_server(
            lambda: LlamaConnection(control), LOOPBACK, 0
        )
        port: int = listener.sockets[0].getsockname()[1]
        try:
            yield {"control": {"port": port, "token": token}}
        finally:
            listener.close()
            control.abort()

    async def _begin_anew(self, sections: Table) -> None:
        """Reload after the stand-in was replaced. Raises `SettingsError`; then the old settings stay."""
        assert self._app is not None
        assert self._fleet is not None
        before, self._sections = self._sections, sections
        try:
            await self._app.reload()
        except SettingsError:
            self._sections = before
            raise
        await self._ready(self._fleet)

    def _facts(self, url: str) -> dict[str, object]:
        return {
            "url": url,
            "key": self._keys.client,
            "operator_key": self._keys.operator,
            "openai_base_url": f"{url}/v1",
            "models": self._stand_in.backend.get("models", []),
            "pid": os.getpid(),
        }

    # -- the command and the verdict

    async def _use(self, facts: Table) -> int:
        if self._stop.is_set():
            return 0
        if self._options.command:
            environ = environment_for(self._environ, facts["url"], facts["key"])
            return await run_command(self._options.command, environ, self._stop)
        in_words = f"slotgate ci: {facts['url']}, key {facts['key']}"
        print(json.dumps(facts) if self._options.control else in_words, flush=True)
        await self._stop.wait()
        return 0

    def _time_is_over(self) -> None:
        self._timed_out = True
        self._stop.set()

    def _judged(self, code: int) -> int:
        failures = self._verdict.unexpected(self._stand_in.meant_to_fail)
        unmatched = self._stand_in.unmatched()
        print(in_words(self._verdict, failures, unmatched), file=sys.stderr, flush=True)
        if self._options.junit is not None:
            write_junit(self._options.junit, junit_xml(self._verdict, failures, unmatched))
        if self._timed_out:
            print(f"slotgate ci: ended after {self._options.max_s:g} s (--max-s)", file=sys.stderr)
            return TIMED_OUT
        return code or (FAILED if failures or unmatched else 0)


def _stand_in(options: CiOptions, environ: Mapping[str, str], on_reset: Changed) -> StandIn:
    if options.upstream is not None:
        return RunningServer(options.upstream)
    if options.replay is not None:
        return RecordedServer(options.replay, options.speed)
    if options.model is not None:
        return RealModel(options.model, environ)
    return ScriptedServer(scene_for(FakeOptions(script=options.script), {}), on_reset)
