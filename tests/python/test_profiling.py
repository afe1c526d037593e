"""Profiles of calls: torch's two profilers, and hawser's own timeline."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peers
import pytest
import scripted
import torch
from torch.autograd.profiler_legacy import profile as legacy_profile

import hawser
from hawser import profiler, timelines, traces
from hawser.profiler import Kind


@pytest.fixture(scope="module")
def world() -> Iterator[hawser.Node]:
    """A node beside which "peer" and "other" run."""
    with peers.world("peer", "other") as node:
        yield node


def compute(x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.profiler.record_function("## compute ##"):
        return torch.add(x, x).relu()


def multiply(x: torch.Tensor) -> torch.Tensor:
    return torch.mul(x, x)


def relay(to: str, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = hawser.default_node().run(to, compute, x)
    return result


def fail(x: torch.Tensor) -> None:
    torch.add(x, x)
    raise ValueError("after an addition")


def profile_itself(x: torch.Tensor) -> list[str]:
    with torch.profiler.profile() as own:
        compute(x)
    return [event.key for event in own.key_averages()]


def names(events: Any) -> list[str]:
    return [event.name for event in events]


# --- torch's legacy profiler ---


def key(node: hawser.Node, style: str, function: str, to: str = "peer") -> str:
    return f"rpc_{style}#{function}({node.name} -> {to})"


def test_legacy_shows_the_call_and_what_it_did_there(world: hawser.Node) -> None:
    with legacy_profile(record_shapes=True) as prof:
        world.run("peer", compute, torch.ones(3, 4))
    prefix = key(world, "sync", "compute") + "#remote_op: "
    events = {event.name: event for event in prof.function_events}
    assert not events[key(world, "sync", "compute")].is_remote
    add = events[prefix + "aten::add"]
    assert add.is_remote
    assert add.input_shapes[:2] == [[3, 4], [3, 4]]
    scope = events[prefix + "## compute ##"]
    assert scope.time_range.start <= add.time_range.start <= add.time_range.end
    assert add in scope.cpu_children
    prof.key_averages()


def test_legacy_follows_nested_calls(world: hawser.Node) -> None:
    with legacy_profile() as prof:
        world.run("peer", relay, "other", torch.ones(2))
    outer = key(world, "sync", "relay") + "#remote_op: "
    inner = "rpc_sync#compute(peer -> other)"
    seen = names(prof.function_events)
    assert outer + inner in seen
    assert outer + inner + "#remote_op: aten::add" in seen


def test_legacy_keeps_concurrent_calls_apart(world: hawser.Node) -> None:
    with legacy_profile() as prof:
        calls = [
            world.call("peer", function, torch.ones(2))
            for _ in range(20)
            for function in (compute, multiply)
        ]
        for call in calls:
            call.wait()
    seen = names(prof.function_events)
    assert seen.count(key(world, "async", "compute")) == 20
    assert seen.count(key(world, "async", "compute") + "#remote_op: aten::add") == 20
    assert seen.count(key(world, "async", "multiply") + "#remote_op: aten::mul") == 20
    assert key(world, "async", "multiply") + "#remote_op: aten::add" not in seen


def test_legacy_keeps_threads_apart(world: hawser.Node) -> None:
    seen: dict[str, list[str]] = {}

    def work(function: Any) -> None:
        with legacy_profile() as prof:
            for _ in range(10):
                world.run("peer", function, torch.ones(2))
        seen[function.__name__] = names(prof.function_events)

    threads = [threading.Thread(target=work, args=(each,)) for each in (compute, multiply)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not any("mul" in name for name in seen["compute"])
    assert not any("add" in name for name in seen["multiply"])
    assert seen["compute"].count(key(world, "sync", "compute") + "#remote_op: aten::add") == 10


def test_legacy_has_what_a_failed_call_did(world: hawser.Node) -> None:
    with legacy_profile() as prof:
        with pytest.raises(ValueError, match="after an addition"):
            world.run("peer", fail, torch.ones(2))
        world.run("peer", compute, torch.ones(2))
    seen = names(prof.function_events)
    assert key(world, "sync", "fail") + "#remote_op: aten::add" in seen
    assert key(world, "sync", "compute") + "#remote_op: aten::add" in seen


def test_legacy_shows_references(world: hawser.Node) -> None:
    with legacy_profile() as prof:
        ref = world.remote("peer", compute, torch.ones(2))
        ref.to_here()
        ref.rpc_sync().sum()
    seen = names(prof.function_events)
    assert key(world, "remote", "compute") + "#remote_op: aten::add" in seen
    assert f"to_here#({world.name})->(peer)" in seen
    assert key(world, "sync", "sum") + "#remote_op: aten::sum" in seen


def test_nothing_is_recorded_without_a_profiler(world: hawser.Node) -> None:
    world.run("peer", compute, torch.ones(2))
    with legacy_profile() as prof:
        pass
    world.run("peer", compute, torch.ones(2))
    assert not prof.function_events


def negate_often(times: int) -> None:
    x = torch.ones(1)
    for _ in range(times):
        torch.neg(x)


def test_a_profile_of_serving_says_that_it_is_not_complete(world: hawser.Node) -> None:
    world._native.begin_serving_profile(
        torch.autograd.ProfilerConfig(
            torch.autograd.ProfilerState.CPU,
            *(False, False, False, False, False),
            torch.profiler._ExperimentalConfig(),
        )
    )
    world.run(world.name, negate_often, 66_000)
    with pytest.warns(RuntimeWarning, match=r"not complete: 0 calls and 46\d events did not fit"):
        (call,) = world._native.end_serving_profile()
    assert sum(len(events) for events in call) > 2 * 65_000


# --- torch.profiler ---


@pytest.mark.parametrize("profile", [torch.profiler.profile, torch.autograd.profiler.profile])
def test_kineto_shows_what_the_callee_did(world: hawser.Node, profile: Any) -> None:
    with profile() as prof:
        for _ in range(3):
            world.run("peer", relay, "other", torch.ones(2))
        torch.ones(2).cos()
    counts = {event.key: event.count for event in prof.key_averages()}
    call = f"rpc#relay({world.name} -> peer)"
    nested = "rpc_sync#compute(peer -> other)"
    assert counts["aten::cos"] == 1
    assert counts[call] == 3
    assert counts[f"{call}#remote_op: {nested}"] == 3
    assert counts[f"{call}#remote_op: {nested}#remote_op: aten::add"] == 3


def test_kineto_ends_before_the_call_does(world: hawser.Node) -> None:
    with torch.profiler.profile():
        call = world.call("peer", time.sleep, 0.2)
    call.wait()


def test_the_callee_may_profile_itself(world: hawser.Node) -> None:
    with torch.profiler.profile() as prof:
        own = world.run("peer", profile_itself, torch.ones(2))
    assert "aten::add" in own
    seen = [event.key for event in prof.key_averages()]
    assert f"rpc#profile_itself({world.name} -> peer)#remote_op: aten::add" in seen


def test_two_callers_may_profile_at_once(world: hawser.Node) -> None:
    def work() -> None:
        with legacy_profile():
            for _ in range(20):
                world.run("peer", compute, torch.ones(2))

    threads = [threading.Thread(target=work) for _ in range(3)]
    with torch.profiler.profile() as prof:
        for thread in threads:
            thread.start()
        for _ in range(20):
            world.run("peer", compute, torch.ones(2))
        for thread in threads:
            thread.join()
    counts = {event.key: event.count for event in prof.key_averages()}
    assert counts[f"rpc#compute({world.name} -> peer)#remote_op: aten::add"] == 20


# --- the timeline ---


@pytest.fixture(scope="module")
def timeline(world: hawser.Node) -> profiler.profile:
    with profiler.profile(record_shapes=True) as recorded:
        for _ in range(4):
            world.run("peer", relay, "other", torch.ones(1000))
        calls = [world.call("other", compute, torch.ones(10)) for _ in range(3)]
        for call in calls:
            call.wait()
        torch.ones(2).cos()
    return recorded


def test_timeline_has_all_processes(world: hawser.Node, timeline: profiler.profile) -> None:
    assert [process.name for process in timeline.processes] == [world.name, "peer", "other"]
    assert len({process.pid for process in timeline.processes}) == 3
    where = {(event.process.name, event.name) for event in timeline.events}
    assert (world.name, "aten::cos") in where
    assert ("other", "aten::add") in where
    assert ("peer", "aten::add") not in where
    assert timeline.dropped == 0


def test_timeline_has_both_sides_of_each_call(timeline: profiler.profile) -> None:
    calls = {event.call: event for event in timeline.events if event.kind == Kind.CALL}
    services = {event.call: event for event in timeline.events if event.kind == Kind.SERVICE}
    assert len(calls) == 4 + 4 + 3
    assert calls.keys() == services.keys()
    for number, call in calls.items():
        service = services[number]
        assert call.start_ns <= call.begun_ns <= call.end_ns
        assert service.start_ns <= service.begun_ns <= service.done_ns <= service.end_ns
        # One host, one clock.
        assert call.begun_ns <= service.start_ns <= service.end_ns <= call.end_ns


def test_timeline_is_a_chrome_trace(timeline: profiler.profile, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    timeline.export_chrome_trace(path)
    trace = json.loads(path.read_text())
    events = trace["traceEvents"]
    arrows: dict[tuple[str, int], list[str]] = {}
    slices = [event for event in events if event["ph"] == "X"]
    for event in events:
        if event["ph"] in "sf":
            arrows.setdefault((event["name"], event["id"]), []).append(event["ph"])
            assert any(
                each["pid"] == event["pid"]
                and each["tid"] == event["tid"]
                and each["ts"] - 1e-3 <= event["ts"] <= each["ts"] + each["dur"] + 1e-3
                for each in slices
            ), "an arrow must touch a slice"
    assert len(arrows) == 2 * 11
    assert all(sorted(ends) == ["f", "s"] for ends in arrows.values())
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for each in slices:
        if each["cat"] in ("call", "service"):
            tracks.setdefault((each["pid"], each["tid"]), []).append(
                (each["ts"], each["ts"] + each["dur"])
            )
    for spans in tracks.values():
        spans.sort()
        assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False)), "no overlap"
    stated = {
        process["name"]: process["clock_error_us"] for process in trace["hawser"]["processes"]
    }
    assert stated["peer"] > 0
    titles = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert any("clock within" in title for title in titles)


def test_timeline_says_where_the_time_went(timeline: profiler.profile, tmp_path: Path) -> None:
    text = timeline.summary()
    line = next(line for line in text.splitlines() if line.startswith("relay"))
    assert "-> peer" in line and " 4 " in line
    assert "other is known to within" in text
    path = tmp_path / "trace.json"
    timeline.export_chrome_trace(path)
    command = [
        sys.executable,
        "-c",
        "from hawser.cli import main; raise SystemExit(main())",
        "trace",
    ]
    printed = subprocess.run(
        [*command, "summary", path], capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == text.strip()
    picture = tmp_path / "call.svg"
    subprocess.run([*command, "picture", path, "--call", "0", "-o", picture], check=True)
    assert picture.read_text().startswith("<svg") and "relay" in picture.read_text()
    (tmp_path / "other.json").write_text("[]")
    refused = subprocess.run(
        [*command, "summary", tmp_path / "other.json"], capture_output=True, text=True
    )
    assert refused.returncode == 1 and "is not a timeline" in refused.stderr


def drawn_call(number: int, answered: bool) -> list[dict[str, Any]]:
    """A call as a timeline has it; each of its parts takes a time of its own."""

    def part(name: str, kind: str, start: float, end: float, **args: Any) -> dict[str, Any]:
        args["call"] = number
        return {"name": name, "cat": kind, "ts": start, "dur": end - start, "args": args}

    named = {"function": "f", "from": "a", "to": "b", "bytes": 2048}
    if not answered:
        return [
            part("rpc_sync#f(a -> b)", "call", 5_000, 35_000, **named),
            part("write request", "phase", 5_000, 5_003),
        ]
    off = 1_000_000  # another clock
    return [
        part("rpc_sync#f(a -> b)", "call", 0, 1_000, **named),
        part("write request", "phase", 0, 30),
        part("f", "service", off + 40, off + 900, bytes=3 << 20),
        part("queued", "phase", off + 40, off + 200),
        part("run", "phase", off + 200, off + 840),
        part("write answer", "phase", off + 840, off + 900),
    ]


def cells(summary: str) -> list[dict[str, str]]:
    """The lines of a summary, by its heads; columns have two spaces between them."""
    lines = summary.split("\n\n")[0].splitlines()
    heads = re.split(r"  +", lines[0])
    return [dict(zip(heads, re.split(r"  +", line), strict=True)) for line in lines[2:]]


def test_each_column_of_the_summary_is_what_it_says() -> None:
    trace = {
        "hawser": {"processes": [], "dropped_events": 0},
        "traceEvents": drawn_call(1, answered=True),
    }
    assert cells(traces.summary(trace)) == [
        {
            "function": "f",
            "from -> to": "a -> b",
            "calls": "1",
            "unanswered": "-",
            "mean us": "1000.0",
            "max us": "1000.0",
            "transit": "110.0 (11%)",
            "queueing": "160.0 (16%)",
            "execution": "640.0 (64%)",
            "serialisation": "90.0 (9%)",
            "sent": "2.0 KiB",
            "received": "3.0 MiB",
        }
    ]
    assert "unanswered if" not in traces.summary(trace)


def test_calls_without_an_answer_are_in_the_summary() -> None:
    trace: dict[str, Any] = {
        "hawser": {"processes": [], "dropped_events": 0},
        "traceEvents": drawn_call(1, answered=True) + drawn_call(2, answered=False),
    }
    (line,) = cells(traces.summary(trace))
    assert (line["calls"], line["unanswered"]) == ("2", "1")
    assert (line["mean us"], line["max us"]) == ("15500.0", "30000.0")
    assert line["execution"] == "640.0 (64%)", "of what is known"
    assert line["sent"] == "4.0 KiB"
    trace["traceEvents"] = drawn_call(2, answered=False)
    (line,) = cells(traces.summary(trace))
    assert (line["unanswered"], line["execution"], line["received"]) == ("1", "-", "0 B")
    assert "unanswered if" in traces.summary(trace)


def test_calls_that_run_out_of_time_are_in_the_timeline(world: hawser.Node) -> None:
    with profiler.profile() as recorded:
        with pytest.raises(hawser.Timeout), hawser.deadline(0.05):
            world.run("peer", time.sleep, 0.5)
        world.run("peer", compute, torch.ones(2))
    lines = {line["function"]: line for line in cells(recorded.summary())}
    assert lines["sleep"]["unanswered"] == "1"
    assert float(lines["sleep"]["mean us"]) >= 50_000
    assert lines["compute"]["unanswered"] == "-"


def test_the_time_of_a_slow_function_is_execution(world: hawser.Node) -> None:
    with profiler.profile() as recorded:
        world.run("peer", time.sleep, 0.2)
    (life,) = traces.lives(recorded.as_chrome_trace())
    assert life.execution >= 200_000
    assert life.total - life.execution < life.execution, "which is where its time went"


def test_the_time_for_which_a_busy_node_lets_a_request_wait_is_queueing() -> None:
    with peers.world("busy", max_threads=2) as node:
        node.run("busy", compute, torch.ones(2))
        with profiler.profile() as recorded:
            calls = [node.call("busy", time.sleep, 0.3) for _ in range(2)]
            for call in calls:
                call.wait()
    first, second = traces.lives(recorded.as_chrome_trace())
    assert second.execution >= 300_000
    assert second.queueing >= 150_000, (first, second)
    assert second.queueing > second.transit


def test_bytes_are_those_of_the_values(world: hawser.Node) -> None:
    with profiler.profile() as recorded:
        world.run("peer", torch.sum, torch.ones(10_000))
        world.run("peer", torch.ones, [20_000])
    few, many = traces.lives(recorded.as_chrome_trace())
    overhead = 1_000  # names, shapes
    assert 40_000 <= few.request_bytes <= 40_000 + overhead
    assert 4 <= few.answer_bytes <= overhead
    assert many.request_bytes <= overhead
    assert 80_000 <= many.answer_bytes <= 80_000 + overhead


def test_a_timeline_can_be_made_once() -> None:
    timeline = profiler.profile()
    with timeline:
        torch.ones(2)
    with pytest.raises(RuntimeError, match="once"), timeline:
        pass
    assert "aten::ones" in names(timeline.events)


def test_a_timeline_within_one(world: hawser.Node) -> None:
    with profiler.profile() as outer:
        with profiler.profile() as inner:
            world.run("peer", compute, torch.ones(2))
        torch.ones(2).cos()
    assert "aten::add" in names(inner.events)
    assert "aten::add" in names(outer.events)
    assert "aten::cos" not in names(inner.events)


def test_memory_is_recorded_on_request(world: hawser.Node) -> None:
    with profiler.profile(profile_memory=True) as recorded:
        world.run("peer", compute, torch.ones(1000))
    there = [e for e in recorded.events if e.kind == Kind.MEMORY and e.process.name == "peer"]
    assert sum(event.bytes for event in there if event.bytes > 0) >= 4000


@pytest.mark.parametrize("outer_all", [False, True])
@pytest.mark.parametrize("inner_all", [False, True])
def test_each_of_two_timelines_gets_what_it_wants(
    world: hawser.Node, outer_all: bool, inner_all: bool
) -> None:
    def wanting(everything: bool) -> profiler.profile:
        return profiler.profile(record_shapes=everything, profile_memory=everything)

    with wanting(outer_all) as outer, wanting(inner_all) as inner:
        torch.ones(2).cos()
        world.run("peer", compute, torch.ones(3))
    for recorded, everything in ((outer, outer_all), (inner, inner_all)):
        for where, name in ((world.name, "aten::cos"), ("peer", "aten::add")):
            events = [event for event in recorded.events if event.process.name == where]
            operator = next(event for event in events if event.name == name)
            assert bool(operator.shapes) == everything
            assert any(event.kind == Kind.MEMORY for event in events) == everything


def test_a_timeline_ends_on_its_own_thread() -> None:
    recorded = profiler.profile()
    refused: list[BaseException] = []

    def end() -> None:
        try:
            recorded.__exit__()
        except RuntimeError as error:
            refused.append(error)

    with recorded:
        elsewhere = threading.Thread(target=end)
        elsewhere.start()
        elsewhere.join()
        torch.ones(2).cos()
    assert "thread that began it" in str(refused[0])
    assert "aten::cos" in names(recorded.events)


def test_a_timeline_that_is_dropped_elsewhere_leaves_that_thread_alone() -> None:
    dropped = []

    def begin() -> None:
        dropped.append(profiler.profile().__enter__())

    beginning = threading.Thread(target=begin)
    beginning.start()
    beginning.join()
    with profiler.profile() as recorded:
        dropped.clear()
        torch.ones(2).cos()
    assert "aten::cos" in names(recorded.events)


# --- scripts ---


def test_torchs_profilers_and_timelines_show_scripts(world: hawser.Node) -> None:
    for name in ("peer", "other"):
        world.run(name, scripted.count_gil_waits, False)  # which imports the scripts there

    def calls() -> None:
        world.run("peer", scripted.scaled, torch.ones(2))
        world.run("peer", scripted.call, "other", torch.ones(2), torch.ones(2))
        scripted.call_later("peer", torch.ones(2), torch.ones(2)).wait()
        scripted.create_and_fetch("peer", torch.ones(2))

    module = "__torch__.scripted."
    to_peer = f"({world.name} -> peer)"
    with torch.profiler.profile() as kineto:
        calls()
    counts = {event.key: event.count for event in kineto.key_averages()}
    assert counts[f"rpc#{module}scaled{to_peer}#remote_op: aten::mul"] == 2, (
        "one of them stays there"
    )
    assert counts[f"rpc#{module}add{to_peer}#remote_op: aten::add"] == 1
    nested = f"rpc_async_jit#{module}add(peer -> other)"
    assert counts[f"rpc#{module}call{to_peer}#remote_op: {nested}#remote_op: aten::add"] == 1
    assert counts[f"to_here#({world.name})->(peer)"] == 1
    with profiler.profile() as recorded:
        calls()
    lives = {
        (life.function, life.source, life.peer): life
        for life in traces.lives(recorded.as_chrome_trace())
    }
    assert lives.keys() == {
        (f"{module}scaled", world.name, "peer"),
        (f"{module}call", world.name, "peer"),
        (f"{module}add", "peer", "other"),
        (f"{module}add", world.name, "peer"),
        ("to_here", world.name, "peer"),
    }
    assert ("other", "aten::add") in {(e.process.name, e.name) for e in recorded.events}


def test_torchs_profiler_beside_a_timeline(world: hawser.Node) -> None:
    with torch.profiler.profile() as kineto, profiler.profile() as recorded:
        world.run("peer", relay, "other", torch.ones(2))
    keys = {event.key for event in kineto.key_averages()}
    call = f"rpc#relay({world.name} -> peer)"
    assert f"{call}#remote_op: rpc_sync#compute(peer -> other)" in keys
    assert f"{call}#remote_op: aten::add" in keys
    assert len(traces.lives(recorded.as_chrome_trace())) == 2


# --- backward passes ---

weight = torch.full((3,), 2.0, requires_grad=True)


def times_weight(x: torch.Tensor) -> torch.Tensor:
    return x * weight


def relay_times_weight(to: str, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = hawser.default_node().run(to, times_weight, x * 2) + x
    return result


def train_once(node: hawser.Node, passes: int = 1) -> None:
    """The caller has a leaf, "peer" computes, and "other" has another leaf."""
    x = torch.ones(3, requires_grad=True)
    with hawser.autograd.context() as context:
        loss = node.run("peer", relay_times_weight, "other", x).sum()
        for number in range(passes):
            context.backward([loss], retain_graph=number + 1 < passes)


@pytest.fixture(scope="module")
def training(world: hawser.Node) -> profiler.profile:
    with profiler.profile() as recorded:
        train_once(world)
    return recorded


def test_timeline_has_the_parts_of_a_backward_pass(
    world: hawser.Node, training: profiler.profile
) -> None:
    parts = {event.process.name: event for event in training.events if event.kind == Kind.PART}
    assert parts.keys() == {world.name, "peer", "other"}
    assert len({part.in_pass for part in parts.values()}) == 1
    whole = parts[world.name]
    for part in parts.values():
        assert whole.start_ns <= part.start_ns <= part.begun_ns <= part.done_ns <= part.end_ns
        assert part.end_ns <= whole.end_ns
    where = {(event.process.name, event.name) for event in training.events}
    assert ("peer", "MulBackward0") in where and ("other", "MulBackward0") in where


def test_timeline_has_both_sides_of_gradients(
    world: hawser.Node, training: profiler.profile
) -> None:
    calls = {event.call: event for event in training.events if event.kind == Kind.CALL}
    gradients = [e for e in training.events if e.kind == Kind.SERVICE and e.in_pass]
    sent = {(calls[each.call].process.name, each.process.name) for each in gradients}
    assert sent == {
        (world.name, "peer"),
        ("peer", "other"),
        ("other", "peer"),
        ("peer", world.name),
    }
    for each in gradients:
        call = calls[each.call]
        assert call.name == f"backward#gradients({call.process.name} -> {each.process.name})"
        assert call.begun_ns <= each.start_ns <= each.begun_ns <= each.end_ns <= call.end_ns
    assert "gradients" in training.summary()


def test_arrows_lead_from_forward_to_backward(
    world: hawser.Node, training: profiler.profile
) -> None:
    trace = training.as_chrome_trace()["traceEvents"]
    arrows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for event in trace:
        if event["ph"] in "stf" and event["name"].startswith("gradient of"):
            arrows.setdefault((event["name"], event["id"]), []).append(event)
    services = [event for event in training.events if event.kind == Kind.SERVICE]
    messages = {m for each in services if not each.in_pass for m in (each.received, each.sent)}
    assert len(messages) == 4
    assert {int(number, 16) for _, number in arrows} == messages
    assert len(arrows) == 2 * 4, "from the sender, and from the receiver, of each message"
    for ends in arrows.values():
        assert [end["ph"] for end in ends] == ["s", "f"]
        assert ends[0]["pid"] == ends[1]["pid"] and ends[0]["ts"] < ends[1]["ts"]
        kinds = []
        for end in ends:
            touched = [
                event
                for event in trace
                if event["ph"] == "X"
                and (event["pid"], event["tid"]) == (end["pid"], end["tid"])
                and event["ts"] - 1e-3 <= end["ts"] <= event["ts"] + event["dur"]
            ]
            kinds.append({"pass" in event["args"] for event in touched if "bytes" in event["args"]})
        assert kinds == [{False}, {True}]


def test_a_second_pass_continues_the_arrows(world: hawser.Node) -> None:
    with profiler.profile() as recorded:
        train_once(world, passes=2)
    arrows: dict[tuple[str, str], str] = {}
    for event in recorded.as_chrome_trace()["traceEvents"]:
        if event["ph"] in "stf" and event["name"].startswith("gradient of"):
            arrows[event["name"], event["id"]] = (
                arrows.get((event["name"], event["id"]), "") + event["ph"]
            )
    assert set(arrows.values()) == {"stf"}
    assert len({e.in_pass for e in recorded.events if e.kind == Kind.PART}) == 2


def test_a_pass_of_another_is_not_in_the_timeline(world: hawser.Node) -> None:
    ended = threading.Event()

    def train_too() -> None:
        while not ended.is_set():
            train_once(world)

    unwatched = threading.Thread(target=train_too)
    unwatched.start()
    try:
        for _ in range(5):
            with profiler.profile() as recorded:
                train_once(world)
            parts = [event for event in recorded.events if event.kind == Kind.PART]
            assert len(parts) == 3
            assert len({part.in_pass for part in parts}) == 1
            assert names(recorded.events).count("MulBackward0") == 2
    finally:
        ended.set()
        unwatched.join()


def test_torch_profilers_show_backward_of_other_nodes(world: hawser.Node) -> None:
    to_peer = f"backward#gradients({world.name} -> peer)"
    with torch.profiler.profile() as kineto:
        train_once(world)
    keys = {event.key for event in kineto.key_averages()}
    assert f"{to_peer}#remote_op: MulBackward0" in keys
    with legacy_profile() as legacy:
        train_once(world)
    remote = [event for event in legacy.function_events if event.is_remote]
    deep = f"{to_peer}#remote_op: backward#gradients(peer -> other)#remote_op: MulBackward0"
    assert deep in names(remote)
    assert names(legacy.function_events).count("torch::distributed::autograd::backward") == 1


# --- timelines as a whole ---

_TEXT = re.compile(r'<text x="([0-9.]+)" y="([0-9.]+)" text-anchor="(\w+)"[^>]*>([^<]*)</text>')


def test_the_picture_of_a_timeline_can_be_read(
    world: hawser.Node, training: profiler.profile, tmp_path: Path
) -> None:
    path = tmp_path / "step.json"
    training.export_chrome_trace(path)
    command = "from hawser.cli import main; raise SystemExit(main())"
    svg = subprocess.run(
        [sys.executable, "-c", command, "trace", "timeline", path],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert svg.startswith("<svg") and svg.endswith("</svg>\n")
    for name in (world.name, "peer", "other", "backward", "serving", "calls"):
        assert f">{name}</text>" in svg
    assert svg.count("url(#gradient)") == 2 * 4
    assert svg.count("url(#request)") == 2 + 4
    boxes = []
    for x, y, anchor, text in _TEXT.findall(svg):
        width = 6 * len(text)  # as the letters of the picture are counted
        left = float(x) - {"start": 0, "middle": width / 2, "end": width}[anchor]
        boxes.append((left, float(y) - 10, left + width, float(y), text))
    assert len(boxes) > 20
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
            assert apart, f"{a[4]!r} and {b[4]!r} overlap"


def test_a_stretch_of_a_timeline(training: profiler.profile) -> None:
    trace = training.as_chrome_trace()
    part = next(e for e in trace["traceEvents"] if e.get("cat") == "part")
    end = part["ts"] + part["dur"]
    svg = timelines.picture(trace, part["ts"], end)
    assert f"{part['dur'] / 1000:.2f} ms" in svg
    assert "\u2192 peer" in svg and "relay" not in svg, "the forward pass was before"
    with pytest.raises(ValueError, match="no time between"):
        timelines.picture(trace, end, end)


def test_timelines_of_two_threads_in_one(world: hawser.Node) -> None:
    recorded = [profiler.profile(), profiler.profile()]

    def work(timeline: profiler.profile) -> None:
        with timeline:
            train_once(world)

    threads = [threading.Thread(target=work, args=(each,)) for each in recorded]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    apart = [each.as_chrome_trace() for each in recorded]
    merged = timelines.merge(apart)
    assert [p["name"] for p in merged["hawser"]["processes"]] == [world.name, "peer", "other"]
    for number, process in enumerate(merged["hawser"]["processes"]):
        stated = [each["hawser"]["processes"][number]["clock_error_us"] for each in apart]
        assert process["clock_error_us"] == max(stated), "both have put their events into it"
    both = [event for each in apart for event in each["traceEvents"] if event["ph"] != "M"]
    events = [event for event in merged["traceEvents"] if event["ph"] != "M"]
    assert len(events) == len(both)
    base = merged["baseTimeNanoseconds"]
    for each in apart:  # nothing has moved in time
        first = min(e["ts"] for e in each["traceEvents"] if e["ph"] == "X")
        at = first + (each["baseTimeNanoseconds"] - base) / 1000
        assert any(e["ts"] == pytest.approx(at, abs=1e-2) for e in events if e["ph"] == "X")
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X" and event["cat"] in ("call", "service", "part"):
            span = (event["ts"], event["ts"] + event["dur"])
            tracks.setdefault((event["pid"], event["tid"]), []).append(span)
    for spans in tracks.values():
        spans.sort()
        assert all(a[1] <= b[0] + 1e-3 for a, b in zip(spans, spans[1:], strict=False))
    assert len(traces.lives(merged)) == sum(len(traces.lives(each)) for each in apart)
    assert timelines.picture(merged).startswith("<svg")
