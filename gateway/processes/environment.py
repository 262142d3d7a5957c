"""The environment a llama-server of ours gets: an allow-list, never a copy.

llama-server takes any option from `LLAMA_ARG_*` and its key from `LLAMA_API_KEY`; inherited, they would
contradict the command that was asked for and lock us out of our own child. Our own secrets (`SLOTGATE_*`,
tokens of model hubs, proxies with passwords) are none of its business. What passes is what finds
libraries, devices, caches and the user's locale.
"""

from collections.abc import Mapping
from typing import Final

API_KEY: Final = "LLAMA_API_KEY"

_NAMES: Final = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH"}
    | {"DYLD_LIBRARY_PATH", "LLAMA_CACHE", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"}
)

_NVIDIA: Final = ("CUDA_", "NVIDIA_", "NCCL_")
_AMD: Final = ("HIP_", "HSA_", "ROCR_", "ROCM_", "AMD_", "GPU_")
_OTHER_DEVICES: Final = ("GGML_", "VK_", "MESA_", "SYCL_", "ONEAPI_", "ZE_", "MUSA_", "ASCEND_")
_THREAD_POOLS: Final = ("OMP_", "GOMP_", "KMP_", "OPENBLAS_")
_PREFIXES: Final = ("LC_", *_NVIDIA, *_AMD, *_OTHER_DEVICES, *_THREAD_POOLS)


def child_environment(
    environ: Mapping[str, str], additions: Mapping[str, str], api_key: str
) -> dict[str, str]:
    """What of `environ` may pass, then `additions`, then the key that we require of every answer."""
    passed = {name: value for name, value in environ.items() if _passes(name)}
    return passed | dict(additions) | {API_KEY: api_key}


def _passes(name: str) -> bool:
    return name in _NAMES or name.startswith(_PREFIXES)
