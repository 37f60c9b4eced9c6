import json
import re
from pathlib import Path

import pytest

from extproc.core.decision import Queued, Unknown
from extproc.core.policy import RoutingPolicy
from extproc.journal.lines import Decided
from extproc.replay.other import Other, other_of
from extproc.replay.result import CAVEAT, Tally
from tests.journaled import FLEET, POLICIES, Call, routes, write
from tests.replay.replaying import LONG, command, replayed


def test_another_strategy_stands_beside_the_recorded_choices(path: Path) -> None:
    first: list[Call] = [("report", {"node": "a"}), ("report", {"node": "b", "requests_running": 40})]
    write(path, first + routes(6, policy=RoutingPolicy(strategy="least-inflight")))
    found = replayed(path, Other("round-robin"))
    assert (found.identical, found.different) == (6, 0), "the recorded ones are repeated beside it"
    comparison = found.comparison
    assert comparison is not None
    assert comparison.recorded.per_node == {"a": 6}
    assert comparison.would_be.per_node == {"a": 3, "b": 3}
    assert (comparison.decisions, comparison.same_node, comparison.other_node) == (6, 3, 3)
    means = comparison.recorded.uncached_tokens_mean, comparison.would_be.uncached_tokens_mean
    # 5.5 blocks a prompt; five of them are cached at a from the second request on, and none ever at b.
    assert means[0] == pytest.approx((500 + 5 * 116) / 6, rel=0.2)
    assert means[1] is not None
    assert means[1] > 250


def test_the_same_strategy_chooses_the_same(path: Path) -> None:
    write(path, LONG)
    comparison = replayed(path, Other("least-added-delay")).comparison
    assert comparison is not None
    assert (comparison.decisions, comparison.same_node, comparison.other_node) == (60, 60, 0)
    assert comparison.recorded == comparison.would_be


def test_refusals_are_counted_for_both(path: Path, tmp_path: Path) -> None:
    write(path, [("report", {"node": "a", "requests_waiting": 50}), *routes(4, priority="at-once")])
    (tmp_path / "policy.yaml").write_text("limits: {requests_waiting_max: 10}")
    result = command(path, "--policy", str(tmp_path / "policy.yaml"), "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    comparison = found["comparison"]
    assert (comparison["recorded"]["refused"], comparison["would_be"]["refused"]) == (0, 4)
    assert (comparison["other_node"], comparison["would_be"]["per_node"]) == (4, {})
    assert comparison["would_be"]["uncached_tokens_mean"] is None


def test_a_policys_other_settings_stay_when_only_the_strategy_is_replaced() -> None:
    recorded = POLICIES[0].model_copy(update={"first_token_weight": 7.0})
    assert Other("random").of(recorded) == recorded.model_copy(update={"strategy": "random"})
    assert Other(RoutingPolicy(name="x", strategy="random")).of(recorded).name == recorded.name


def test_a_strategy_may_bring_settings(path: Path) -> None:
    recorded = POLICIES[0].model_copy(update={"crowding_weight": 7.0})
    other = other_of("least-added-delay:first_token_weight=4:leave_after_first_token=true", None)
    assert isinstance(other, Other)
    assert str(other) == "least-added-delay:first_token_weight=4.0:leave_after_first_token=True"
    changes = {"strategy": "least-added-delay", "first_token_weight": 4.0, "leave_after_first_token": True}
    assert other.of(recorded) == recorded.model_copy(update=changes)
    write(path, LONG)
    comparison = json.loads(command(path, "--strategy", "least-added-delay:first_token_weight=4", "--json").stdout)
    assert comparison["comparison"]["policy"] == "least-added-delay:first_token_weight=4.0"


def test_what_the_comparison_does_not_say_stands_above_it_and_in_the_json(path: Path) -> None:
    write(path, LONG)
    above, _, _ = command(path, "--strategy", "random").stdout.partition("requests to")
    assert CAVEAT.split(":")[0] in " ".join(above.split())
    assert json.loads(command(path, "--strategy", "random", "--json").stdout)["comparison"]["caveat"] == CAVEAT


def test_the_table_shows_both(path: Path) -> None:
    write(path, LONG)
    text = command(path, "--strategy", "random").stdout
    assert re.search(r"requests to +recorded +random", text)
    for name in (
        "a",
        "b",
        "c",
        r"nobody \(refused\)",
        r"nobody yet \(they wait\)",
        "Envoy's own cluster",
        "mean uncached tokens",
    ):
        assert re.search(rf"^{name} +[0-9.,]+ +[0-9.,]+ *$", text, re.MULTILINE), name
    assert re.search(r"^identical +60", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("options", "content", "fault"),
    [
        (("--strategy", "best"), None, "--strategy: wanted one of least-added-delay, "),
        (("--strategy", "lmetric:x=1"), None, "--strategy lmetric: wanted a setting of crowding_weight, first_token_"),
        (("--policy", "FILE"), "strategy: best", "strategy: wanted one of least-added-delay, "),
        (("--policy", "FILE"), "[]", "FILE: wanted a mapping, got []"),
        (("--policy", "FILE"), None, "FILE: wanted a readable file, got No such file or directory"),
        (("--policy", "FILE", "--strategy", "random"), "{}", "Usage: "),
    ],
)
def test_what_is_no_policy_is_a_fault(path: Path, options: tuple[str, ...], content: str | None, fault: str) -> None:
    write(path, FLEET)
    file = path.with_suffix(".yaml")
    if content is not None:
        file.write_text(content)
    result = command(path, *(str(file) if option == "FILE" else option for option in options))
    assert result.exit_code in (1, 2)
    assert result.stderr.startswith(fault.replace("FILE", str(file)))


def test_to_wait_is_not_the_same_as_to_be_left_to_envoy() -> None:
    tally = Tally()
    waits, unknown = Decided("random", queued=Queued("full", 1.0)), Decided("random", unknown=Unknown("early"))
    for recorded, would_be in [(waits, waits), (unknown, unknown), (waits, unknown), (unknown, waits)]:
        tally.beside(recorded, would_be)
    comparison = tally.result((), "random").comparison
    assert comparison is not None
    assert (comparison.same_node, comparison.other_node) == (2, 2)
    assert (comparison.recorded.queued, comparison.would_be.unknown) == (2, 2)
