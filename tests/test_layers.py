"""The rules for the shape of the code base: imports, names, and constructions that are not used."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import ROOT

PACKAGES = ("gateway", "middleware", "admission")
BELOW_APP = (
    "admission http settings upstream telemetry auth usage server api streaming backends processes "
    "forwarding handlers admin"
)
ALLOWED: dict[str, str] = {
    "admission": "",
    "http": "",
    "settings": "",
    "upstream": "",
    "telemetry": "http",
    "middleware": "http telemetry",
    "auth": "http settings admission",
    "usage": "http settings",
    "server": "http settings telemetry",
    "api": "http settings",
    "streaming": "api http upstream admission",
    "backends": "admission upstream api http settings",
    "processes": "backends settings http",
    "forwarding": "backends streaming api http admission settings",
    "handlers": "forwarding backends api http admission settings",
    "admin": "forwarding backends auth usage http admission settings",
    "app": f"{BELOW_APP} middleware",
    "tools": f"{BELOW_APP} app",
    "testing": f"{BELOW_APP} app tools middleware",
    "cli": "tools testing app auth usage settings",
}
"""Room -> the rooms that it may import, besides itself. A room that is not in this table fails the tests."""
MODULE_LIMITS = {
    "auth": {"admission": "slotgate.admission.token_bucket"},
}
"""Room -> the one module of another room that it may import."""
ALONE = ("slotgate.gateway.testing.fake",)
"""Packages inside a room that import nothing of ours but themselves."""
THIRD_PARTIES = {
    "anyio": {"slotgate.gateway.http.disconnect"},
    "click": {"slotgate.gateway.cli"},
    "httptools": {
        "slotgate.gateway.server.connection",
        "slotgate.gateway.server.refusals",
        "slotgate.gateway.server.request_head",
        "slotgate.gateway.upstream.connection",
    },
    "httpx": {
        "slotgate.gateway.backends.backend",
        "slotgate.gateway.tools.bench.run",
        "slotgate.gateway.testing.cassette.recorder",
        "slotgate.gateway.forwarding.fetch",
        "slotgate.gateway.processes.readiness_probe",
        "slotgate.gateway.backends.control_query",
        "slotgate.gateway.backends.health_monitor",
        "slotgate.gateway.backends.request_builder",
        "slotgate.gateway.backends.slot_prober",
        "slotgate.gateway.backends.slot_eraser",
        "slotgate.gateway.tools.top.feed",
        "slotgate.gateway.upstream.address",
        "slotgate.gateway.upstream.request",
        "slotgate.gateway.upstream.response",
        "slotgate.gateway.upstream.transport",
    },
    "opentelemetry": {"slotgate.gateway.telemetry.otel"},
    "psycopg": {"slotgate.gateway.usage.postgres"},
    "pytest": {"slotgate.gateway.testing.pytest_plugin.fixtures"},
    "pydantic": {"slotgate.gateway.settings"},
    "prometheus_client": {"slotgate.gateway.admin.metrics"},
    "rich": {"slotgate.gateway.tools.top.screen", "slotgate.gateway.tools.top.watching"},
    "python_multipart": {"slotgate.gateway.http.multipart"},
    "pydantic_core": {"slotgate.gateway.settings"},
    "uvicorn": {
        "slotgate.gateway.server.client_output",
        "slotgate.gateway.server.chunk_writer",
        "slotgate.gateway.server.connection_registry",
        "slotgate.gateway.server.expectation",
        "slotgate.gateway.server.http10",
        "slotgate.gateway.server.connection",
        "slotgate.gateway.server.listener",
    },
    "uvloop": {
        "slotgate.gateway.testing.cassette.listening",
        "slotgate.gateway.testing.ci.run",
        "slotgate.gateway.app.serve",
        "slotgate.gateway.backends.local_command",
        "slotgate.gateway.upstream.transport",
    },
}
"""Clients and frameworks, each with the few modules that know them."""
WHOLE_PACKAGES = ("slotgate.gateway.cli", "slotgate.gateway.settings")
"""Packages that count as one module here."""
EVERYWHERE = {"orjson", "starlette", "structlog"}
STARLETTE = {"datastructures", "middleware", "responses", "routing", "types"}
"""No requests, no applications: the hot path is raw ASGI."""
ANNOTATIONS = "\nfrom __future__ import annotations\n"
MUTATORS = {"add", "append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update"}


def modules_of(*folders: str) -> dict[str, Path]:
    """Module name, as it is imported -> file."""
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    names = [".".join(("slotgate", *path.relative_to(ROOT).with_suffix("").parts)) for path in paths]
    modules = zip((name.removesuffix(".__init__") for name in names), paths, strict=True)
    return {name: path for name, path in modules if "node_modules" not in path.parts}


def room_of(module: str) -> str:
    """Return the room of a module:

    `slotgate.gateway.http.errors` -> `http`, `slotgate.admission.pool` -> `admission`.
    """
    parts = module.split(".")[1:]
    return parts[1] if parts[0] == "gateway" and len(parts) > 1 else parts[0]


MODULES = modules_of(*PACKAGES)
TWO_MEANINGS = {"Charge"}
"""Class names that stand for two things: what a request is charged for, and the slot time of a lease."""
SHIPPED_AND_BENCH = {
    module: ast.parse(path.read_text()) for module, path in modules_of(*PACKAGES, "bench").items()
}
FLAT = {"slotgate.gateway", "slotgate.gateway.__main__"}
"""The modules of `gateway/` that are in no room."""


def tree_of(module: str) -> ast.Module:
    return SHIPPED_AND_BENCH[module]


def imports_of(module: str, *, at_import: bool = False) -> Iterator[str]:
    """The modules that a module imports; those inside functions too, unless `at_import`."""
    nodes = tree_of(module).body if at_import else ast.walk(tree_of(module))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            name = node.module or ""
            submodules = [f"{name}.{alias.name}" for alias in node.names]
            yield from (submodule if submodule in MODULES else name for submodule in submodules)


def is_in(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


# -- imports between rooms


def test_every_module_is_in_a_room_of_the_table() -> None:
    flat = {module for module in MODULES if module.count(".") == 2 and MODULES[module].name != "__init__.py"}
    assert {module for module in flat if module.startswith("slotgate.gateway.")} == FLAT - {
        "slotgate.gateway"
    }
    rooms = {room_of(module) for module in MODULES if module not in FLAT}
    assert rooms == set(ALLOWED)


def test_a_room_imports_the_rooms_of_the_table_only() -> None:
    assert [
        f"{module} imports {name}"
        for module in MODULES
        if module not in FLAT
        for name in ours_of(module)
        if room_of(name) not in (room_of(module), *ALLOWED[room_of(module)].split())
    ] == []


def test_only_one_module_of_some_rooms_is_imported() -> None:
    assert [
        f"{module} imports {name}"
        for module in MODULES
        for room, only in MODULE_LIMITS.get(room_of(module), {}).items()
        for name in ours_of(module)
        if room_of(name) == room and name != only
    ] == []


def test_the_scripted_llama_server_imports_nothing_of_the_gateway() -> None:
    """If they shared code, they could agree in a mistake."""
    assert [
        f"{module} imports {name}"
        for module in MODULES
        if is_in(module, ALONE)
        for name in ours_of(module)
        if not is_in(name, ALONE)
    ] == []


def test_no_module_imports_the_folders_by_their_own_names() -> None:
    """Projects that use slotgate may have packages named `gateway` or `middleware` themselves."""
    assert [
        f"{module} imports {name}"
        for module in MODULES
        for name in imports_of(module)
        if is_in(name, PACKAGES)
    ] == []


def test_admission_knows_the_standard_library_only_and_no_asyncio() -> None:
    assert [
        f"{module} imports {name}"
        for module in modules_of("admission")
        for name in imports_of(module)
        if not is_in(name, ("slotgate.admission",))
        and (name.split(".")[0] not in sys.stdlib_module_names or is_in(name, ("asyncio",)))
    ] == []


def test_api_knows_asyncio_only_for_the_lock_of_big_bodies() -> None:
    assert {
        module
        for module in modules_of("gateway/api")
        for name in imports_of(module)
        if is_in(name, ("asyncio", "anyio"))
    } == {"slotgate.gateway.api.json_bodies"}


def test_admission_awaits_nothing() -> None:
    waits = (ast.Await, ast.AsyncFor, ast.AsyncFunctionDef, ast.AsyncWith)
    assert [
        f"{module}:{node.lineno}"
        for module in modules_of("admission")
        for node in ast.walk(tree_of(module))
        if isinstance(node, waits)
    ] == []


def ours_of(module: str) -> list[str]:
    """The modules of ours that a module imports."""
    return [name for name in imports_of(module) if is_in(name, ("slotgate",)) and name != "slotgate"]


def test_there_are_no_import_cycles() -> None:
    graph = {
        module: {name for name in imports_of(module, at_import=True) if name in MODULES} for module in MODULES
    }
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " -> ".join((*way, module))
        if module not in done:
            for imported in graph[module]:
                visit(imported, (*way, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_third_party_imports_match_the_table() -> None:
    used: dict[str, set[str]] = {}
    for module in MODULES:
        for top in {name.split(".")[0] for name in imports_of(module)}:
            if top not in sys.stdlib_module_names and top not in ("slotgate", *EVERYWHERE):
                home = next((package for package in WHOLE_PACKAGES if is_in(module, (package,))), module)
                used.setdefault(top, set()).add(home)
    assert used == THIRD_PARTIES


def test_only_small_parts_of_starlette_are_imported() -> None:
    parts = {name.split(".")[1] for m in MODULES for name in imports_of(m) if is_in(name, ("starlette",))}
    assert parts == STARLETTE


# -- names


def test_a_class_name_stands_for_one_thing() -> None:
    """The same name for two classes misleads a reader who searches for it."""
    places: dict[str, list[str]] = {}
    for module, tree in SHIPPED_AND_BENCH.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{module}:{node.lineno}")
    assert {
        name: found for name, found in places.items() if len(found) > 1 and name not in TWO_MEANINGS
    } == {}


def test_every_module_with_public_classes_or_functions_lists_them() -> None:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    assert [
        module
        for module, tree in SHIPPED_AND_BENCH.items()
        if any(isinstance(node, kinds) and not node.name.startswith("_") for node in tree.body)
        and not any(isinstance(node, ast.Assign) and "__all__" in ast.unparse(node) for node in tree.body)
    ] == []


def test_every_module_with_code_reads_its_annotations_as_text() -> None:
    """An annotation can then name a class that is defined further down, and costs nothing at import."""
    without = [
        (module, path)
        for module, path in modules_of(*PACKAGES, "bench", "tests").items()
        if ANNOTATIONS not in f"\n{path.read_text()}"
    ]
    assert [
        module
        for module, path in without
        if any(not isinstance(node, ast.Expr) for node in ast.parse(path.read_text()).body)
    ] == []


def test_every_public_name_exists_once_and_in_order() -> None:
    for module in MODULES:
        if not module.endswith("__main__"):
            names: list[str] = getattr(importlib.import_module(module), "__all__", [])
            missing = [name for name in names if not hasattr(importlib.import_module(module), name)]
            assert missing == [], module
            assert names == sorted(set(names), key=lambda name: (not name.isupper(), name)), module


def test_a_package_exports_what_its_all_names() -> None:
    for package in [module for module, path in MODULES.items() if path.name == "__init__.py"]:
        offered = {
            alias.asname or alias.name
            for node in tree_of(package).body
            if isinstance(node, ast.ImportFrom) and node.module != "__future__"
            for alias in node.names
        }
        assert set(getattr(importlib.import_module(package), "__all__", [])) == offered, package


# -- constructions that are not used


def test_scenario_008_no_middleware_of_requests_and_responses() -> None:
    assert [module for module, path in MODULES.items() if "BaseHTTPMiddleware" in path.read_text()] == []


def test_no_stream_is_cut_into_lines_by_unicode_rules() -> None:
    """Such rules cut at U+2028 and others, which stand unescaped in JSON strings."""
    cutters = {"aiter_lines", "iter_lines", "splitlines"}
    assert [
        f"{module}:{node.lineno}"
        for module in MODULES
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Attribute) and node.attr in cutters
    ] == []


def test_scenario_041_no_read_waits_until_a_piece_is_full() -> None:
    """With a size, httpx collects small pieces until they are that large together."""
    readers = {"aiter_raw", "aiter_bytes", "iter_raw", "iter_bytes"}
    assert [
        f"{module}:{node.lineno}"
        for module in MODULES
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in readers
        if node.args or node.keywords
    ] == []


def test_no_state_at_module_level() -> None:
    """Modules have no `global`, no cache, and no container that begins empty or is changed."""
    found: list[str] = []
    for module in MODULES:
        tree = tree_of(module)
        containers = dict(containers_of(tree))
        found += [f"{module}: global" for node in ast.walk(tree) if isinstance(node, ast.Global)]
        found += [f"{module}: {decorator}" for decorator in caches_in(tree)]
        found += [f"{module}: {name} begins empty" for name, is_empty in containers.items() if is_empty]
        found += [f"{module}: {name} is changed" for name in changed_in(tree) if name in containers]
    assert found == []


def test_no_handle_of_a_loop_is_asked_for_its_time() -> None:
    """uvloop's handles do not always have one (see `streaming/alarm.py`), but the loops of most tests do."""
    calls = ((module, node) for module in MODULES for node in ast.walk(tree_of(module)))
    asked = [(m, n) for m, n in calls if isinstance(n, ast.Call) and ast.unparse(n).endswith(".when()")]
    assert [f"{module}:{call.lineno}" for module, call in asked] == []


def caches_in(tree: ast.Module) -> list[str]:
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    decorators = [ast.unparse(decorator) for function in functions for decorator in function.decorator_list]
    return [text for text in decorators if text.split("(")[0].split(".")[-1] in ("cache", "lru_cache")]


def containers_of(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Names that a module binds to lists, dictionaries or sets, and whether these begin empty."""
    for node in tree.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for name in [target.id for target in targets if isinstance(target, ast.Name)]:
            if isinstance(value, ast.List | ast.Set | ast.Dict):
                yield name, not ast.unparse(value).strip("[]{}")
            elif isinstance(value, ast.ListComp | ast.SetComp | ast.DictComp):
                yield name, False
            elif isinstance(value, ast.Call) and not value.args and not value.keywords:
                kind = ast.unparse(value.func).split(".")[-1]
                if kind in ("dict", "list", "set", "Counter", "OrderedDict", "defaultdict", "deque"):
                    yield name, True


def changed_in(tree: ast.Module) -> Iterator[str]:
    """Names of which something is changed in place: an item is set or deleted, a mutating method called."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.AugAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            targets = [node.func] if node.func.attr in MUTATORS else []
        for target in targets:
            if isinstance(target, ast.Subscript | ast.Attribute) and isinstance(target.value, ast.Name):
                yield target.value.id


def test_the_check_for_state_finds_state() -> None:
    assert dict(containers_of(ast.parse("A = {}\nB: list[int] = []\nC = Counter()\nD = [1]\nE = f(1)"))) == {
        "A": True,
        "B": True,
        "C": True,
        "D": False,
    }
    changes = "def f():\n A[1] = 2\n B.append(1)\n del C[0]\n D[0] += 1\n e = F.get(1)"
    assert sorted(changed_in(ast.parse(changes))) == ["A", "B", "C", "D"]
    assert caches_in(ast.parse("@functools.cache\ndef f(): ...\n@lru_cache(1)\ndef g(): ...")) != []
