"""Modules that live on other nodes. See docs/optim_and_modules.md."""

from __future__ import annotations

from hawser.nn.remote_module import RemoteModule

__all__ = ["RemoteModule"]
