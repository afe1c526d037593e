"""What others can do to a node that was made with trust="functions" (TRUST-1). Each test is an attempt."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peers
import pytest
import torch

import hawser
from hawser import autograd, pickling, profiler
from hawser._native import Method

# Both nodes live in this process: what the careful one must not do is then easily seen.


@pytest.fixture
def store() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="hawser-test-") as folder:
        yield f"file://{folder}/store"


@pytest.fixture
def careful(store: str) -> Iterator[hawser.Node]:
    functions = {"echo": peers.echo, "counter": peers.Counter, "fetch": fetch}
    node = hawser.Node("careful", store, functions=functions, trust="functions")
    yield node
    node.close()


@pytest.fixture
def attacker(store: str, careful: hawser.Node) -> Iterator[hawser.Node]:
    node = hawser.Node("attacker", store)
    yield node
    node.close()


def fetch(ref: Any) -> Any:
    return ref.to_here()


class Trap:
    """Whoever reads a pickle of it makes a folder."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.makedirs, (self.path,)


@torch.jit.script
class Point:
    def __init__(self, x: int) -> None:
        self.x = x

    def moved(self, by: int) -> int:
        return self.x + by


@torch.jit.script
def make_point(x: int) -> Point:
    return Point(x)


@torch.jit.script
def is_there(value: Any) -> bool:
    return value is not None


class Doubling(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @torch.jit.unused
    def unused(self, x: torch.Tensor) -> torch.Tensor:
        return x


# --- methods of values behind references ---


@pytest.mark.parametrize("method", ["__getattribute__", "tofile", "sum", "numpy", "__reduce_ex__"])
def test_methods_of_what_an_operator_left(attacker: hawser.Node, method: str) -> None:
    ref = attacker.remote("careful", torch.ones, [2])
    assert torch.equal(ref.to_here(), torch.ones(2))
    with pytest.raises(hawser.Refused, match=f"serves no method '{method}'"):
        attacker.run("careful", Method(ref, method))


def test_no_way_from_a_tensor_to_the_interpreter(attacker: hawser.Node, tmp_path: Path) -> None:
    ref = attacker.remote("careful", torch.ones, [2])
    kind = attacker.remote("careful", Method(ref, "__getattribute__"), "__class__")
    for step in (
        kind,
        attacker.remote("careful", Method(kind, "__subclasses__")),
        attacker.remote("careful", Method(kind, "__call__")),
    ):
        with pytest.raises(hawser.Refused, match="serves no method '__getattribute__'"):
            step.to_here()


def test_no_file_is_written(attacker: hawser.Node, tmp_path: Path) -> None:
    ref = attacker.remote("careful", torch.ones, [2])
    path = str(tmp_path / "file")
    attacker.notify("careful", Method(ref, "tofile"), path)
    written = attacker.remote("careful", Method(ref, "tofile"), path)
    with pytest.raises(hawser.Refused):
        attacker.run("careful", Method(ref, "tofile"), path)
    with pytest.raises(hawser.Refused):
        written.to_here()
    assert not list(tmp_path.iterdir())


def test_methods_of_python_objects(attacker: hawser.Node, careful: hawser.Node) -> None:
    careful.serve(lambda: careful.ref(peers.Counter(1)), "own")
    for ref in (attacker.remote("careful", "counter", 1), attacker.run("careful", "own")):
        for method in ("add", "__init__", "__class__", "__getattribute__", "__eq__"):
            with pytest.raises(hawser.Refused, match=f"serves no method '{method}'"):
                attacker.run("careful", Method(ref, method), 1)


class Child(peers.Counter):
    pass


def test_methods_that_are_served(attacker: hawser.Node, careful: hawser.Node) -> None:
    careful.serve_method(peers.Counter, "add")
    careful.serve_method(torch.Tensor, "sum")
    assert attacker.remote("careful", "counter", 1).rpc_sync().add(2) == 3
    assert attacker.remote("careful", torch.ones, [3]).rpc_sync().sum() == 3
    careful.serve(Child, "child")
    child = attacker.remote("careful", "child", 1)
    assert child.rpc_sync().add(by=3) == 4
    with pytest.raises(hawser.Refused, match="reads no pickles"):
        child.rpc_sync().add({1})
    for other in ("double", "add_to_all", "add.__globals__"):
        with pytest.raises(hawser.Refused, match="serves no method"):
            attacker.run("careful", Method(child, other), 1)


def test_methods_of_scripts(attacker: hawser.Node, careful: hawser.Node) -> None:
    point = attacker.remote("careful", make_point, 3)
    assert point.rpc_sync().moved(4) == 7
    with pytest.raises(hawser.Refused, match="serves no method"):
        attacker.run("careful", Method(point, "__getattribute__"), "moved")

    careful.serve(lambda: torch.jit.script(Doubling()), "module")
    module = attacker.remote("careful", "module")
    assert torch.equal(module.rpc_sync().forward(torch.ones(2)), torch.full((2,), 2.0))
    for method in ("unused", "save", "__getattr__", "_save_for_lite_interpreter", "apply"):
        with pytest.raises(hawser.Refused, match="serves no method"):
            attacker.run("careful", Method(module, method), torch.ones(1))


# --- operators ---


def operator(name: str, *args: Any) -> tuple[str, tuple[Any, ...]]:
    return name, args


@pytest.mark.parametrize(
    ("name", "args"),
    [
        operator("aten::from_file", "/etc/passwd", False, 8),
        operator("aten::empty", [8]),
        operator("aten::resize_", torch.ones(1), [8]),
        operator("aten::_reshape_alias", torch.ones(1), [8], [1]),
        operator("aten::set_grad_enabled", False),
        operator("aten::manual_seed", 1),
        operator("aten::warn", "hello"),
        operator("aten::get_gradients", 1),
        operator("prim::PythonOp"),
        operator("profiler::_record_function_enter", "name"),
        operator("quantized::linear_prepack", torch.ones(1, 1)),
        operator("_test::get_first", [["a"]]),
    ],
)
def test_operators_that_do_more_than_compute(
    attacker: hawser.Node, name: str, args: tuple[Any, ...]
) -> None:
    grad_was_enabled = torch.is_grad_enabled()
    with pytest.raises((hawser.Refused, RuntimeError)) as raised:
        attacker.run("careful", name, *args)
    # What cannot be written here never gets there.
    refused = isinstance(raised.value, hawser.Refused)
    assert refused or name.startswith("prim::"), raised.value
    assert torch.is_grad_enabled() == grad_was_enabled


def test_operators_of_other_libraries(attacker: hawser.Node, store: str) -> None:
    library = torch.library.Library("hawser_test_trust", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: 2 * x, "CPU")
    with pytest.raises(hawser.Refused, match="not among its `operators`"):
        attacker.run("careful", "hawser_test_trust::twice", torch.ones(1))

    allowed = ["hawser_test_trust::*", "aten::neg"]
    lenient = hawser.Node("lenient", store, trust="functions", operators=allowed)
    try:
        assert attacker.run("lenient", "hawser_test_trust::twice", torch.ones(1)) == 2
        assert attacker.run("lenient", torch.neg, torch.ones(1)) == -1
        with pytest.raises(hawser.Refused, match="aten::add cannot be called"):
            attacker.run("lenient", torch.add, torch.ones(1), 1)
    finally:
        lenient.close()


def test_operators_of_the_interpreter_are_allowed(attacker: hawser.Node) -> None:
    assert attacker.run("careful", "aten::add", 1, 2) == 3


# --- values ---


def test_classes_that_libraries_have_registered(attacker: hawser.Node) -> None:
    weight = torch.quantize_per_tensor(torch.ones(1, 1), 1.0, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(weight, None)
    assert attacker.run("attacker", is_there, packed) is True
    with pytest.raises(hawser.Invalid, match="LinearPackedParamsBase' is not known here"):
        attacker.run("careful", is_there, packed)


def test_pickles_in_arguments(attacker: hawser.Node, tmp_path: Path) -> None:
    path = str(tmp_path / "read")
    ref = attacker.ref(Trap(path))
    with pytest.raises(hawser.Refused, match="reads no pickles"):
        attacker.run("careful", "echo", Trap(path))
    with pytest.raises(hawser.Refused, match="reads no pickles"):
        attacker.run("careful", "echo", value=Trap(path))
    with pytest.raises(hawser.Refused, match="reads no pickles"):
        attacker.remote("careful", "echo", [ref, Trap(path)]).to_here()
    attacker.pickler = pickling.default_pickler
    with pytest.raises(hawser.Refused, match="reads no pickles"):
        attacker.run("careful", "echo", 1)
    assert not os.path.exists(path)


def test_values_behind_references_that_a_function_fetches(
    attacker: hawser.Node, tmp_path: Path
) -> None:
    path = str(tmp_path / "read")
    assert attacker.run("careful", "fetch", attacker.ref([1, 2])) == [1, 2]
    with pytest.raises(Exception, match="reads no pickles"):
        attacker.run("careful", "fetch", attacker.ref(Trap(path)))
    assert not os.path.exists(path)


def test_answers_to_a_careful_caller(
    attacker: hawser.Node, careful: hawser.Node, tmp_path: Path
) -> None:
    path = str(tmp_path / "read")
    attacker.serve(lambda: Trap(path), "trapped")
    with pytest.raises(hawser.Refused, match="reads no pickles"):
        careful.run("attacker", "trapped")
    with pytest.raises(hawser.Refused, match="reads no pickles"):
        careful.call("attacker", "trapped").wait()
    with pytest.raises(hawser.Refused, match="reads no pickles"):
        careful.remote("attacker", "trapped").to_here()
    assert not os.path.exists(path)


def test_exceptions_that_reach_a_careful_caller(tmp_path: Path) -> None:
    """The other process may read its own pickle, and does. This one may not."""
    with peers.world("peer", mine={"trust": "functions"}) as node:
        for attempt in (
            lambda: node.run("peer", fail_there, str(tmp_path), os.getpid()),
            lambda: node.call("peer", fail_there, str(tmp_path), os.getpid()).wait(),
            lambda: node.remote("peer", fail_there, str(tmp_path), os.getpid()).to_here(),
        ):
            with pytest.raises(hawser.RemoteError) as raised:
                attempt()
            assert raised.value.remote_type == "test_trust.Elsewhere"
    assert not (tmp_path / "here").exists()
    assert (tmp_path / "there").exists()


class Elsewhere(Exception):
    def __init__(self, path: str, attacked: int) -> None:
        super().__init__(path, attacked)

    def __reduce__(self) -> Any:
        return note_reader, self.args


def note_reader(path: str, attacked: int) -> Exception:
    Path(path, "here" if os.getpid() == attacked else "there").touch()
    return Exception(path)


def fail_there(path: str, attacked: int) -> None:
    raise Elsewhere(path, attacked)


# --- what stays possible ---


def test_autograd_and_profiles_need_no_more(attacker: hawser.Node) -> None:
    x = torch.ones(2, requires_grad=True)
    with autograd.context(attacker) as context, profiler.profile() as recorded:
        loss = attacker.run("careful", torch.sum, attacker.run("careful", torch.mul, x, 3))
        context.backward([loss])
        assert torch.equal(context.gradients()[x], torch.full((2,), 3.0))
    assert "aten::mul" in {event.name for event in recorded.events}
