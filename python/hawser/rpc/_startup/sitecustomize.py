"""Runs at the start of every Python below `python -m hawser.dropin`.

Puts hawser in the place of torch.distributed.rpc as soon as torch is imported. Imports nothing
itself: most processes never need torch, and pay nothing.
"""

import os
import sys

TYPE_CHECKING = False  # that of typing, without the import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


class _AfterTorch:
    """Finds torch as the other finders do, and has hawser installed when it has been loaded."""

    def find_spec(
        self,
        name: str,
        path: "Sequence[str] | None" = None,
        target: "ModuleType | None" = None,
    ) -> "ModuleSpec | None":
        if name != "torch":
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                break
        else:
            return None
        if spec.loader is not None:
            self._then_install(spec.loader)
        return spec

    def _then_install(self, loader: "Any") -> None:
        load = loader.exec_module

        def load_and_install(module: "ModuleType") -> None:
            load(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                _install()

        loader.exec_module = load_and_install


def _install() -> None:
    try:
        import hawser.dropin
    except ModuleNotFoundError as error:
        if error.name != "hawser":
            raise
        sys.path.append(os.environ["HAWSER_DROPIN"])  # where the parent process found it
        import hawser.dropin
    hawser.dropin.install()


def _run_the_other_sitecustomize() -> None:
    """The one that this file hides, if there is one."""
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    for finder in sys.meta_path:
        name = getattr(finder, "__name__", "")
        spec = finder.find_spec("sitecustomize", others) if name == "PathFinder" else None
        if spec is None or spec.loader is None:
            continue
        module = type(sys)("sitecustomize")
        module.__spec__ = spec
        module.__file__ = spec.origin
        module.__loader__ = spec.loader
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)
        return


if os.environ.get("HAWSER_DROPIN"):
    sys.meta_path.insert(0, _AfterTorch())
_run_the_other_sitecustomize()
