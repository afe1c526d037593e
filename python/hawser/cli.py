"""The command `hawser`."""

from __future__ import annotations

import argparse

import hawser


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="hawser", description="Remote calls for PyTorch programs."
    )
    parser.add_argument("--version", action="version", version=f"hawser {hawser.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser(
        "doctor", help="checks the installation, and probes each transport between two processes"
    )
    options = parser.parse_args()
    if options.command == "doctor":
        from hawser.doctor import examine

        return examine()
    raise AssertionError(options.command)
