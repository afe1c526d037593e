"""A module that lives on another node and is used as if it were here."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NoReturn, TypeVar

import torch
from torch import nn
from torch.utils import _pytree as pytree

from hawser import _native
from hawser._native import Future, Method, PyRRef
from hawser.errors import Invalid
from hawser.references import current_node

__all__ = ["RemoteModule"]

M = TypeVar("M", bound="RemoteModule")


class RemoteModule(nn.Module):
    """A module on another node.

        module = RemoteModule("worker/cpu", nn.Linear, (20, 30))
        y = module(x)                             # runs there; y and x keep their gradients
        y = await module.forward_async(x)         # or later: forward_async(x).wait()
        optimizer = hawser.optim.DistributedOptimizer(torch.optim.SGD, module.remote_parameters(), lr=0.1)

    `remote_device` is `<node>/<device>` or `rank:<n>/<device>`, or either without a device, for the
    CPU. `module_cls(*args, **kwargs)` is called there, and this returns without waiting for it: what
    it raises is raised by the first use, or by `await module`, which waits until the module is there.

    It can be sent to other nodes, which then use the same module. What `nn.Module` does to a module's
    own tensors is done where they are: `module.get_module_rref().rpc_sync().state_dict()`.
    """

    on: str
    """The node on which the module is."""
    device: str
    module_rref: PyRRef

    def __init__(
        self,
        remote_device: str,
        module_cls: Callable[..., nn.Module],
        args: Sequence[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        *,
        node: Any = None,
    ) -> None:
        super().__init__()
        native = current_node() if node is None else node._native
        self.on, self.device = _place(native, remote_device)
        what = (module_cls, tuple(args or ()), dict(kwargs or {}), self.device)
        self.module_rref = native.remote(self.on, _create, what)

    @classmethod
    def init_from_module_rref(cls: type[M], remote_device: str, module_rref: PyRRef) -> M:
        """Another name for a module to which there is a reference. The device is that of its inputs."""
        module = cls.__new__(cls)
        nn.Module.__init__(module)
        module.on, module.device = _place(module_rref._node, remote_device)
        if module.on != module_rref.owner_name():
            raise Invalid(f"the module is on {module_rref.owner_name()!r}, not on {module.on!r}")
        module.module_rref = module_rref
        return module

    # --- what runs there ---

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module there with these arguments and waits for the result."""
        return self._node.call(self.on, *self._call(args, kwargs))

    def forward_async(self, *args: Any, **kwargs: Any) -> Future:
        """Calls the module there with these arguments; the result is in the future."""
        return self._node.start(self.on, *self._call(args, kwargs))

    def train(self: M, mode: bool = True) -> M:
        """Sets the mode of the module there; returns this one."""
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        self._node.call(self.on, _set_mode, (self.module_rref, mode))
        self.training = mode
        return self

    def eval(self: M) -> M:
        return self.train(False)

    def remote_parameters(self, recurse: bool = True) -> list[PyRRef]:
        """References to the module's parameters, without those of its submodules if not `recurse`."""
        asked = (self.module_rref, recurse)
        return self._node.call(self.on, _parameters, asked)

    def get_module_rref(self) -> PyRRef:
        return self.module_rref

    def __await__(self: M) -> Generator[Any, None, M]:
        """Waits until the module is there. Raises what its constructor raised."""
        there = self._node.start(self.on, _await_creation, (self.module_rref,))
        yield from there.__await__()
        return self

    # --- what it is here ---

    @property
    def _node(self) -> _native.Node:
        return self.module_rref._node

    def _call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...], dict[str, Any] | None]:
        if self.device == "cpu":
            return Method(self.module_rref, "__call__"), args, kwargs
        return _forward_on_device, (self.module_rref, self.device, args, kwargs), None

    def __reduce__(self) -> tuple[Any, ...]:
        own = {name: value for name, value in vars(self).items() if name not in _OF_EVERY_MODULE}
        ref = own.pop("module_rref")
        try:
            written = ref.__reduce__()
        except RuntimeError as error:
            if ref.deleted:
                raise
            raise RuntimeError(
                "Cannot pickle RemoteModule in python pickler. "
                "RemoteModule can only be pickled when using RPC"
            ) from error
        return _received, (type(self), self.training, own, *written)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(on={self.on!r}, device={self.device!r})"


_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


def _received(
    cls: type[M],
    training: bool,
    own: dict[str, Any],
    read: Callable[..., PyRRef],
    written: tuple[Any, ...],
) -> M:
    module = cls.__new__(cls)
    nn.Module.__init__(module)
    module.training = training
    module.module_rref = read(*written)
    vars(module).update(own)
    return module


# --- methods of nn.Module that mean something only where the module is ---


def _refused(name: str) -> Callable[..., NoReturn]:
    def refuse(self: RemoteModule, *_: Any, **__: Any) -> NoReturn:
        if name == "parameters":
            instead = "Please use ``remote_parameters`` instead."
        else:
            instead = f"Where the module is, there is get_module_rref().rpc_sync().{name}"
        raise Invalid(f"Method ``{name}`` not supported for RemoteModule. {instead}")

    refuse.__name__ = name
    refuse.__qualname__ = f"RemoteModule.{name}"
    refuse.__doc__ = "Not supported: raises ValueError."
    return refuse


for _name, _method in vars(nn.Module).items():
    if callable(_method) and not _name.startswith("_") and _name not in vars(RemoteModule):
        setattr(RemoteModule, _name, _refused(_name))


# --- on the module's node ---


def _create(
    module_cls: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], device: str
) -> nn.Module:
    module = module_cls(*args, **kwargs)
    if not isinstance(module, nn.Module):
        raise ValueError(
            "Expect `module_cls(*args, **kwargs)` returns an instance of <class nn.Module>, "
            f"not of {type(module)}"
        )
    return module.to(device)


def _forward_on_device(
    module: PyRRef, device: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Tensors travel by way of the CPU."""
    args, kwargs = moved((args, kwargs), device)
    return moved(module.local_value()(*args, **kwargs), "cpu")


def moved(tree: Any, device: str) -> Any:
    """The same with its tensors, however deep in lists, tuples and dicts, on that device."""
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), tree)


def _set_mode(module: PyRRef, mode: bool) -> None:
    module.local_value().train(mode)


def _parameters(module: PyRRef, recurse: bool) -> list[PyRRef]:
    node = module._node
    return [PyRRef(p, _node=node) for p in module.local_value().parameters(recurse)]


def _await_creation(module: PyRRef) -> None:
    module.local_value()


# --- places ---


def _place(node: _native.Node, remote_device: str) -> tuple[str, str]:
    """The name of the node, and the device."""
    if not isinstance(remote_device, str):
        raise TypeError(f"remote_device must be a string, not a {type(remote_device).__name__}")
    where, slash, device = remote_device.partition("/")
    kind, colon, rank = where.partition(":")
    if not where or "/" in device or (slash and not device) or _is_device(where):
        raise _unparsed(remote_device)
    if colon and (kind != "rank" or not rank.isdecimal()):
        raise _unparsed(remote_device)
    try:
        device = str(torch.device(device or "cpu"))
    except RuntimeError as error:
        raise _unparsed(remote_device) from error
    if not colon:
        return where, device
    members = node.members()
    if int(rank) not in members:
        raise Invalid(f"there is no rank {rank}, only {', '.join(map(str, sorted(members)))}")
    return members[int(rank)], device


def _is_device(text: str) -> bool:
    try:
        torch.device(text)
    except RuntimeError:
        return False
    return True


def _unparsed(remote_device: str) -> Invalid:
    return Invalid(
        f"Could not parse remote_device: {remote_device}. The valid format is "
        "'<workername>/<device>' or 'rank:<rank>/<device>', with a device of torch or without one"
    )
