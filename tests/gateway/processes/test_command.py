"""The command line and the environment of a llama-server of ours."""

from __future__ import annotations

from slotgate.gateway.processes.command import LlamaCommand, child_environment


def arguments(*command: str, shared: bool = False, knows_cache_ram: bool = True) -> tuple[str, ...]:
    llama = LlamaCommand("local", command, alias="tiny", shared=shared)
    return llama.arguments(4711, knows_cache_ram)


def test_port_and_alias_come_last_and_so_overrule() -> None:
    expected = ("llama-server", "--port", "1", "--host", "127.0.0.1", "--port", "4711", "--alias", "tiny")

    assert arguments("llama-server", "--port", "1") == expected


def test_scenario_116_the_prompt_cache_is_off_where_tenants_share_it_and_the_build_can() -> None:
    assert arguments("llama-server", shared=True)[-2:] == ("--cache-ram", "0")
    assert "--cache-ram" not in arguments("llama-server", shared=True, knows_cache_ram=False)
    assert "--cache-ram" not in arguments("llama-server", shared=False)
    assert arguments("llama-server", "-cram", "64", shared=True).count("--cache-ram") == 0


def test_the_prompt_cache_keeps_nothing_of_erased_slots() -> None:
    """Also for the only tenant: others may be added while the process runs."""
    llama = LlamaCommand("local", ("llama-server",), erasable=True)
    assert llama.arguments(4711, llama.limits_cache)[5:8] == ("--cache-ram", "0", "--slot-save-path")


def test_scenario_125_variables_that_contradict_the_command_or_leak_secrets_do_not_pass() -> None:
    passes = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "1", "GGML_VK_VISIBLE_DEVICES": "0", "LC_ALL": "C"}
    stays = {
        "LLAMA_API_KEY": "parent",
        "LLAMA_ARG_PORT": "1",
        "HF_TOKEN": "t",
        "HUGGING_FACE_HUB_TOKEN": "t",
        "SLOTGATE_TENANT__A__KEY": "k",
        "HTTPS_PROXY": "http://user:password@proxy",
        "LD_PRELOAD": "x.so",
    }

    environment = child_environment(passes | stays, {"LD_LIBRARY_PATH": "/wheel"}, "ours")

    assert environment == passes | {"LD_LIBRARY_PATH": "/wheel", "LLAMA_API_KEY": "ours"}
