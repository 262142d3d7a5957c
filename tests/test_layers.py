"""The shape of the code base, read off its source: who imports whom, and what is not done anywhere."""

import ast
import importlib
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("gateway", "middleware", "admission")
LEAVES = (
    "gateway.context",
    "gateway.error_shapes",
    "gateway.errors",
    "gateway.line_budget",
    "gateway.replies",
)
"""What middleware may know of the gateway."""
COMPOSERS = ("gateway.app", "gateway.serve", "gateway.cli")
"""Who may know the middleware."""
THIRD_PARTIES = {
    "anyio": {"gateway.disconnect"},
    "click": {"gateway.cli"},
    "httptools": {"gateway.protocol", "gateway.request_head", "gateway.upstream.connection"},
    "httpx": {
        "gateway.backend",
        "gateway.bench.run",
        "gateway.cassette.recorder",
        "gateway.fetching",
        "gateway.llama_probe",
        "gateway.monitor",
        "gateway.slot_cleaner",
        "gateway.top.feed",
        "gateway.upstream.transport",
    },
    "opentelemetry": {"gateway.otel"},
    "psycopg": {"gateway.usage.postgres"},
    "pytest": {"gateway.pytest_plugin.fixtures"},
    "pydantic": {"gateway.settings"},
    "prometheus_client": {"gateway.metrics"},
    "rich": {"gateway.top.screen", "gateway.top.watching"},
    "python_multipart": {"gateway.multipart"},
    "pydantic_core": {"gateway.settings"},
    "uvicorn": {
        "gateway.chunk_writer",
        "gateway.connections",
        "gateway.http10",
        "gateway.protocol",
        "gateway.server",
    },
    "uvloop": {"gateway.cassette.listening", "gateway.ci.run", "gateway.serve", "gateway.upstream.transport"},
}
"""Clients and frameworks, each with the few modules that know them."""
WHOLE_PACKAGES = ("gateway.settings",)
"""Packages that count as one module here."""
EVERYWHERE = {"orjson", "starlette", "structlog"}
STARLETTE = {"datastructures", "middleware", "responses", "routing", "types"}
"""No requests, no applications: the hot path is raw ASGI."""
MUTATORS = {"add", "append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update"}


def modules_of(*packages: str) -> dict[str, Path]:
    paths = [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return dict(zip((name.removesuffix(".__init__") for name in names), paths, strict=True))


MODULES = modules_of(*PACKAGES)


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


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


# -- who imports whom


def test_admission_knows_itself_and_the_standard_library_only() -> None:
    assert [
        f"{module} imports {name}"
        for module in modules_of("admission")
        for name in imports_of(module)
        if not is_in(name, ("admission",)) and name.split(".")[0] not in sys.stdlib_module_names
    ] == []


def test_admission_awaits_nothing() -> None:
    waits = (ast.Await, ast.AsyncFor, ast.AsyncFunctionDef, ast.AsyncWith)
    assert [
        f"{module}:{node.lineno}"
        for module in modules_of("admission")
        for node in ast.walk(tree_of(module))
        if isinstance(node, waits)
    ] == []


def test_middleware_knows_admission_and_the_leaves_of_the_gateway_only() -> None:
    assert ours_but(modules_of("middleware"), ("middleware", "admission", *LEAVES)) == []


def test_the_leaves_know_leaves_only() -> None:
    assert ours_but(LEAVES, LEAVES) == []


def test_only_those_who_compose_the_application_know_the_middleware() -> None:
    others = [module for module in modules_of("gateway") if module not in COMPOSERS]
    assert ours_but(others, ("gateway", "admission")) == []


def test_the_stand_in_stands_apart() -> None:
    """What runs in front of real llama-servers knows nothing of the scripted one, and the other way round."""
    apart = ("gateway.fake", "gateway.ci", "gateway.pytest_plugin", "gateway.cli")
    way = [module for module in modules_of("gateway") if not is_in(module, apart)]
    assert [f"{m} imports {name}" for m in way for name in imports_of(m) if is_in(name, apart[:3])] == []
    small = ("gateway.fake", "gateway.ready_file", "gateway.stopping")
    assert ours_but(modules_of("gateway/fake"), small) == []


def ours_but(modules: Iterable[str], allowed: tuple[str, ...]) -> list[str]:
    """Imports of our own modules that are not among the allowed ones."""
    return [
        f"{module} imports {name}"
        for module in modules
        for name in imports_of(module)
        if is_in(name, PACKAGES) and not is_in(name, allowed)
    ]


def test_no_module_imports_itself_by_a_detour() -> None:
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


def test_a_third_party_is_known_to_few_and_the_table_names_nobody_else() -> None:
    used: dict[str, set[str]] = {}
    for module in MODULES:
        for top in {name.split(".")[0] for name in imports_of(module)}:
            if top not in sys.stdlib_module_names and top not in (*PACKAGES, *EVERYWHERE):
                home = next((package for package in WHOLE_PACKAGES if is_in(module, (package,))), module)
                used.setdefault(top, set()).add(home)
    assert used == THIRD_PARTIES


def test_of_starlette_the_router_and_small_parts_only() -> None:
    parts = {name.split(".")[1] for m in MODULES for name in imports_of(m) if is_in(name, ("starlette",))}
    assert parts == STARLETTE


# -- public names


def test_every_public_name_exists_once_and_in_order() -> None:
    for module in MODULES:
        if not module.endswith("__main__"):
            names: list[str] = getattr(importlib.import_module(module), "__all__", [])
            missing = [name for name in names if not hasattr(importlib.import_module(module), name)]
            assert missing == [], module
            assert names == sorted(set(names), key=lambda name: (not name.isupper(), name)), module


def test_what_a_package_offers_is_what_it_says() -> None:
    for package in [module for module, path in MODULES.items() if path.name == "__init__.py"]:
        offered = {
            alias.asname or alias.name
            for node in tree_of(package).body
            if isinstance(node, ast.ImportFrom) and node.module != "__future__"
            for alias in node.names
        }
        assert set(getattr(importlib.import_module(package), "__all__", [])) == offered, package


# -- what is not done anywhere


def test_no_middleware_of_requests_and_responses() -> None:
    assert [module for module, path in MODULES.items() if "BaseHTTPMiddleware" in path.read_text()] == []


def test_no_stream_is_cut_into_lines_by_unicode_rules() -> None:
    """They cut at U+2028 and others, which stand unescaped in JSON strings."""
    cutters = {"aiter_lines", "iter_lines", "splitlines"}
    assert [
        f"{module}:{node.lineno}"
        for module in MODULES
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Attribute) and node.attr in cutters
    ] == []


def test_no_state_at_module_level() -> None:
    """No `global`, no cache, no container that begins empty or is changed by anybody."""
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
    """uvloop's cannot always say (see `admission.alarm`), and the loops of most tests can."""
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


def test_the_check_for_state_sees_what_it_is_to_see() -> None:
    assert dict(containers_of(ast.parse("A = {}\nB: list[int] = []\nC = Counter()\nD = [1]\nE = f(1)"))) == {
        "A": True,
        "B": True,
        "C": True,
        "D": False,
    }
    changes = "def f():\n A[1] = 2\n B.append(1)\n del C[0]\n D[0] += 1\n e = F.get(1)"
    assert sorted(changed_in(ast.parse(changes))) == ["A", "B", "C", "D"]
    assert caches_in(ast.parse("@functools.cache\ndef f(): ...\n@lru_cache(1)\ndef g(): ...")) != []
