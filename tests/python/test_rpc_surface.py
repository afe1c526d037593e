"""hawser.rpc has every name of torch.distributed.rpc, with the same parameters.

Needs the torch that hawser was built for; starts nothing.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pathlib
import re
import types
from typing import Any

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


def signature_of(function: Any) -> inspect.Signature:
    """Of compiled functions by the first line of their documentation, as pybind11 writes it."""
    try:
        return inspect.signature(function)
    except ValueError:
        return signature_in(function.__doc__.splitlines()[0], function.__name__)


def signature_in(declaration: str, name: str) -> inspect.Signature:
    scope: dict[str, Any] = {}
    exec(f"from __future__ import annotations\ndef {declaration}: ...", scope)
    return inspect.signature(scope[name])


def is_needed(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in (
        parameter.VAR_POSITIONAL,
        parameter.VAR_KEYWORD,
    )


def without_self(signature: inspect.Signature) -> list[inspect.Parameter]:
    return [each for each in signature.parameters.values() if each.name != "self"]


def check_parameters(where: str, theirs: inspect.Signature, mine: inspect.Signature) -> None:
    """`...` as a default of theirs is one that is not known."""
    expected, actual = without_self(theirs), without_self(mine)
    shown = f"{where}: {mine} instead of {theirs}"
    assert len(expected) <= len(actual), shown
    for here, there in zip(actual, expected, strict=False):
        named = re.fullmatch(r"arg\d+", there.name) is None  # else pybind11 knows no name
        assert (here.name == there.name or not named) and here.kind == there.kind, shown
        assert not is_needed(here) or is_needed(there), shown
        if isinstance(there.default, (bool, int, float, str, type(None))):
            assert here.default == there.default, shown
    assert not any(is_needed(beyond) for beyond in actual[len(expected) :]), shown


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
            check_parameters(
                f"{name}.{each}", inspect.signature(function), signature_of(getattr(mine, each))
            )


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
                check_parameters(
                    f"{name}.{each}.{method}",
                    signature_of(value),
                    signature_of(getattr(here, method)),
                )


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


def stub_signature(function: ast.FunctionDef) -> inspect.Signature:
    return signature_in(f"{function.name}({ast.unparse(function.args)})", function.name)


def is_decorated(function: ast.FunctionDef, name: str) -> bool:
    return any(getattr(each, "id", "") == name for each in function.decorator_list)


def check_stub_function(where: str, function: ast.FunctionDef, mine: Any) -> None:
    if is_decorated(function, "property"):
        assert isinstance(mine, property), where
        return
    assert callable(mine), where
    theirs, here = stub_signature(function), signature_of(mine)
    if not is_decorated(function, "overload"):
        check_parameters(where, theirs, here)
        return
    everything = dict.fromkeys(theirs.parameters, 1)
    here.bind(**everything)  # by their names
    here.bind(*everything.values())


def check_stub_class(stubbed: ast.ClassDef, theirs: type, kind: type) -> None:
    for member in stubbed.body:
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            name = member.target.id
            if not hasattr(theirs, name):
                continue  # the stub is mistaken
            attribute = inspect.getattr_static(kind, name, None)
            assert name in kind.__annotations__ or (
                isinstance(attribute, property) and attribute.fset is not None
            ), f"{stubbed.name}.{name}"
        elif isinstance(member, ast.FunctionDef):
            where = f"{stubbed.name}.{member.name}"
            assert hasattr(kind, member.name), where
            value = inspect.getattr_static(kind, member.name)
            value = value if isinstance(value, property) else getattr(kind, member.name)
            check_stub_function(where, member, value)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("_distributed_rpc", "hawser.rpc._c_api"),
        ("_distributed_rpc_testing", "hawser.rpc._testing"),
        ("_distributed_autograd", "hawser.rpc.dist_autograd"),
    ],
)
def test_the_compiled_module_is_there_by_its_stub(name: str, module: str) -> None:
    stock_module("._testing")  # which makes one of the compiled modules
    mine = importlib.import_module(module)
    for node in stub(name).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            assert hasattr(mine, node.target.id), node.target.id
        elif isinstance(node, ast.FunctionDef):
            check_stub_function(node.name, node, getattr(mine, node.name))
        elif isinstance(node, ast.ClassDef):
            kind = getattr(mine, node.name)
            if kind is not torch._C._distributed_rpc.WorkerInfo:  # which is upstream's own
                check_stub_class(node, getattr(getattr(torch._C, name), node.name), kind)


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
