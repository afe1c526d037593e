"""Stand-ins for what is not there yet: scripts.

Everything that a later change replaces is here and nowhere else. What init_rpc and shutdown call
does nothing; what a program would call raises NotImplementedError.
"""

from __future__ import annotations


def _not_yet(what: str) -> NotImplementedError:
    return NotImplementedError(f"hawser.rpc does not have {what} yet")


# --- scripts ---


def _enable_jit_rref_pickle() -> None:
    raise _not_yet("references in scripts")


def _disable_jit_rref_pickle() -> None:
    raise _not_yet("references in scripts")
