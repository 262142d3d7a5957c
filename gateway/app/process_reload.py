"""Takes new and changed commands of backends from a configuration that is read again.

A process cannot change its command while it runs, and no running request is ended for a reload. So a backend
with a changed command stays as it is until its process has ended: because it was unloaded, restarted by an
operator, or has died. Its next process then has the new command, and all settings of the backend change with
it. New backends get a process at once.

    file's entry --same command, or no process runs--> in force
                 \\--another command runs------------> waits for the next load --process ended--> in force

Backends that were removed from the file keep serving until the gateway is restarted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slotgate.gateway.processes.llama_process import LlamaProcess
from slotgate.gateway.processes.managed_processes import ManagedProcesses
from slotgate.gateway.settings import (
    BackendSettings,
    GroupSettings,
    Settings,
    check_isolation_goes_on,
    isolating,
)

__all__ = ["ProcessChanges", "ProcessReload"]


@dataclass(frozen=True, slots=True)
class ProcessChanges:
    settings: Settings
    """The settings to use now. Each backend with a process has its URL in place of the command."""
    needs_restart: tuple[str, ...]
    """The backends that were removed, as keys of the configuration."""
    next_load: tuple[str, ...]
    """The backends whose process gets another command line at its next load. If the `command` itself has
    changed, all settings of the backend wait for that."""
    started: tuple[str, ...]
    """Names of new backends."""


class ProcessReload:
    def __init__(
        self, processes: ManagedProcesses, written: Settings, located: Settings, on_due: Callable[[], None]
    ) -> None:
        """`written` has commands where `located` has the URLs of their processes.

        `on_due` is called when a process has ended whose backend waits for that.
        """
        self._processes = processes
        self._in_force = {entry.name: entry for entry in written.backends if entry.command}
        self._located = {entry.name: entry for entry in located.backends if entry.name in self._in_force}
        self._groups = {group.name: group for group in written.groups}
        self._waiting: set[str] = set()
        self._unable: set[str] = set(self._in_force) - isolating(written)
        """Backends whose slots are not numbered, so that they cannot isolate requests."""
        self._on_due = on_due
        for process in processes:
            process.on_change.append(self._process_changed)

    def __repr__(self) -> str:
        return f"<ProcessReload {len(self._waiting)} waiting>"

    def merge(self, written: Settings) -> ProcessChanges:
        """Return what changes with these settings. Processes get their new commands for their next load.

        Raises `SettingsError` if a backend has to isolate requests and was made without that, be it with the
        entry that is in force or with the one that waits.
        """
        backends = (*written.backends, *self._in_force.values())
        check_isolation_goes_on(self._unable, written.model_copy(update={"backends": backends}))
        wanted = {entry.name: entry for entry in written.backends if entry.command}
        new = [name for name in wanted if name not in self._in_force]
        taken = {entry.name for entry in written.backends if not entry.command} & self._in_force.keys()
        for process in self._processes.adjust(written):
            process.on_change.append(self._process_changed)
        self._unable |= set(new) - isolating(written)
        self._waiting.clear()
        for name, entry in wanted.items():
            if entry.command == self._processes[name].command.command:
                self._put_in_force(entry)
            else:
                self._waiting.add(name)
        next_load = self._waiting | {
            name for name in wanted if self._processes[name].command != self._processes[name].next_command
        }
        self._groups |= {group.name: group for group in written.groups}
        others = [entry for entry in written.backends if not entry.command and entry.name not in taken]
        removed = sorted(self._in_force.keys() - wanted.keys())
        return ProcessChanges(
            settings=written.model_copy(
                update={
                    "backends": (*self._located.values(), *others),
                    "groups": self._groups_in_use(written),
                }
            ),
            needs_restart=tuple(f"backend.{name}" for name in removed),
            next_load=tuple(f"backend.{name}" for name in sorted(next_load)),
            started=tuple(new),
        )

    def _groups_in_use(self, written: Settings) -> tuple[GroupSettings, ...]:
        """Return the groups of the file, and older ones to which backends still belong."""
        names = {group.name for group in written.groups}
        older = {entry.group for entry in self._located.values() if entry.group} - names
        return (*written.groups, *(self._groups[name] for name in sorted(older)))

    def _put_in_force(self, entry: BackendSettings) -> None:
        """Use this entry. The backend keeps the address that it was made with, and follows its process."""
        located, before = self._processes.locate(entry), self._located.get(entry.name)
        if before is not None:
            located = located.model_copy(update={"url": before.url})
        self._in_force[entry.name], self._located[entry.name] = entry, located

    def _process_changed(self, process: LlamaProcess) -> None:
        if process.name in self._waiting and process.takes_next_command:
            self._on_due()
