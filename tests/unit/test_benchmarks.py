"""The benchmarks' arithmetic: a wrong table would be worse than none."""

from __future__ import annotations

import json

import pytest

from benchmarks import _probes
from benchmarks._experiments import EXPERIMENTS
from benchmarks._goals import (
    are_met,
    at_least_times,
    at_most,
    at_most_over,
    at_most_times,
    below,
    faster_times,
    goals_text,
)
from benchmarks._measure import (
    Missing,
    Rounds,
    Statistic,
    UnmeasurableError,
    interleave,
    percentile,
)
from benchmarks._probes import (
    arrivals_after_wait,
    cpu_per_call,
    rate,
    time_each,
    time_threads,
)
from benchmarks._report import to_json
from benchmarks._rows import ROWS, Row, Source, evaluate, pick
from benchmarks._systems._system import SYSTEMS
from benchmarks._table import as_text, cells
from benchmarks.floor import PAYLOAD_NBYTES, pack, unpack

NAMES = [
    "noop_rtt_p50",
    "noop_rtt_p99",
    "noop_rate",
    "callers8_p50",
    "await_rtt_p50",
    "serve_while_idle_p50",
    "serve_after_wait_p99",
    "then_host",
    "then_done",
    "then_device",
    "extract_list100",
    "extract_1e6_ints",
    "idle_cpu",
    "callers2_p50",
    "callers4_p50",
    "callers8_p99",
    "noop_cpu",
]
OURS = Source(system="rpcfut", experiment="noop_rtt", scale=1e-3)
FLOOR = Source(system="floor", experiment="noop_rtt", scale=1e-3)
ROW = Row(
    name="noop",
    unit="us",
    own=OURS,
    peers={"floor": FLOOR},
    goals=(at_most_times(1.5, "floor"),),
)


def _rounds(*samples: float) -> Rounds:
    return Rounds(samples=tuple((sample,) for sample in samples))


@pytest.mark.parametrize(
    ("percent", "wanted"), [(50, 50), (99, 99), (100, 100), (1, 1), (0.5, 1)]
)
def test_a_percentile_is_the_nearest_rank(percent, wanted):
    assert percentile(list(range(100, 0, -1)), percent) == wanted


def test_a_percentile_is_always_a_value_that_was_measured():
    assert percentile([1.0, 2.0], 50) == 1.0
    assert percentile([1.0, 2.0], 99) == 2.0
    assert percentile([7.0], 50) == 7.0


@pytest.mark.parametrize("percent", [0, -1, 100.5])
def test_a_percentile_out_of_range_is_refused(percent):
    with pytest.raises(ValueError, match="wanted 0 < percent <= 100"):
        percentile([1.0], percent)


def test_no_samples_have_no_percentile():
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 50)


def test_the_median_over_rounds_ignores_one_noisy_round():
    rounds = Rounds(samples=((1, 1, 9), (2, 2, 9), (900, 900, 999)))
    assert rounds.median_of(Statistic.P50) == 2
    assert rounds.median_of(Statistic.P99) == 9
    assert rounds.median_of(Statistic.WORST) == 9


def test_systems_take_turns_so_that_noise_falls_on_all():
    order = []

    def sample(name):
        order.append(name)
        return [float(len(order))]

    found = interleave(["a", "b"], 3, sample)
    assert order == ["a", "b", "a", "b", "a", "b"]
    assert found["b"] == _rounds(2.0, 4.0, 6.0)


def test_a_system_that_fails_late_has_no_reading_and_is_not_asked_again():
    asked = []

    def sample(name):
        asked.append(name)
        if asked.count("a") == 2 and name == "a":
            raise UnmeasurableError("it died")
        return [1.0]

    found = interleave(["a", "b"], 4, sample)
    assert found["a"] == Missing(reason="it died")
    assert found["b"] == _rounds(1.0, 1.0, 1.0, 1.0)
    assert asked.count("a") == 2


@pytest.mark.parametrize(
    ("goal", "value", "met"),
    [
        (at_most(40, "ms"), 40.0, True),
        (at_most(40, "ms"), 40.1, False),
        (below(1, "% core"), 1.0, False),
        (below(1, "% core"), 0.0, True),
        (at_most_times(1.5, "peer"), 15.0, True),
        (at_most_times(1.5, "peer"), 15.1, False),
        (at_most_over(1000, "us", "peer"), 1010.0, True),
        (at_most_over(1000, "us", "peer"), 1010.1, False),
        (at_least_times(10, "peer"), 100.0, True),
        (at_least_times(10, "peer"), 99.9, False),
        (faster_times(4, "peer"), 2.5, True),
        (faster_times(4, "peer"), 2.6, False),
    ],
)
def test_a_goal_includes_its_edge_unless_it_says_below(goal, value, met):
    assert goal.check(value, {"peer": 10.0}) is met


GOALS = (at_most_times(1.5, "floor"), faster_times(4, "torch"))


@pytest.mark.parametrize(
    ("value", "peers", "met"),
    [
        (10.0, {"floor": 10.0, "torch": 100.0}, True),
        (10.0, {"floor": 1.0, "torch": 100.0}, False),
        (10.0, {"floor": 10.0, "torch": None}, None),
        (10.0, {"floor": 10.0}, None),
        (10.0, {"floor": 1.0, "torch": None}, False),
        (10.0, {"floor": None, "torch": 10.0}, False),
        (None, {"floor": 10.0, "torch": 100.0}, None),
    ],
)
def test_a_goal_is_met_only_when_every_part_is_known_to_be(value, peers, met):
    assert are_met(GOALS, value, peers) is met


def test_a_row_without_a_goal_is_stated_and_neither_met_nor_missed():
    assert goals_text(()) == "stated"
    assert are_met((), 1.0, {}) is None


def test_every_goal_names_only_peers_of_its_row():
    for row in ROWS:
        full = dict.fromkeys(row.peers, 1.0)
        assert (are_met(row.goals, 1.0, full) is None) == (not row.goals), row.name


def test_rows_are_never_renamed():
    assert [row.name for row in ROWS][: len(NAMES)] == NAMES


def test_every_source_of_a_row_is_measured_by_an_experiment():
    measured = {(system, e.name) for e in EXPERIMENTS for system in e.systems}
    wanted = {(s.system, s.experiment) for row in ROWS for s in row.sources()}
    assert wanted <= measured
    assert {system for system, _ in measured} <= set(SYSTEMS)


def test_only_picks_in_the_order_of_the_table():
    assert [row.name for row in pick(["idle_cpu", "noop_rate"])] == [
        "noop_rate",
        "idle_cpu",
    ]
    assert pick([]) == ROWS


def test_only_with_an_unknown_name_lists_the_rows():
    with pytest.raises(ValueError, match="no row 'noop'; rows: noop_rtt_p50, "):
        pick(["noop"])


def test_a_row_in_its_unit_with_its_peer():
    readings = {
        ("rpcfut", "noop_rtt"): _rounds(50_000, 60_000, 40_000),
        ("floor", "noop_rtt"): _rounds(40_000),
    }
    result = evaluate(ROW, readings)
    assert (result.rpcfut, result.peers) == (50.0, {"floor": 40.0})
    assert result.met is True
    assert not result.notes
    assert cells(result) == (
        "noop",
        "50",
        "us",
        "floor 40 (1.25x)",
        "<= 1.5 x floor",
        "yes",
    )


def test_what_was_not_measured_says_why_and_has_no_number():
    readings = {("rpcfut", "noop_rtt"): Missing(reason="it hung")}
    result = evaluate(ROW, readings)
    assert (result.rpcfut, result.peers, result.met) == (None, {"floor": None}, None)
    assert result.notes == {"rpcfut": "it hung", "floor": "not run"}
    text = as_text({"nproc": 2}, [result])
    assert "nproc: 2" in text
    assert "floor n/a  " in text
    assert "n/a: rpcfut: it hung [noop]" in text
    assert "n/a: floor: not run [noop]" in text


def test_a_run_that_measured_nothing_still_has_every_row():
    results = [evaluate(row, {}) for row in ROWS]
    text = as_text({}, results)
    assert all(row.name in text for row in ROWS)
    assert all(result.met is None for result in results)


def test_the_report_has_exactly_the_agreed_keys():
    readings = {("rpcfut", "noop_rtt"): _rounds(80_000.0)}
    results = [evaluate(row, readings) for row in (ROW, *ROWS)]
    report = json.loads(to_json({"nproc": 2}, results))
    assert set(report) == {"machine", "rows"}
    assert report["machine"] == {"nproc": 2}
    assert len(report["rows"]) == len(ROWS) + 1
    for row in report["rows"]:
        assert list(row) == ["name", "unit", "rpcfut", "peers", "goal", "met"]
        assert isinstance(row["goal"], str)
        assert row["met"] in (True, False, None)
    assert report["rows"][0] == {
        "name": "noop",
        "unit": "us",
        "rpcfut": 80.0,
        "peers": {"floor": None},
        "goal": "<= 1.5 x floor",
        "met": None,
    }


def test_a_zero_of_a_peer_gives_no_ratio():
    readings = {
        ("rpcfut", "noop_rtt"): _rounds(1.0),
        ("floor", "noop_rtt"): _rounds(0.0),
    }
    assert cells(evaluate(ROW, readings))[3] == "floor 0"


def test_a_probe_returns_as_many_samples_as_were_asked_for():
    assert len(time_each(int, 30)) == 30
    assert len(time_threads([int] * 4, 30)) == 4 * 30
    assert len(rate(range, 30)) == 1


def test_b130_what_a_call_takes_of_the_processors_is_counted_per_call(monkeypatch):
    """Of both processes, in ns, without what the warming up took."""
    used_s = {1: 5.0, 2: 7.0}

    def call_all(count):
        used_s[1] += count * 2e-6
        used_s[2] += count * 3e-6

    monkeypatch.setattr(_probes, "cpu_seconds", used_s.__getitem__)
    assert cpu_per_call(call_all, [1, 2], 1000) == [pytest.approx(5000)]


def test_arrivals_that_miss_the_millisecond_are_not_reported():
    """A callee whose wait ended long ago is idle, which is another row."""
    with pytest.raises(UnmeasurableError, match="only 0 of 10 requests"):
        arrivals_after_wait(lambda: 0, lambda sent: sent + 5, 10)


def test_the_floor_sends_24_bytes():
    payload = pack(2**32, 2**62)
    assert len(payload) == PAYLOAD_NBYTES
    assert unpack(payload) == (2**32, 2**62, "noop")
