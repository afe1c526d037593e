#!/usr/bin/env python3
"""Measures the machine's limits and hawser in interleaved rounds and judges the goals. See README.md beside this file.

    run.py                                    the table
    run.py --json out.json --plot out.svg     also every figure, and latency over size
    run.py --brief                            does it work? Every job for a moment, but none of 64 processes

Exits with 1 if a job failed and, with --strict, if a goal was missed or could not be judged.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path

import plot
from goals import (
    GOALS,
    MIB,
    Goal,
    Measurement,
    Row,
    Run,
    Verdict,
    exit_status,
    job,
    judge,
    limit,
    text_of,
)

EXIT_UNAVAILABLE = (
    3  # What both programs answer when this machine, or this version of them, cannot run a job.
)
START_SECONDS = 60  # What a job may take on top of --seconds to start and end ...
ONCE_SECONDS = 300  # ... or, if it has a task to finish, in all.

BRIEF_SECONDS = 0.05
NOT_BRIEF = {"idle_64", "connect_64"}

Programs = dict[str, Path | None]

SIZES = [1024 * 4**step for step in range(9)]  # 1 KiB to 64 MiB
SIZE_TEXTS = {
    size: f"{size // MIB} MiB" if size >= MIB else f"{size // 1024} KiB" for size in SIZES
}


def goal_runs(goals: tuple[Goal, ...]) -> list[Run]:
    """Each limit beside the first job that needs it: wake-ups drift during a run."""
    return list(
        dict.fromkeys(figure.run for goal in goals for figure in (*goal.limits, goal.figure))
    )


def plot_runs() -> list[Run]:
    runs = [limit("spin_hot")]
    for size in SIZES:
        runs += [limit("memcpy_warm", size=size), job("echo", size=size)]
        runs += [limit("tcp_echo", size=size), job("echo", "tcp", size=size)]
    return runs


def find_program(build: Path, name: str) -> Path | None:
    found = [
        path for path in sorted(build.rglob(name)) if path.is_file() and os.access(path, os.X_OK)
    ]
    return found[0] if found else None


def execute(program: Path, arguments: list[str], timeout: float) -> subprocess.CompletedProcess:
    """Like subprocess.run, but a time-out or an interrupt ends the program's own children too."""
    process = subprocess.Popen(
        [program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def measure(
    run: Run, fields: set[str], programs: Programs, seconds: float, into: Measurement
) -> None:
    """Adds one round. A run that once failed or was skipped stays so: a crash must not vanish in a median."""
    if into.failed or into.skipped or (run.once and into.rounds):
        return
    program = programs[run.program]
    if program is None:
        into.skipped = f"{run.program} is not built"
        return
    try:
        done = execute(
            program, run.arguments(seconds), ONCE_SECONDS if run.once else seconds + START_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        into.failed = f"{run.name}: no end after {error.timeout:g} s"
        return
    last_words = (done.stderr.strip().splitlines() or ["no message"])[-1]
    if done.returncode == EXIT_UNAVAILABLE:
        into.skipped = last_words
    elif done.returncode != 0:
        into.failed = f"{run.name}: exit {done.returncode}: {last_words}"
    else:
        try:
            printed = json.loads(done.stdout)
            printed = printed["results"][0] if run.program == "limits_probe" else printed
            for field in fields:
                float(printed[field])
        except (ValueError, KeyError, IndexError, TypeError) as error:
            into.failed = f"{run.name}: unexpected output: {error!r}"
            return
        into.rounds.append(printed)


def show_progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def measure_all(
    goals: tuple[Goal, ...], programs: Programs, rounds: int, seconds: float, with_plot: bool
) -> dict[Run, Measurement]:
    fields: dict[Run, set[str]] = {}
    for figure in (figure for goal in goals for figure in (*goal.limits, goal.figure)):
        fields.setdefault(figure.run, set()).add(figure.field)
    runs = dict.fromkeys(goal_runs(goals), seconds)
    for run in plot_runs() if with_plot else ():
        runs.setdefault(
            run, seconds / 4
        )  # Nobody reads a tail off a curve, and it has many points.
    measurements = {run: Measurement([]) for run in runs}
    for number in range(rounds):
        # Every other round backwards, so that a drift within a round favours neither side.
        for run in list(runs) if number % 2 == 0 else reversed(runs):
            show_progress(f"round {number + 1}/{rounds}: {run.name} {run.transport or ''}")
            measure(run, fields.get(run, {"median_us"}), programs, runs[run], measurements[run])
    show_progress("")
    return measurements


def try_briefly(programs: Programs) -> int:
    """The exit status: 1 unless every job ran, or said why it cannot run here."""
    goals = tuple(goal for goal in GOALS if goal.figure.run.name not in NOT_BRIEF)
    measurements = measure_all(goals, programs, 1, BRIEF_SECONDS, with_plot=False)
    for run, found in measurements.items():
        outcome = found.failed or (f"skipped: {found.skipped}" if found.skipped else "works")
        print(f"{run.name:22} {run.transport or '':4} {outcome}")
    built = all(programs.values())
    return 0 if built and not any(found.failed for found in measurements.values()) else 1


def table(rows: list[Row]) -> str:
    def cell(value: float | None, spread: float | None, field: str) -> str:
        if value is None:
            return "-"
        return text_of(field, value) + (f" ±{50 * spread:.0f}%" if spread else "")

    lines = [("job", "measured", "limit", "ratio", "goal", "met?")]
    for row in rows:
        field = row.goal.figure.field
        lines.append(
            (
                row.goal.title,
                cell(row.measured, row.spread, field),
                cell(row.limit, row.limit_spread, field),
                "-" if row.ratio is None else f"{row.ratio:.2f}x",
                row.goal.bounds_text(),
                row.verdict.value + (f": {row.note}" if row.note else ""),
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, tuple("-" * width for width in widths))
    padded = (
        (text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in lines
    )
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def latency_plot(measurements: dict[Run, Measurement]) -> str | None:
    def medians(runs: list[Run]) -> list[float | None]:
        values = (measurements[run].values("median_us") for run in runs)
        return [statistics.median(rounds) if rounds else None for rounds in values]

    spin = medians([limit("spin_hot")])[0]
    copies = medians([limit("memcpy_warm", size=size) for size in SIZES])
    floor = [None if copy is None or spin is None else spin + 2 * copy for copy in copies]
    stream = medians([limit("tcp_echo", size=size) for size in SIZES])
    curves = []
    for label, color, dashed, values in (
        ("hawser, shm", "#1f6fb4", False, medians([job("echo", size=size) for size in SIZES])),
        ("spinning + 2 memcpys", "#1f6fb4", True, floor),
        (
            "hawser, tcp",
            "#d1580b",
            False,
            medians([job("echo", "tcp", size=size) for size in SIZES]),
        ),
        ("one blocking stream", "#d1580b", True, stream),
    ):
        points = [
            (size, value) for size, value in zip(SIZES, values, strict=True) if value is not None
        ]
        if points:
            curves.append(plot.Curve(label, color, points, dashed))
    return (
        plot.log_log_svg("Echo of a tensor, there and back", SIZE_TEXTS, "µs, median", curves)
        if curves
        else None
    )


def as_json(
    rows: list[Row], measurements: dict[Run, Measurement], options: argparse.Namespace, load: float
) -> dict:
    return {
        "machine": {"system": platform.platform(), "cpus": os.cpu_count(), "load_before": load},
        "rounds": options.rounds,
        "seconds": options.seconds,
        "goals": [
            {
                "job": row.goal.title,
                "field": row.goal.figure.field,
                "measured": row.measured,
                "spread": row.spread,
                "limit": row.limit,
                "limit_spread": row.limit_spread,
                "ratio": row.ratio,
                "goal": row.goal.bounds_text(),
                "verdict": row.verdict.name.lower(),
                "note": row.note,
            }
            for row in rows
        ],
        "runs": [
            dataclasses.asdict(run) | dataclasses.asdict(found)
            for run, found in measurements.items()
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--build", type=Path, default=Path("build/release"), help="where the programs were built"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of measuring per job and round")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg")
    parser.add_argument("--strict", action="store_true", help="exit 1 unless every goal is met")
    parser.add_argument("--brief", action="store_true", help="only try whether the jobs work")
    options = parser.parse_args()
    if options.rounds < 1 or not 0 < options.seconds <= 60:
        parser.error("at least 1 round, and at most 60 seconds per job")
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(1)
    )  # As an exception it also ends the job under way.

    programs = {
        name: find_program(options.build, name) for name in ("limits_probe", "hawser_bench")
    }
    if options.brief:
        return try_briefly(programs)

    notes = []
    load = os.getloadavg()[0]
    if load > 0.5:
        notes.append(
            f"load was {load:.1f} before the start: on a busy machine the figures mean little"
        )
    for missing in (name for name, path in programs.items() if path is None):
        notes.append(f"{missing} not found under {options.build}: its jobs are skipped")

    measurements = measure_all(
        GOALS, programs, options.rounds, options.seconds, options.plot is not None
    )
    rows = [judge(goal, measurements) for goal in GOALS]
    print(table(rows))
    counts = Counter(row.verdict for row in rows)
    print("\n" + ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict))
    print(f"Median of rounds (--rounds {options.rounds}); ± is half the range of the rounds.")

    if options.json:
        options.json.write_text(
            json.dumps(as_json(rows, measurements, options, load), indent=1) + "\n"
        )
    if options.plot:
        svg = latency_plot(measurements)
        if svg:
            options.plot.write_text(svg)
        else:
            notes.append("nothing to plot")
    for note in notes:
        print(f"note: {note}")
    return exit_status(counts, options.strict)


if __name__ == "__main__":
    sys.exit(main())
