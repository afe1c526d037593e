"""Optimizers for parameters that live on several nodes. See docs/optim_and_modules.md."""

from __future__ import annotations

from hawser.optim.distributed import DistributedOptimizer, OwnerErrors

__all__ = ["DistributedOptimizer", "OwnerErrors"]
