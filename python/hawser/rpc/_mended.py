"""What torch has built on its rpc, where it needs more than another rpc underneath.

`torch.distributed.optim.DistributedOptimizer` is hawser's. `RemoteModule` stays torch's, which can be
scripted, with its errors mended: `train(mode)` ignores the mode and sends the module back, the
template of a scripted one is instantiated twice, one that came in a message or was made of a reference
cannot be called, and its `repr` raises. `await` waits for it as for hawser's own, and for the futures
of its calls, which are torch's.

Both modules take long to import and few programs need them, so they are mended when a program
imports them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import torch
from torch import nn

from .. import optim
from ..nn.remote_module import _await_creation
from ..node import _arrival
from . import api

# --- the optimizer ---


class DistributedOptimizer(optim.DistributedOptimizer):
    """As hawser's, but raises what the last owner raised, as programs expect; if others have failed
    too, all of it is the cause."""

    def _error(self, what: str, failures: dict[str, Exception], asked: int) -> Exception:
        last = list(failures.values())[-1]
        if len(failures) > 1:
            last.__cause__ = super()._error(what, failures, asked)
        return last


def _mend_optimizer(stock: Any) -> None:
    package: Any = sys.modules.get("torch.distributed.optim")
    for module in (stock, package):
        if hasattr(module, "DistributedOptimizer"):
            module.DistributedOptimizer = DistributedOptimizer


# --- modules ---


def _mend_remote_module(stock: Any) -> None:
    cls = stock._RemoteModule
    make = cls.__init__

    def init(
        self: Any,
        remote_device: str,
        module_cls: Any,
        args: Any = None,
        kwargs: Any = None,
        _module_interface_cls: Any = None,
    ) -> None:
        if _module_interface_cls is None:
            make(self, remote_device, module_cls, args, kwargs)
        else:
            what = (module_cls, args or (), kwargs or {})
            _make_scripted(self, remote_device, what, _module_interface_cls)

    cls.__init__ = init
    cls.train = _train
    cls.eval = _eval
    cls.__call__ = _call
    cls.__repr__ = _repr
    cls.__await__ = _await_module


def _make_scripted(module: Any, remote_device: str, what: tuple[Any, ...], interface: Any) -> None:
    """One call, while the template is instantiated here. The order of the attributes is the order
    in which they are pickled."""
    nn.Module.__init__(module)
    moves_inputs = module._prepare_init(remote_device)
    module.is_scriptable = True
    asked = (*what, module.device, interface, moves_inputs)
    made = api.rpc_async(module.on, _create_scripted, asked)
    module._init_template(interface, moves_inputs)
    module.module_rref = made.wait()
    module._install_generated_methods()
    module._check_attribute_picklability()


def _create_scripted(
    module_cls: Any, args: Any, kwargs: Any, device: str, interface: Any, moves_inputs: bool
) -> Any:
    from torch.distributed.nn.api import remote_module as stock

    stock._instantiate_template(interface, moves_inputs)
    return stock._create_module_with_interface(module_cls, args, kwargs, device, interface)


def _train(self: Any, mode: bool = True) -> Any:
    api.rpc_sync(self.module_rref.owner(), _set_mode, (self.module_rref, mode))
    self.training = mode
    return self


def _eval(self: Any) -> Any:
    return self.train(False)


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    """There are no hooks here, and in many instances nothing of nn.Module."""
    return self.forward(*args, **kwargs)


def _repr(self: Any) -> str:
    return f"{type(self).__name__}(on={self.on!r}, device={self.device!r})"


def _await_module(self: Any) -> Generator[Any, None, Any]:
    """Waits until the module is there. Raises what its constructor raised."""
    yield from _await_result(api.rpc_async(self.on, _await_creation, (self.module_rref,)))
    return self


def _await_result(self: Any) -> Generator[Any, None, Any]:
    if not self.done():
        yield from _arrival(self)
    return self.wait()


def _set_mode(module: Any, mode: bool) -> None:
    module.local_value().train(mode)


# --- when ---

_MENDS: dict[str, Callable[[Any], None]] = {
    "torch.distributed.optim.optimizer": _mend_optimizer,
    "torch.distributed.nn.api.remote_module": _mend_remote_module,
}


class _AfterImport(MetaPathFinder):
    """Finds those modules as they are found otherwise, and mends them when they have been loaded."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        mend = _MENDS.get(fullname)
        spec = PathFinder.find_spec(fullname, path) if mend else None
        if mend is None or spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        load = loader.exec_module

        def load_and_mend(module: ModuleType) -> None:
            load(module)
            mend(module)

        loader.exec_module = load_and_mend
        return spec


def install() -> None:
    """Once in a process."""
    torch._C.Future.__await__ = _await_result  # type: ignore[attr-defined]
    for name, mend in _MENDS.items():
        if name in sys.modules:
            mend(sys.modules[name])
    sys.meta_path.insert(0, _AfterImport())
