import structlog
from structlog.testing import CapturingLogger

from extproc.core.snapshot import Freshness, NodeState
from extproc.ops.nodegauges import NodeSample
from extproc.ops.nodelog import LINES_MAX, NodeLog
from tests.core.fleet import view


def told_of(looks: list[list[NodeSample]]) -> list[list[dict[str, object]]]:
    """What the log says at each look."""
    log = NodeLog(structlog.get_logger())
    told = []
    for nodes in looks:
        with structlog.testing.capture_logs() as lines:
            log.look(nodes)
        told.append([dict(line) for line in lines])
    return told


def test_a_node_that_is_left_out_is_told_once_then_its_trial_then_its_return() -> None:
    def out(out_s: float | None) -> list[NodeSample]:
        return [NodeSample(view("a"), Freshness.FRESH, 0.0, out_s=out_s), NodeSample(view("b"), Freshness.FRESH, 0.0)]

    # While a trial runs, or after it failed, the node is out anew: that is the same story.
    looks = [out(None), out(4.96), out(1.0), out(-0.5), out(29.0), out(0.0), out(None), out(None), out(-1.0), []]
    told = [[(line["event"], line["node_id"]) for line in lines] for lines in told_of(looks)]
    assert told == [
        [("node joined", "a"), ("node joined", "b")],
        [("node left out", "a")],
        [],
        [("node on trial", "a")],
        [],
        [],
        [("node back in", "a")],
        [],
        [("node left out", "a"), ("node on trial", "a")],  # a look came late
        told[-1],
    ]
    assert set(told[-1]) == {("node left", "a"), ("node left", "b")}
    (left_out,) = told_of(looks)[1]
    assert left_out == {
        "event": "node left out",
        "log_level": "warning",
        "node_id": "a",
        "host": view("a").snapshot.host,
        "why": "failed requests",
        "seconds": 5.0,
    }


def test_signals_that_are_absent_are_told_once_and_so_are_those_that_come_back() -> None:
    def lacks(*signals: str, why: str = "gone", freshness: Freshness = Freshness.FRESH, **more: object) -> NodeSample:
        absent = tuple((signal, why) for signal in signals)
        return NodeSample(view("a", absent=absent, **more), freshness, 0.0)  # type: ignore[arg-type]

    looks = [
        [lacks("kv_usage", "models")],
        [lacks("kv_usage", "models", why="not believed")],
        [lacks("kv_usage", "requests_running")],
        [lacks(state=NodeState.LOADING)],
        [lacks(freshness=Freshness.STALE)],
        [lacks("kv_usage")],
        [lacks()],
        [lacks()],
        [],
        [lacks("kv_usage")],
    ]
    told = [
        [
            (line["event"], line["signals"], line.get("reason"), line["log_level"])
            for line in lines
            if "signals" in line and line["node_id"] == "a"
        ]
        for lines in told_of(looks)
    ]
    absent, again = "signals absent", "signals told again"
    assert told == [
        [(absent, ["kv_usage", "models"], "gone", "warning")],
        [],
        [(absent, ["requests_running"], "gone", "warning"), (again, ["models"], None, "info")],
        [],
        [],
        [(again, ["requests_running"], None, "info")],
        [(again, ["kv_usage"], None, "info")],
        [],
        [],
        [(absent, ["kv_usage"], "gone", "warning")],
    ]


def test_signals_that_are_absent_for_one_reason_are_one_line() -> None:
    absent = (("kv_usage", "off"), ("models", "wrong"), ("requests_running", "off"))
    (lines,) = told_of([[NodeSample(view("a", absent=absent), Freshness.FRESH, 0.0)]])
    told = {line["reason"]: line["signals"] for line in lines if line["event"] == "signals absent"}
    assert told == {"off": ["kv_usage", "requests_running"], "wrong": ["models"]}


def test_each_change_of_a_node_is_one_line() -> None:
    capturing = CapturingLogger()
    log = NodeLog(
        structlog.wrap_logger(capturing, processors=[lambda _logger, _name, event: (tuple(event.items()), {})])
    )
    ready = NodeSample(view("a"), Freshness.FRESH, 0.0)
    looks = [
        [ready],
        [ready],
        [NodeSample(view("a", state=NodeState.LOADING), Freshness.FRESH, 0.0)],
        [NodeSample(view("a"), Freshness.STALE, 6.0)],
        [ready],
        [NodeSample(view("a", host="10.9.9.9:1"), Freshness.FRESH, 0.0)],
        [],
        [],
    ]
    told = []
    for nodes in looks:
        log.look(nodes)
        told.append([dict(call.args)["event"] for call in capturing.calls])
        capturing.calls.clear()
    assert told == [
        ["node joined"],
        [],
        ["node not ready", "no node is fresh and ready: silent ones are served in turn, others not at all"],
        ["node silent"],
        ["node ready"],
        ["node ready"],
        ["node left"],
        [],
    ]


def test_a_node_whose_host_is_told_by_another_name_has_not_left() -> None:
    def at(node_id: str) -> NodeSample:
        return NodeSample(view(node_id, host="10.0.0.1:8000"), Freshness.FRESH, 0.0)

    told = told_of([[at("10.0.0.1:8000")], [at("gpu-1")], []])
    assert [(line["event"], line["node_id"], line.get("now")) for line in told[1]] == [
        ("node joined", "gpu-1", None),
        ("node goes by another name", "10.0.0.1:8000", "gpu-1"),
    ]
    assert ("node left", "gpu-1") in [(line["event"], line["node_id"]) for line in told[2] if "node_id" in line]


def test_lines_of_a_kind_are_bounded_at_each_look_and_those_left_out_are_counted() -> None:
    def fleet(count: int, freshness: Freshness = Freshness.FRESH) -> list[NodeSample]:
        return [NodeSample(view(f"n-{number}"), freshness, 0.0) for number in range(count)]

    for count, left_out in ((LINES_MAX, []), (LINES_MAX + 3, [3])):
        kinds = ("node joined", "node silent", "node left")
        looks = told_of([fleet(count), fleet(count, Freshness.STALE), []])
        for lines, kind in zip(looks, kinds, strict=True):
            assert sum(line["event"] == kind for line in lines) == LINES_MAX
            counted = [(line["of"], line["left_out"]) for line in lines if line["event"] == "lines left out"]
            assert counted == [(kind, number) for number in left_out]
