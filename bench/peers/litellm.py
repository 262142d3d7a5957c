"""The LiteLLM proxy, one worker: a master key, no database, no logging."""

from __future__ import annotations

from bench.install import wheel
from bench.peers.peer import Launch, Peer, Site

__all__ = ["PEER"]

_KEY = "sk-bench-0123456789abcdef0123456789abcdef"
_CONFIGURATION = """\
model_list:
  - model_name: bench
    litellm_params:
      model: openai/upstream
      api_base: {upstream}/v1
      api_key: none
litellm_settings:
  telemetry: false
  num_retries: 0
  request_timeout: 3600
general_settings:
  master_key: {key}
  disable_spend_logs: true
"""


def _launch(site: Site) -> Launch:
    text = _CONFIGURATION.format(upstream=site.upstream, key=_KEY)
    argv = [site.program, "--config", site.write("litellm.yaml", text), "--host", "127.0.0.1"]
    env = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_TELEMETRY": "False",
        "LITELLM_LOG": "ERROR",
        "LITELLM_MODE": "PRODUCTION",
        "NO_PROXY": "127.0.0.1",
    }
    options = ["--port", str(site.port), "--num_workers", "1", "--telemetry", "False"]
    return Launch([*argv, *options], env, headers=(("Authorization", f"Bearer {_KEY}"),))


PEER = Peer(
    name="litellm",
    about="LiteLLM proxy in Python, a master key, one worker; with an eighth of the streams",
    install=wheel("bin/litellm", "litellm[proxy]==1.108.7"),
    launch=_launch,
    fraction=8,
)
