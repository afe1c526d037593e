"""Script functions and classes that tests call on other nodes. Both sides import them.

No `from __future__ import annotations`: TorchScript reads the annotations.
"""

import enum
from typing import Any, NamedTuple

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch import Tensor
from torch.distributed.rpc import RRef
from torch.futures import Future

import hawser


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class Pair(NamedTuple):
    first: Tensor
    second: int


@torch.jit.script
class Point:
    def __init__(self, x: int, weights: list[float]):
        self.x = x
        self.weights = weights

    def moved(self, by: int) -> int:
        return self.x + by


@torch.jit.interface
class Scaling(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[empty-body]
        pass


class Scale(torch.nn.Module):
    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


# --- plain functions ---


@torch.jit.script
def add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


@torch.jit.script
def scaled(x: Tensor, factor: float = 2.0) -> Tensor:
    return x * factor


@torch.jit.script
def nothing() -> int:
    return 0


@torch.jit.script
def failing(x: int) -> int:
    if x == 0:
        raise ValueError("x must not be 0")
    return x


@torch.jit.script
def spin(count: int) -> int:
    """Takes a while, and no lock."""
    x = torch.rand(100, 100)
    for _ in range(count):
        x = torch.mm(x, x) / 100
    return count


@torch.jit.script
def move(point: Point, by: int) -> Point:
    return Point(point.moved(by), point.weights)


@torch.jit.script
def points(count: int) -> list[Point]:
    return [Point(i, [0.5]) for i in range(count)]


@torch.jit.script
def swap(colour: Colour) -> Colour:
    if colour == Colour.RED:
        return Colour.GREEN
    return Colour.RED


@torch.jit.script
def pair_of(pair: Pair) -> Pair:
    return Pair(pair.first + 1, pair.second + 1)


@torch.jit.script
def device_of(x: Tensor) -> torch.device:
    return x.device


@torch.jit.script
def odd_types(
    names: dict[str, list[int]], maybe: tuple[int, str] | None, any_value: Any
) -> tuple[int, bool, bool]:
    total = 0
    for name in names:
        for number in names[name]:
            total += number
    return total, maybe is None, isinstance(any_value, str)


# --- references ---


@torch.jit.script
def fetch(ref: RRef[Tensor]) -> Tensor:
    return ref.to_here()


@torch.jit.script
def fetch_within(ref: RRef[Tensor], seconds: float) -> Tensor:
    return ref.to_here(seconds)


@torch.jit.script
def look(ref: RRef[Tensor]) -> Tensor:
    return ref.local_value()


@torch.jit.script
def is_owner(ref: RRef[Tensor]) -> bool:
    return ref.is_owner()


@torch.jit.script
def describe(ref: RRef[Tensor]) -> tuple[bool, str, bool]:
    return ref.is_owner(), ref.owner_name(), ref.confirmed_by_owner()


@torch.jit.script
def number_behind(ref: RRef[int]) -> int:
    return ref.to_here() + 1


@torch.jit.script
def count_to(number: int) -> list[int]:
    return [i + 1 for i in range(number)]


@torch.jit.script
def own_numbers(ref: RRef[list[int]]) -> int:
    return len(ref.local_value())


@torch.jit.script
def call_owner(ref: RRef[Tensor]) -> bool:
    return rpc.rpc_sync(ref.owner(), is_owner, (ref,))


@torch.jit.script
def same(ref: RRef[Tensor]) -> RRef[Tensor]:
    return ref


@torch.jit.script
def total(refs: list[RRef[Tensor]], named: dict[str, RRef[Tensor]]) -> Tensor:
    sum = torch.zeros(1)
    for ref in refs:
        sum = sum + ref.to_here()
    for name in named:
        sum = sum + named[name].to_here()
    return sum


@torch.jit.script
def in_containers(ref: RRef[Tensor]) -> dict[str, list[RRef[Tensor]]]:
    return {"both": [ref, ref]}


@torch.jit.script
def moved_by(ref: RRef[Point], by: int) -> int:
    return ref.to_here().moved(by)


@torch.jit.script
def apply(ref: RRef[Scaling], x: Tensor) -> Tensor:
    return ref.local_value().forward(x)


@torch.jit.script
def extend(ref: RRef[list[int]]) -> int:
    ref.local_value().append(7)
    return len(ref.local_value())


@torch.jit.script
def make_list() -> list[int]:
    return [1, 2]


@torch.jit.script
def make_point(x: int) -> Point:
    return Point(x, [1.0])


# --- calls from scripts ---


@torch.jit.script
def call(to: str, x: Tensor, y: Tensor) -> Tensor:
    return rpc.rpc_sync(to, add, (x, y))


@torch.jit.script
def call_by_keyword(to: str, x: Tensor, factor: float) -> Tensor:
    keywords: dict[str, float] = {"factor": factor}
    return rpc.rpc_sync(to, scaled, (x,), keywords)


@torch.jit.script
def call_wrongly(to: str, x: Tensor) -> Tensor:
    keywords: dict[str, str] = {"factor": "three"}
    return rpc.rpc_sync(to, scaled, (x,), keywords)


@torch.jit.script
def call_later(to: str, x: Tensor, y: Tensor) -> Future[Tensor]:
    return rpc.rpc_async(to, add, (x, y))


@torch.jit.script
def call_many(to: str, x: Tensor, count: int) -> Tensor:
    futures = [rpc.rpc_async(to, add, (x, x)) for _ in range(count)]
    sum = torch.zeros_like(x)
    for future in futures:
        sum = sum + future.wait()
    return sum


@torch.jit.script
def call_within(to: str, count: int, seconds: float) -> int:
    return rpc.rpc_sync(to, spin, (count,), {}, seconds)


@torch.jit.script
def call_failing(to: str) -> int:
    return rpc.rpc_sync(to, failing, (0,))


@torch.jit.script
def call_failing_later(to: str) -> Future[int]:
    return rpc.rpc_async(to, failing, (0,))


@torch.jit.script
def create(to: str, x: Tensor) -> RRef[Tensor]:
    return rpc.remote(to, scaled, (x,))


@torch.jit.script
def create_and_fetch(to: str, x: Tensor) -> Tensor:
    return rpc.remote(to, scaled, (x,)).to_here()


@torch.jit.script
def pass_on(to: str, ref: RRef[Tensor]) -> Tensor:
    return rpc.rpc_sync(to, fetch, (ref,))


@torch.jit.script
def there_and_back(to: str, back: str, x: Tensor) -> Tensor:
    return rpc.rpc_sync(to, call, (back, x, x))


@torch.jit.script
def forked(to: str, x: Tensor) -> Tensor:
    futures = [torch.jit.fork(call, to, x, x) for _ in range(4)]
    sum = torch.zeros_like(x)
    for future in futures:
        sum = sum + torch.jit.wait(future)
    return sum


@torch.jit.script
def use_future(future: Future[Tensor]) -> Tensor:
    return future.wait() * 3


@torch.jit.script
def add_later(to: str, x: Tensor) -> Future[Tensor]:
    return rpc.rpc_async(to, add, (x, x))


add_later.__name__ = "add_later"  # for functools.wraps


# --- autograd ---


@torch.jit.script
def train(to: str, x: Tensor, context: int) -> Tensor:
    """The gradient of a leaf that is made here, by way of a computation there."""
    leaf = torch.ones_like(x).requires_grad_()
    loss = rpc.rpc_sync(to, add, (leaf * x, leaf)).sum()
    dist_autograd.backward(context, [loss])
    return dist_autograd.get_gradients(context)[leaf]


# --- Python that is called on other nodes ---


def keep_tensor(value: float) -> Any:
    return hawser.RRef(torch.full((1,), value))


def keep_point(x: int) -> Any:
    return hawser.RRef(Point(x, [1.0]))


def keep_module(factor: float) -> Any:
    return hawser.RRef(torch.jit.script(Scale(factor)), type_hint=Scaling)


def gil_waits(name: str) -> int:
    return int(hawser.default_node().inspect()["gil_waits"])


def count_gil_waits(enabled: bool) -> None:
    hawser._native.measure_gil_waits(enabled)
