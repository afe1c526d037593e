"""What hawser has to say goes to Python's logging, under "hawser.<layer>".

HAWSER_LOG decides what is logged at all: a level (debug, info, warning, error, off), and levels of
single layers, as in HAWSER_LOG=info,transport=debug. The default is warning.
"""

from __future__ import annotations

import logging

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)


def emit(level: int, layer: str, text: str) -> None:
    logging.getLogger(f"hawser.{layer}").log(_LEVELS[level], "%s", text)
