"""What imports what: by the source, and by what is loaded after an import in a fresh process."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.unit.conftest import ROOT

PACKAGE = ROOT / "lance_stream"

# Who may import what of ours: downward only. A new room is a decision: write it here.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "processes": set(),
    "planning": {"errors", "planning"},
    "shards": {"errors", "planning", "shards"},
    "source": {"errors", "planning", "source"},
    "telemetry": {"processes", "shards", "telemetry", "tiers"},
    "tiers": {"errors", "planning", "shards", "source", "tiers"},
    "testing": {"errors", "tiers", "testing"},
    "service": {
        *("errors", "processes", "planning", "shards", "source", "telemetry", "tiers", "service")
    },
    "host": {
        *(
            "errors",
            "processes",
            "planning",
            "shards",
            "source",
            "telemetry",
            "tiers",
            "service",
            "host",
        )
    },
    "offline": {
        *("errors", "processes", "planning", "shards", "source", "tiers", "service", "offline")
    },
    "export": {
        *("errors", "processes", "planning", "shards", "source", "service", "offline", "export")
    },
    "cli": {
        *("errors", "processes", "planning", "shards", "source", "service", "offline", "export"),
        "cli",
    },
    # The lazy public names, for type checkers only.
    "__init__": {"errors", "planning", "tiers", "host"},
}

# The command tells the version of the package.
EXCEPTIONS = {("cli.main", "__init__")}

# Who may import what of others, besides the standard library.
OTHERS: dict[str, set[str]] = {
    "errors": set(),
    "processes": {"psutil"},
    "planning": {"fsspec", "numpy", "pyarrow", "xxhash"},
    "shards": {"numpy", "pyarrow", "torch"},
    "source": {"lance", "numpy", "pyarrow"},
    "telemetry": set(),
    "tiers": {"fsspec", "pymemcache", "redis", "xxhash"},
    "testing": set(),
    "service": {"msgspec", "numpy", "psutil", "pyarrow"},
    "host": {"filelock", "msgspec", "numpy", "pyarrow", "streaming", "torch", "tqdm"},
    "offline": {"fsspec", "msgspec", "numpy", "pyarrow", "ray"},
    "export": {"brotli", "fsspec", "numpy", "pyarrow", "snappy", "xxhash", "zstd"},
    "cli": {"click", "rich"},
    "__init__": set(),
}

# Imported inside of functions, by who has loaded them anyway or must wait for them.
LAZY = {
    ("shards.values", "torch"),
    ("export.compression", "brotli"),
    ("export.compression", "snappy"),
    ("export.compression", "zstd"),
}

# What runs in trainers and workers too, and so must not lead to lance.
TRAINER_SIDE = {
    "source.failures",
    "source.location",
    "service.messages",
    "service.runtime",
    "service.scheduler",
    "service.journal",
    "service.launcher",
    "service.client",
    "service.environment",
}
LANCE_SIDE = {
    "source.table",
    "source.functions",
    "service.fetching",
    "service.open_tables",
    "service.server",
    "service.stream_source",
    "service.transform",
}


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        yield name, ast.parse(path.read_text(), str(path))


def _imports(tree: ast.AST) -> Iterator[str]:
    """Every module that is imported anywhere in a source, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


MODULES = dict(_modules())
IMPORTS = {name: set(_imports(tree)) for name, tree in MODULES.items()}


def _ours(name: str) -> set[str]:
    """Modules of ours that a module imports."""
    found = set()
    for imported in IMPORTS[name]:
        if imported.startswith("lance_stream."):
            parts = imported.split(".")[1:]
            while parts and ".".join(parts) not in MODULES:
                if ".".join([*parts, "__init__"]) in MODULES:
                    break
                parts.pop()
            found.add(".".join(parts) or "__init__")
    return found


def _others(name: str) -> set[str]:
    """Distributions of others that a module imports."""
    roots = {imported.split(".")[0] for imported in IMPORTS[name]}
    return roots - set(sys.stdlib_module_names) - {"lance_stream"}


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_downward(name: str) -> None:
    room = name.split(".", maxsplit=1)[0]
    assert room in ALLOWED, f"{name}: a new room; say in ALLOWED and OTHERS what it may import"
    modules = {module for module in _ours(name) if (name, module) not in EXCEPTIONS}
    rooms = {module.split(".")[0] for module in modules}
    assert rooms <= ALLOWED[room], f"{name} must not import {sorted(rooms - ALLOWED[room])}"


@pytest.mark.parametrize("name", MODULES)
def test_each_room_needs_only_its_own_distributions(name: str) -> None:
    room = name.split(".", maxsplit=1)[0]
    found = _others(name)
    assert found <= OTHERS[room], f"{name} must not import {sorted(found - OTHERS[room])}"


def test_the_rules_are_about_rooms_that_exist() -> None:
    rooms = {name.split(".")[0] for name in MODULES}
    assert rooms == set(ALLOWED) == set(OTHERS)
    assert set(MODULES) >= TRAINER_SIDE | LANCE_SIDE
    assert len(MODULES) > 30
    # The scan sees imports: otherwise all of this would pass for nothing.
    assert "source.table" in _ours("service.fetching")
    assert "planning.index" in _ours("host.stream")
    assert _others("host.ranks") == {"streaming", "torch"}


def test_the_exceptions_are_still_needed() -> None:
    for name, module in EXCEPTIONS:
        assert module in _ours(name)
    for name, distribution in LAZY:
        assert distribution in _others(name)


def _importers(*names: str) -> set[str]:
    return {name for name in MODULES if _others(name) & set(names)}


def test_only_one_module_imports_lance() -> None:
    assert _importers("lance", "pylance", "lancedb") == {"source.table"}


def test_only_the_host_room_imports_torch_and_streaming() -> None:
    found = _importers("torch", "streaming", "torchdata", "torchvision")
    assert {name.split(".")[0] for name in found - dict(LAZY).keys()} == {"host"}


@pytest.mark.parametrize(("name", "distribution"), sorted(LAZY))
def test_a_lazy_import_is_inside_of_functions(name: str, distribution: str) -> None:
    functions = [n for n in ast.walk(MODULES[name]) if isinstance(n, ast.FunctionDef)]
    inside = [node for function in functions for node in ast.walk(function)]
    for node in ast.walk(MODULES[name]):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = ast.Module([node], [])
            if distribution in {imported.split(".")[0] for imported in _imports(module)}:
                assert node in inside


def test_torch_is_for_bfloat16_only() -> None:
    # In the rooms below the host, which the download process loads too.
    users = [
        function.name
        for function in ast.walk(MODULES["shards.values"])
        if isinstance(function, ast.FunctionDef) and "torch" in set(_imports(function))
    ]
    assert users == ["bfloat16_decoder"]


def test_only_the_launcher_starts_processes() -> None:
    harmless = {
        "multiprocessing.current_process",
        "multiprocessing.parent_process",
        "multiprocessing.synchronize.Event",
    }
    found = {
        name
        for name in MODULES
        for imported in IMPORTS[name] - harmless
        if imported.split(".")[0] in {"subprocess", "multiprocessing", "pty"}
        or imported.startswith("concurrent.futures.ProcessPool")
    }
    assert found == {"service.launcher"}
    # The daemon forks itself once, to be nobody's child.
    forks = {
        name
        for name, tree in MODULES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
        and (
            node.attr.startswith(("fork", "exec", "spawn", "posix_spawn")) or node.attr == "system"
        )
    }
    assert forks == {"service.daemon"}


@pytest.mark.parametrize("name", sorted(TRAINER_SIDE))
def test_what_trainers_use_does_not_lead_to_lance(name: str) -> None:
    seen, todo = set(), [name]
    while todo:
        module = todo.pop()
        if module not in seen:
            seen.add(module)
            todo += _ours(module)
    assert not seen & LANCE_SIDE


def test_the_host_does_not_enter_the_download_process() -> None:
    for name in MODULES:
        if name.startswith("host"):
            assert not _ours(name) & LANCE_SIDE, name


def test_functions_of_users_are_not_called_on_the_trainer_side() -> None:
    # They may import what they like.
    assert {name for name in MODULES if "source.functions" in _ours(name)} == {
        "service.transform",
        "source.options",
    }
    assert {name for name in MODULES if "service.transform" in _ours(name)} == {
        "service.fetching",
        "service.indexing",
        "service.open_tables",
    }


def test_nothing_unpickles() -> None:
    found = {
        name
        for name in MODULES
        for imported in IMPORTS[name]
        if imported.split(".")[0] in {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    }
    assert found == set()


def _top_level_reads(tree: ast.Module) -> Iterator[str]:
    """Names of os that code outside of functions uses."""

    class Visitor(ast.NodeVisitor):
        def __init__(self) -> None:
            self.found: list[str] = []

        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            pass

        def visit_Attribute(self, node: ast.Attribute) -> None:
            if isinstance(node.value, ast.Name) and node.value.id == "os":
                self.found.append(node.attr)
            self.generic_visit(node)

    visitor = Visitor()
    visitor.visit(tree)
    yield from visitor.found


@pytest.mark.parametrize("name", MODULES)
def test_no_module_reads_the_environment_when_it_is_imported(name: str) -> None:
    assert not set(_top_level_reads(MODULES[name])) & {"environ", "getenv", "getcwd"}


# --- what is loaded ---

LOADED = """
import importlib, json, sys, threading
for name in sys.argv[1:]:
    importlib.import_module(name)
found = {name.split(".")[0] for name in sys.modules}
deep = sorted(name for name in sys.modules if name.startswith("lance_stream"))
print(json.dumps({"roots": sorted(found), "ours": deep, "threads": threading.active_count()}))
"""


@pytest.fixture(scope="module")
def loaded(run_python: Callable[..., str]) -> Callable[..., dict]:
    def load(*names: str) -> dict:
        return json.loads(run_python(LOADED, *names))

    return load


HEAVY = {"lance", "torch", "streaming", "torchvision", "transformers"}


def test_importing_the_package_loads_nothing_heavy(loaded: Callable[..., dict]) -> None:
    found = loaded("lance_stream")
    assert not set(found["roots"]) & (HEAVY | {"numpy", "pyarrow"})
    assert found["ours"] == ["lance_stream"]
    assert found["threads"] == 1


def test_errors_load_nothing_heavy(loaded: Callable[..., dict]) -> None:
    assert not set(loaded("lance_stream.errors")["roots"]) & (HEAVY | {"numpy", "pyarrow"})


def test_public_errors_and_the_index_load_nothing_of_the_host(
    run_python: Callable[..., str],
) -> None:
    script = """
import sys, lance_stream
lance_stream.PlanError, lance_stream.ShardIndex
print(sorted({"lance", "torch", "streaming"} & set(sys.modules)))
"""
    assert run_python(script) == "[]\n"


@pytest.mark.parametrize("room", ["planning", "shards"])
def test_pure_rooms_load_only_what_they_need(room: str, loaded: Callable[..., dict]) -> None:
    names = [f"lance_stream.{n.removesuffix('.__init__')}" for n in MODULES if n.startswith(room)]
    found = loaded(*names)
    assert not set(found["roots"]) & HEAVY
    ours = {name.split(".")[1] for name in found["ours"] if "." in name}
    assert room in ours
    assert ours <= ALLOWED[room]


def test_the_download_process_loads_no_torch(loaded: Callable[..., dict]) -> None:
    found = set(loaded("lance_stream.service.server", "lance_stream.service.fetching")["roots"])
    assert "lance" in found
    assert not found & (HEAVY - {"lance"})
    assert not found & {"pandas", "matplotlib", "tqdm"}


def test_no_compression_loads_the_host(run_python: Callable[..., str]) -> None:
    script = """
import sys
from lance_stream.export.run import load_compression
for name in ("br", "bz2", "gz", "snappy", "zstd"):
    load_compression(name).compress(b"x")
print(sorted({"streaming", "torch", "transformers"} & set(sys.modules)))
"""
    assert run_python(script) == "[]\n"


def test_the_daemon_loads_nothing_heavy_before_it_forks(loaded: Callable[..., dict]) -> None:
    found = loaded("lance_stream.service.daemon")
    assert not set(found["roots"]) & (HEAVY | {"numpy", "pyarrow"})
    assert found["threads"] == 1


def test_trainers_do_not_load_lance(loaded: Callable[..., dict]) -> None:
    found = loaded("lance_stream.host.stream")
    assert "streaming" in found["roots"]
    assert "lance" not in found["roots"]
    assert not {f"lance_stream.{name}" for name in LANCE_SIDE} & set(found["ours"])


def test_every_module_can_be_imported_on_its_own_order(loaded: Callable[..., dict]) -> None:
    # From the top down and from the bottom up: no cycle hides behind an order.
    names = [
        f"lance_stream.{name}".removesuffix(".__init__")
        for name in MODULES
        if not name.startswith("host")
    ]
    for order in (names, names[::-1]):
        assert set(order) <= set(loaded(*order)["ours"])
