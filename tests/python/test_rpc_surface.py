"""hawser.rpc has every name of torch.distributed.rpc, with the same parameters.

Needs the torch that hawser was built for; starts nothing.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pathlib
import types

import pytest
import torch
import torch.distributed.rpc as stock

import hawser.rpc as ours

MODULES = [
    "",
    ".api",
    ".internal",
    ".constants",
    ".functions",
    ".backend_registry",
    ".options",
    "._utils",
    ".rref_proxy",
    ".server_process_global_profiler",
    "._testing",
    "._testing.faulty_agent_backend_registry",
]

# What upstream has in its modules only because of how it is written.
INCIDENTAL = {
    "Any",
    "Callable",
    "Enum",
    "Future",
    "Generator",
    "Generic",
    "ParamSpec",
    "Store",
    "TYPE_CHECKING",
    "TypeVar",
    "cast",
    "contextmanager",
    "partial",
    "profile",
    "timedelta",
    "urlparse",
}


def names_of(module: types.ModuleType) -> list[str]:
    def counts(name: str, value: object) -> bool:
        if name.startswith("__") or name in INCIDENTAL:
            return False
        if isinstance(value, types.ModuleType):
            return value.__name__.startswith("torch.distributed.rpc.")
        return True

    return sorted(name for name, value in vars(module).items() if counts(name, value))


def parameters(function: object) -> list[tuple[str, inspect._ParameterKind]] | None:
    try:
        signature = inspect.signature(function)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return [(p.name, p.kind) for p in signature.parameters.values()]


def check_parameters(where: str, theirs: object, mine: object) -> None:
    expected, actual = parameters(theirs), parameters(mine)
    if expected is None or actual is None:
        return
    assert actual[: len(expected)] == expected, f"{where}: {actual} instead of {expected}"
    # What goes beyond must not be needed.
    extra = list(inspect.signature(mine).parameters.values())[len(expected) :]  # type: ignore[arg-type]
    assert all(p.default is not p.empty or p.kind is p.VAR_KEYWORD for p in extra), where


def stock_module(name: str) -> types.ModuleType:
    return importlib.import_module("torch.distributed.rpc" + name)


def our_module(name: str) -> types.ModuleType:
    return importlib.import_module("hawser.rpc" + name)


@pytest.fixture(autouse=True, scope="module")
def _stock_is_stock() -> None:
    assert stock.__file__ is not None and "torch" in pathlib.Path(stock.__file__).parts
    assert stock is not ours


@pytest.mark.parametrize("name", MODULES)
def test_every_name_is_there(name: str) -> None:
    module = our_module(name)
    missing = [each for each in names_of(stock_module(name)) if not hasattr(module, each)]
    # Annotated only, until init_rpc assigns it.
    assert not [each for each in missing if each != "rendezvous_iterator"]


@pytest.mark.parametrize("name", MODULES)
def test_the_same_is_exported(name: str) -> None:
    theirs = getattr(stock_module(name), "__all__", None)
    if theirs is not None:
        assert set(theirs) <= set(our_module(name).__all__)


@pytest.mark.parametrize("name", MODULES)
def test_functions_take_the_same_parameters(name: str) -> None:
    theirs, mine = stock_module(name), our_module(name)
    for each in names_of(theirs):
        function = getattr(theirs, each)
        if isinstance(function, types.FunctionType):
            assert callable(getattr(mine, each)), each
            check_parameters(f"{name}.{each}", function, getattr(mine, each))


@pytest.mark.parametrize("name", MODULES)
def test_classes_have_the_same_methods(name: str) -> None:
    theirs, mine = stock_module(name), our_module(name)
    for each in names_of(theirs):
        kind = getattr(theirs, each)
        if not isinstance(kind, type) or kind.__module__.startswith(("typing", "collections")):
            continue
        for method, value in vars(kind).items():
            if method.startswith("_pybind11") or (
                method.startswith("__") and method not in ("__init__", "__enter__", "__exit__")
            ):
                continue
            here = getattr(mine, each)
            assert hasattr(here, method) or method in here.__annotations__, (
                f"{name}.{each}.{method}"
            )
            if isinstance(value, types.FunctionType):
                check_parameters(f"{name}.{each}.{method}", value, getattr(here, method))


def test_constants_are_the_same() -> None:
    for module in ("", ".constants"):
        for name in names_of(stock_module(module)):
            value = getattr(stock_module(module), name)
            if isinstance(value, (str, float)) or (isinstance(value, int) and name.isupper()):
                assert getattr(our_module(module), name) == value, name


# --- the stubs of upstream's compiled modules ---


def stub(name: str) -> ast.Module:
    path = pathlib.Path(torch.__file__).parent / "_C" / f"{name}.pyi"
    return ast.parse(path.read_text())


def stub_parameters(function: ast.FunctionDef) -> list[str]:
    spec = function.args
    names = [arg.arg for arg in spec.posonlyargs + spec.args]
    names += [spec.vararg.arg] if spec.vararg else []
    names += [arg.arg for arg in spec.kwonlyargs]
    return names + ([spec.kwarg.arg] if spec.kwarg else [])


def check_stub_function(where: str, function: ast.FunctionDef, mine: object) -> None:
    assert callable(mine) or isinstance(mine, property), where
    actual = parameters(mine)
    if actual is None or isinstance(mine, property):
        return
    expected = stub_parameters(function)
    names = [name for name, _ in actual]
    static = any(getattr(d, "id", "") == "staticmethod" for d in function.decorator_list)
    if not static and expected[:1] == ["self"] and names[:1] != ["self"]:
        expected = expected[1:]
    overloaded = any(getattr(d, "id", "") == "overload" for d in function.decorator_list)
    if overloaded:
        assert len(expected) <= len(names), where
    else:
        assert names[: len(expected)] == expected, f"{where}: {names} instead of {expected}"


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("_distributed_rpc", "hawser.rpc._c_api"),
        ("_distributed_rpc_testing", "hawser.rpc._testing"),
    ],
)
def test_the_compiled_module_is_there_by_its_stub(name: str, module: str) -> None:
    mine = importlib.import_module(module)
    for node in stub(name).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            assert hasattr(mine, node.target.id), node.target.id
        elif isinstance(node, ast.FunctionDef):
            check_stub_function(node.name, node, getattr(mine, node.name))
        elif isinstance(node, ast.ClassDef):
            kind = getattr(mine, node.name)
            if kind is torch._C._distributed_rpc.WorkerInfo:
                continue  # is upstream's own
            for member in node.body:
                if isinstance(member, ast.FunctionDef):
                    where = f"{node.name}.{member.name}"
                    assert hasattr(kind, member.name), where
                    value = inspect.getattr_static(kind, member.name)
                    value = value if isinstance(value, property) else getattr(kind, member.name)
                    check_stub_function(where, member, value)


def test_nothing_works_before_init() -> None:
    with pytest.raises(RuntimeError, match="^RPC has not been initialized"):
        ours.rpc_sync("w1", min, (1, 2))
    with pytest.raises(RuntimeError, match="^RPC has not been initialized"):
        ours.rpc_async("w1", min, (1, 2))
    with pytest.raises(RuntimeError, match="^RPC has not been initialized"):
        ours.shutdown()
    with pytest.raises(RuntimeError, match="Current RPC agent is not set!"):
        ours.get_rpc_timeout()
    with pytest.raises(RuntimeError, match="Current RPC agent is not set!"):
        ours.RRef(1)
