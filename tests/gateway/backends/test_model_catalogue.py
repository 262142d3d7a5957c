"""The names of models, the backends that serve them, the tenants that may use them.

No path of a machine is shown.
"""

from __future__ import annotations

import pytest

from slotgate.gateway.backends.backend import Backend
from slotgate.gateway.backends.model_catalogue import ModelCatalogue, public_name
from slotgate.gateway.http.context import TenantIdentity
from slotgate.gateway.http.errors import CapacityError, ClientError
from slotgate.gateway.settings import ModelSettings

ANYONE = TenantIdentity("anyone")
QWEN = ModelSettings(name="qwen3", aliases=("gpt-4o", "gpt-4"), upstream_name="qwen3-30b-a3b")


def backend(name: str, *models: str, n_ctx: int | None = None) -> Backend:
    made = Backend(name, "http://127.0.0.1:9", api_key=None)
    made.models = models
    made.n_ctx = n_ctx
    return made


def catalogue(
    *backends: Backend, models: tuple[ModelSettings, ...] = (), **fixed: tuple[str, ...]
) -> ModelCatalogue:
    """Return the catalogue of these backends.

    `fixed` has the names that some of them are configured to serve.
    """
    made = ModelCatalogue(models)
    for each in backends:
        made.add(each, fixed.get(each.name, ()))
    made.rebuild()
    return made


def served(of: ModelCatalogue) -> dict[str, list[str]]:
    return {name: [each.name for each in model.backends] for name, model in of.models.items()}


def refused(of: ModelCatalogue, name: str | None, tenant: TenantIdentity = ANYONE) -> ClientError:
    with pytest.raises(ClientError) as error:
        of.resolve(name, tenant)
    return error.value


# Names


@pytest.mark.parametrize(
    ("said", "public"),
    [
        ("qwen3", "qwen3"),
        ("qwen2.5-7b", "qwen2.5-7b"),
        ("org/model", "org/model"),
        ("m.gguf", "m"),
        ("models/m.Q4_1.gguf", "m.Q4_1"),
        ("/home/bob/models/m.gguf", "m"),
        ("/home/bob/models/qwen2.5-7b", "qwen2.5-7b"),
        ("/home/bob/models/", "models"),
        ("C:\\Users\\bob\\m.gguf", "m"),
        ("models\\m.gguf", "m"),
        ("D:/models/qwen2.5", "qwen2.5"),
    ],
)
def test_scenario_088_no_path_of_a_machine_becomes_a_name(said: str, public: str) -> None:
    assert public_name(said) == public


def test_a_backend_serves_the_models_that_it_states_under_public_names() -> None:
    of = catalogue(backend("a", "/srv/m.gguf"), backend("b", "m", "org/other"))
    assert served(of) == {"m": ["a", "b"], "org/other": ["b"]}
    assert of.models["m"].upstream_name == "/srv/m.gguf"


def test_a_configured_model_stands_for_the_backends_own_name() -> None:
    of = catalogue(backend("a", "qwen3-30b-a3b"), models=(QWEN,))
    assert served(of) == {"qwen3": ["a"]}
    assert of.resolve("gpt-4", ANYONE).upstream_name == "qwen3-30b-a3b"


def test_a_backend_with_configured_models_serves_these_whatever_it_states() -> None:
    of = catalogue(backend("a", "something else"), backend("b", "m"), a=("m", "n"))
    assert served(of) == {"m": ["a", "b"], "n": ["a"]}
    assert of.resolve("n", ANYONE).upstream_name is None


def test_a_rebuilt_catalogue_knows_what_backends_say_now() -> None:
    changing = backend("a")
    of = catalogue(changing)
    assert served(of) == {}
    changing.models = ("m",)
    of.rebuild()
    assert served(of) == {"m": ["a"]}
    changing.models = ("n",)
    of.rebuild()
    assert served(of) == {"n": ["a"]}


# Looking up


def test_a_model_is_found_by_its_name_and_by_its_aliases() -> None:
    of = catalogue(backend("a"), models=(QWEN,), a=("qwen3",))
    assert {of.resolve(name, ANYONE).name for name in ("qwen3", "gpt-4o", "gpt-4")} == {"qwen3"}


def test_a_name_goes_before_an_alias() -> None:
    of = catalogue(backend("a"), models=(QWEN,), a=("qwen3", "gpt-4"))
    assert of.resolve("gpt-4", ANYONE).name == "gpt-4"


@pytest.mark.parametrize("name", ["Qwen3", "qwen3 ", "", "qwen3-30b-a3b", "qwen"])
def test_a_model_is_looked_up_exactly(name: str) -> None:
    error = refused(catalogue(backend("a"), models=(QWEN,), a=("qwen3",)), name)
    assert (error.status, error.code, error.param) == (404, "model_not_found", "model")


def test_a_name_of_any_length_makes_a_message_of_a_bounded_one() -> None:
    of = catalogue(backend("a"), models=(QWEN,), a=("qwen3",))
    assert len(refused(of, "x" * 1_000_000).message) < 300


def test_the_only_model_need_not_be_named() -> None:
    assert catalogue(backend("a", "m")).resolve(None, ANYONE).name == "m"


def test_the_model_must_be_named_if_several_are_served() -> None:
    of = catalogue(backend("a", "m", "n"))
    error = refused(of, None)
    assert (error.status, error.code, error.param) == (400, "invalid_request", "model")
    assert error.message == "model must be given: one of m, n"
    assert of.resolve(None, TenantIdentity("t", models=("n",))).name == "n", "the only one of this tenant"


@pytest.mark.parametrize("name", [None, "m"])
def test_no_model_is_unknown_before_every_backend_has_stated_its_models(name: str | None) -> None:
    of = catalogue(backend("a"), backend("b", "n", "o"))
    with pytest.raises(CapacityError) as waiting:
        of.resolve(name, ANYONE)
    assert (waiting.value.status, waiting.value.code) == (503, "no_backend")
    assert (b"retry-after", b"2") in waiting.value.headers()
    assert of.resolve("n", ANYONE).name == "n"


# Permissions of tenants


def test_a_tenant_uses_its_models_only() -> None:
    of = catalogue(backend("a", "m", "n"))
    tenant = TenantIdentity("t", models=("n",))
    assert of.resolve("n", tenant).name == "n"
    error = refused(of, "m", tenant)
    assert (error.status, error.code, error.kind) == (403, "model_not_allowed", "permission_error")
    assert [entry["id"] for entry in of.listing(tenant)] == ["n"]


def test_a_model_that_is_allowed_by_one_name_is_allowed() -> None:
    of = catalogue(backend("a"), models=(QWEN,), a=("qwen3",))
    for allowed in ("qwen3", "gpt-4o"):
        assert of.resolve("gpt-4", TenantIdentity("t", models=(allowed,))).name == "qwen3"


def test_the_list_has_every_name_and_the_smallest_context_of_its_backends() -> None:
    of = catalogue(
        backend("a", n_ctx=4096),
        backend("b", n_ctx=2048),
        backend("c"),
        models=(QWEN,),
        a=("qwen3",),
        b=("qwen3",),
        c=("n",),
    )
    assert [(entry["id"], entry["meta"]) for entry in of.listing(ANYONE)] == [
        ("gpt-4", {"n_ctx": 2048}),
        ("gpt-4o", {"n_ctx": 2048}),
        ("n", {}),
        ("qwen3", {"n_ctx": 2048}),
    ]
    assert of.entry("n") == {"id": "n", "object": "model", "created": 0, "owned_by": "slotgate", "meta": {}}


def test_a_catalogue_shows_its_names() -> None:
    assert repr(catalogue(backend("a", "m", "n"))) == "<ModelCatalogue m, n>"
    assert repr(catalogue()) == "<ModelCatalogue empty>"
