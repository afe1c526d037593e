"""The command `hawser`."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

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
    _add_trace(
        commands.add_parser("trace", help="reads a timeline that hawser.profiler has written")
    )
    options = parser.parse_args()
    if options.command == "doctor":
        from hawser.doctor import examine

        return examine()
    if options.command == "trace":
        return _trace(options)
    raise AssertionError(options.command)


def _add_trace(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True)
    summary = actions.add_parser(
        "summary", help="where calls spend their time, by function and peer"
    )
    summary.add_argument("file")
    picture = actions.add_parser("picture", help="one call's life, as SVG")
    picture.add_argument("file")
    picture.add_argument("--call", type=int, help="its number, from 0; the slowest if not given")
    timeline = actions.add_parser("timeline", help="all processes over a stretch of time, as SVG")
    timeline.add_argument("file")
    timeline.add_argument("--start", type=float, help="in us from the beginning; the beginning")
    timeline.add_argument("--end", type=float, help="in us from the beginning; the end")
    merge = actions.add_parser("merge", help="one timeline of several of the same time")
    merge.add_argument("files", nargs="+")
    for writes in (picture, timeline, merge):
        writes.add_argument(
            "--output", "-o", help="where to write it; standard output if not given"
        )


def _trace(options: argparse.Namespace) -> int:
    from hawser import timelines, traces

    try:
        if options.action == "summary":
            print(traces.summary(traces.load(options.file)))
            return 0
        if options.action == "picture":
            made = traces.picture(traces.load(options.file), options.call)
        elif options.action == "timeline":
            made = timelines.picture(traces.load(options.file), options.start, options.end)
        else:
            made = json.dumps(timelines.merge(traces.load(file) for file in options.files))
    except (OSError, ValueError) as error:
        print(f"hawser trace: {error}", file=sys.stderr)
        return 1
    if options.output:
        pathlib.Path(options.output).write_text(made)
    else:
        print(made, end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
