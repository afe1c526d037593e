"""What hawser must reach, as data, and how a run is judged by it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

MIB = 1 << 20


@dataclass(frozen=True)
class Run:
    """One command line. Equal runs are the same measurement, however many goals need it."""

    program: str
    name: str
    transport: str | None = None
    pin: str = "free"
    spin_us: int | None = None
    size: int | None = None
    once: bool = False  # Slow and judged by itself, not against a limit: the first round is enough.

    def arguments(self, seconds: float) -> list[str]:
        arguments = ["--probe" if self.program == "limits_probe" else "--job", self.name]
        for option, value in (
            ("transport", self.transport),
            ("spin-us", self.spin_us),
            ("size", self.size),
        ):
            if value is not None:
                arguments += [f"--{option}", str(value)]
        return [*arguments, "--pin", self.pin, "--seconds", str(seconds), "--json"]


def limit(name: str, **options) -> Run:
    return Run("limits_probe", name, **options)


def job(name: str, transport: str = "shm", **options) -> Run:
    return Run("hawser_bench", name, transport, **options)


@dataclass(frozen=True)
class Figure:
    """One field of what a run prints."""

    run: Run
    field: str = "median_us"


@dataclass
class Measurement:
    """What the rounds gave for one run: objects as printed, or the reason why there are none."""

    rounds: list[dict]
    skipped: str | None = None
    failed: str | None = None

    def values(self, field: str) -> list[float]:
        return [printed[field] for printed in self.rounds]


class Verdict(Enum):
    MET = "met"
    MISSED = "MISSED"
    SKIPPED = "skipped"
    FAILED = "FAILED"


def exit_status(verdicts: Iterable[Verdict], strict: bool) -> int:
    """1 if something failed or was not measured and, if strict, unless every goal is met."""
    found = set(verdicts)
    return 1 if Verdict.FAILED in found or (strict and found - {Verdict.MET}) else 0


@dataclass(frozen=True)
class Goal:
    """A bound on a figure: absolute, or relative to the lowest of `limits` times `factor`, or the looser of both."""

    title: str
    figure: Figure
    limits: tuple[Figure, ...] = ()
    factor: int = 1
    at_most: float | None = None
    at_most_ratio: float | None = None
    at_least: float | None = None
    at_least_ratio: float | None = None

    def bounds_text(self) -> str:
        parts = []
        for sign, bound, ratio in (
            ("≤", self.at_most, self.at_most_ratio),
            ("≥", self.at_least, self.at_least_ratio),
        ):
            if bound is not None:
                parts.append(f"{sign} {text_of(self.figure.field, bound)}")
            if ratio is not None:
                parts.append(f"{sign} {ratio:g}x")
        return " or ".join(parts)

    def is_met(self, measured: float, ratio: float | None) -> bool:
        return (
            (self.at_most is not None and measured <= self.at_most)
            or (self.at_least is not None and measured >= self.at_least)
            or (
                self.at_most_ratio is not None and ratio is not None and ratio <= self.at_most_ratio
            )
            or (
                self.at_least_ratio is not None
                and ratio is not None
                and ratio >= self.at_least_ratio
            )
        )


@dataclass
class Row:
    goal: Goal
    verdict: Verdict
    measured: float | None = None
    spread: float | None = None  # Largest minus smallest round, as a share of the median.
    limit: float | None = None
    limit_spread: float | None = None
    ratio: float | None = None
    note: str = ""


def judge(goal: Goal, measurements: dict[Run, Measurement]) -> Row:
    row = Row(goal, Verdict.SKIPPED)
    figures = (goal.figure, *goal.limits)
    if goal.limits and all(measurements[figure.run].rounds for figure in goal.limits):
        best = min(
            goal.limits,
            key=lambda figure: statistics.median(measurements[figure.run].values(figure.field)),
        )
        values = measurements[best.run].values(best.field)
        row.limit = goal.factor * statistics.median(values)
        row.limit_spread = spread(values)
    if measurements[goal.figure.run].rounds:
        values = measurements[goal.figure.run].values(goal.figure.field)
        row.measured = statistics.median(values)
        row.spread = spread(values)
    if row.measured is not None and row.limit:
        row.ratio = row.measured / row.limit

    failed = [
        measurements[figure.run].failed for figure in figures if measurements[figure.run].failed
    ]
    skipped = [
        measurements[figure.run].skipped for figure in figures if measurements[figure.run].skipped
    ]
    if failed:
        row.verdict, row.note = Verdict.FAILED, failed[0]
    elif skipped:
        row.verdict, row.note = Verdict.SKIPPED, skipped[0]
    else:
        row.verdict = Verdict.MET if goal.is_met(row.measured, row.ratio) else Verdict.MISSED
    return row


def spread(values: list[float]) -> float | None:
    middle = statistics.median(values)
    return (max(values) - min(values)) / middle if middle else None


def text_of(field: str, value: float) -> str:
    """A value with its unit, which the field's name tells."""
    if field.endswith("_us"):
        return f"{value:.3g} µs" if value < 1000 else f"{value / 1000:.3g} ms"
    if field.endswith("_per_s"):
        return f"{value:,.0f}/s"
    if field.endswith("_share"):
        return f"{100 * value:.3g}%"
    if field.endswith("_bytes"):
        return f"{value / MIB:.3g} MiB"
    if field.endswith("_seconds"):
        return f"{value:.3g} s"
    raise ValueError(f"no unit for {field}")


def _asleep(pin: str) -> Goal:
    return Goal(
        f"no-op call, shm, asleep, {'two cores' if pin == 'two' else 'free placement'}",
        Figure(job("noop_asleep", pin=pin)),
        (Figure(limit("futex_asleep", pin=pin)), Figure(limit("eventfd_asleep", pin=pin))),
        at_most_ratio=1.2,
    )


def _beside_compute(title: str, name: str, field: str, **bound: float) -> Goal:
    spinning_off = Figure(job(name, spin_us=0), field)
    return Goal(
        f"{title}, beside 2 computing processes, against no spinning",
        Figure(job(name), field),
        (spinning_off,),
        **bound,
    )


_COPY = Figure(limit("memcpy_warm", size=64 * MIB))
_IDLE = job("idle_64", once=True)

GOALS = (
    Goal(
        "no-op call, shm, hot",
        Figure(job("noop_hot")),
        (Figure(limit("spin_hot")),),
        at_most=3,
        at_most_ratio=8,
    ),
    Goal("no-op call, shm, hot, p99", Figure(job("noop_hot"), "p99_us"), at_most=10),
    _asleep("free"),
    _asleep("two"),
    Goal(
        "no-op call, tcp, asleep",
        Figure(job("noop_asleep", "tcp")),
        (Figure(limit("tcp_blocking_asleep")),),
        at_most_ratio=1.4,
    ),
    Goal(
        "no-op call, tcp, hot",
        Figure(job("noop_hot", "tcp")),
        (Figure(limit("tcp_polling_hot")),),
        at_most_ratio=1.8,
    ),
    # Rounds of a no-op call differ by several times as much.
    Goal(
        "profiling while it is off, against a no-op call",
        Figure(job("profiling_off")),
        (Figure(job("noop_hot")),),
        at_most_ratio=0.02,
    ),
    Goal("calls, 64 in flight, shm", Figure(job("calls_64"), "calls_per_s"), at_least=1_000_000),
    Goal(
        "calls, 64 in flight, tcp", Figure(job("calls_64", "tcp"), "calls_per_s"), at_least=200_000
    ),
    Goal(
        "64 MiB echo, shm",
        Figure(job("echo", size=64 * MIB)),
        (_COPY,),
        factor=2,
        at_most_ratio=1.1,
    ),
    Goal(
        "64 MiB echo, shm, handed back",
        Figure(job("echo_handback", size=64 * MIB)),
        (_COPY,),
        at_most_ratio=1.1,
    ),
    Goal(
        "64 MiB echo, tcp",
        Figure(job("echo", "tcp", size=64 * MIB)),
        (Figure(limit("tcp_echo", size=64 * MIB)),),
        at_most_ratio=0.8,
    ),
    Goal(
        "calls, 4 processes all to all, against one caller",
        Figure(job("all_to_all"), "calls_per_s"),
        (Figure(job("calls_64"), "calls_per_s"),),
        at_least_ratio=1,
    ),
    _beside_compute("sync call", "beside_compute_sync", "median_us", at_most_ratio=1.5),
    _beside_compute("calls", "beside_compute_async", "calls_per_s", at_least_ratio=0.8),
    Goal("64 connected nodes, idle: CPU", Figure(_IDLE, "idle_cpu_share"), at_most=0.02),
    Goal("one call every 10 ms: CPU", Figure(_IDLE, "calling_cpu_share"), at_most=0.05),
    Goal("default spin limit", Figure(_IDLE, "spin_limit_us"), at_most=50),
    # A leak of the smallest heap block per call would be 30 times as much; less than this is the allocator's noise.
    Goal(
        "1,000,000 calls: memory growth",
        Figure(job("memory_1m", once=True), "rss_growth_bytes"),
        at_most=MIB,
    ),
    Goal(
        "64 processes, all connected",
        Figure(job("connect_64", once=True), "connect_seconds"),
        at_most=20,
    ),
)
