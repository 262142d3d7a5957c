"""Signs by which the slots of a llama-server are known to share one context."""

from __future__ import annotations

import pytest

from slotgate.gateway.backends.kv_sharing import (
    kv_unified_from_command,
    kv_unified_from_log,
    kv_unified_from_sizes,
)

SERVER = ["llama-server", "-m", "a.gguf"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("0.00.38 I srv load_model: initializing, n_slots = 4, n_ctx_slot = 8192, kv_unified = 'true'", True),
        ("srv load_model: initializing, n_slots = 4, n_ctx_slot = 2048, kv_unified = 'false'", False),
        ("llama_context: kv_unified    = true", True),
        ("llama_context: kv_unified    = 0", False),
        ("srv load_model: loading model 'kv_unified.gguf'", None),
    ],
)
def test_the_log_states_if_the_cache_is_unified(line: str, told: bool | None) -> None:
    assert kv_unified_from_log(line) is told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], True),
        (["-np", "4"], False),
        (["--parallel=2"], False),
        (["-np", "-1"], True),
        (["--parallel=-1"], True),
        (["-np", "4", "--kv-unified"], True),
        (["-np", "4", "-kvu"], True),
        (["--no-kv-unified"], False),
    ],
)
def test_the_command_implies_if_the_cache_is_unified(words: list[str], told: bool) -> None:
    assert kv_unified_from_command([*SERVER, *words]) is told


@pytest.mark.parametrize(
    ("words", "environ", "told"),
    [
        ([], {"LLAMA_ARG_N_PARALLEL": "4"}, False),
        ([], {"LLAMA_ARG_N_PARALLEL": "-1"}, True),
        ([], {"LLAMA_ARG_N_PARALLEL": "4", "LLAMA_ARG_KV_UNIFIED": "1"}, True),
        ([], {"LLAMA_ARG_KV_UNIFIED": "false"}, False),
        ([], {"LLAMA_ARG_NO_KV_UNIFIED": "1"}, False),
        (["-np", "4"], {"LLAMA_ARG_KV_UNIFIED": "0"}, False),
        (["--kv-unified"], {"LLAMA_ARG_N_PARALLEL": "4"}, True),
        ([], {"LLAMA_ARG_CTX_SIZE": "8192"}, True),
    ],
)
def test_variables_count_where_the_command_has_no_option(
    words: list[str], environ: dict[str, str], told: bool
) -> None:
    assert kv_unified_from_command([*SERVER, *words], environ) is told


def test_the_options_of_a_script_stay_unknown() -> None:
    assert kv_unified_from_command(["./start.sh"]) is None


@pytest.mark.parametrize(
    ("n_ctx", "slots", "trained", "told"),
    [
        (8192, 4, 8192, True),
        (8192, 2, 8192, False),
        (8192, 8, 8192, False),
        (16384, 4, 8192, False),
        (4096, 4, 8192, False),
        (8192, 1, 8192, False),
        (None, 4, 8192, False),
        (8192, 4, None, False),
    ],
)
def test_four_slots_that_each_have_the_trained_context_share_it(
    n_ctx: int | None, slots: int, trained: int | None, told: bool
) -> None:
    assert kv_unified_from_sizes(n_ctx, slots, trained) is told
