"""What access logs are told of a canary's arms."""

import pytest

from extproc.core.balancer import Balancer
from extproc.core.policy import RoutingPolicy
from tests.core.fleet import balancer, snapshot
from tests.gateway.talk import Talk, chat, headers, told, whole


def fleet() -> Balancer:
    return balancer(snapshot("a"), snapshot("b"))


@pytest.mark.parametrize(("percent", "outcome", "arm"), [(0.0, "control", "control"), (99.9999, "chosen", "strategy")])
def test_the_control_arm_has_an_outcome_of_its_own(percent: float, outcome: str, arm: str) -> None:
    talk = Talk(fleet(), policy=RoutingPolicy(canary=percent))
    talk.say(headers())
    action = talk.say(whole(chat()))
    assert (told(action)["outcome"], told(action)["arm"]) == (outcome, arm)


def test_what_is_no_inference_is_of_no_arm() -> None:
    action = Talk(fleet(), policy=RoutingPolicy(canary=0)).say(headers("/upload"))
    assert told(action)["outcome"] == "uninspected"
    assert "arm" not in told(action)
