"""The plan of `slotgate run`, made from options, environment and folder. Nothing is started here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slotgate.gateway.auth.keys import hash_key
from slotgate.gateway.processes.command import LlamaCommand
from slotgate.gateway.settings import Settings, UsageSettings, parse
from slotgate.gateway.tools.run.find import FoundModel, FoundServer, Packages, find_model, find_server
from slotgate.gateway.tools.run.kept_keys import RunKeys

__all__ = ["LOAD_TIMEOUT_S", "RunOptions", "RunPlan", "alias_of", "prepare", "usage_settings"]

BACKEND: Final = "local"
TENANT: Final = "local"

LOAD_TIMEOUT_S: Final = 3600.0
"""Long, because a large model on a slow disk takes long, and the user can press Ctrl-C."""

_PART: Final = re.compile(r"-\d+-of-\d+$")
_QUANTIZATION: Final = re.compile(r"[.-](ud-)?(i?q\d\w*|tq\d\w*|b?f16|fp16|f32|mxfp4\w*)$")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of the command line. None means that slotgate or llama-server chooses."""

    model: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    parallel: int | None = None
    ctx: int | None = None
    llama_server: Path | None = None


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The plan: a llama-server with one model behind one gateway. `alias` is the public name of the model."""

    server: FoundServer
    model: FoundModel
    alias: str
    options: RunOptions

    @property
    def command(self) -> LlamaCommand:
        sizes = {"--parallel": self.options.parallel, "--ctx-size": self.options.ctx}
        given = (word for option, size in sizes.items() if size for word in (option, str(size)))
        return LlamaCommand(
            name=BACKEND,
            command=(str(self.server.path), "--model", str(self.model.path), *given),
            alias=self.alias,
            environment=self.server.environment,
            start_timeout_s=LOAD_TIMEOUT_S,
        )

    def settings(self, keys: RunKeys, state: Path) -> Settings:
        """Return the configuration of the gateway, with usage records in the folder `state`.

        Raises `SettingsError`.
        """
        server = {
            "host": self.options.host,
            "port": self.options.port,
            "operator_key_hashes": [hash_key(keys.operator)],
        }
        tenant = {"name": TENANT, "key_hashes": [hash_key(keys.client)]}
        backend = {"name": BACKEND, "command": list(self.command.command), "models": [self.alias]}
        usage = {"store": usage_settings(state).store}
        return parse({"server": server, "tenant": [tenant], "backend": [backend], "usage": usage}, {})


def usage_settings(state: Path) -> UsageSettings:
    """Return the settings that keep usage records beside the keys, where `slotgate usage` finds them."""
    return UsageSettings(store=f"sqlite:///{state / 'usage.db'}")


def prepare(options: RunOptions, environ: Mapping[str, str], cwd: Path, packages: Packages) -> RunPlan:
    """Find the parts and make the plan. Raises `NotFoundError`."""
    server = find_server(options.llama_server, environ, packages)
    model = find_model(options.model, environ, cwd, packages)
    return RunPlan(server, model, alias_of(model.path), options)


def alias_of(model: Path) -> str:
    """Return a short name: `smollm2-135m-instruct` for `SmolLM2-135M-Instruct.Q4_1.gguf`."""
    stem = _PART.sub("", model.stem.lower())
    name = re.sub(r"[^a-z0-9._-]+", "-", _QUANTIZATION.sub("", stem))
    return name.strip("-._")[:128] or "model"
