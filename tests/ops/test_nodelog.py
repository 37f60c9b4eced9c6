import structlog
from structlog.testing import CapturingLogger

from extproc.core.snapshot import Freshness, NodeState
from extproc.ops.nodegauges import NodeSample
from extproc.ops.nodelog import NodeLog
from tests.core.fleet import view


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
