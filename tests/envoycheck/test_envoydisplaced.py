"""Routes at which the policy for first tokens takes the place of one that says more."""

import pytest
import yaml

from extproc.config import Config, parse
from extproc.core.settings import Fault
from extproc.envoycheck import checks
from extproc.envoycheck.file import Warned
from extproc.envoycheck.processors import Processors, processors_of
from extproc.render import bootstrap, description


def warned(config: object, **told: object) -> list[str]:
    """What is warned of, of keys that do not hold at the rendered routes."""
    settings = parse(config)
    assert isinstance(settings, Config)
    described = description.parse({"fail_open": False} | told)
    assert isinstance(described, description.Description)
    made = bootstrap.render(described)
    assert isinstance(made, str)
    processors = processors_of(yaml.safe_load(made), settings.listen.extproc)
    assert isinstance(processors, Processors)
    found = checks.faults_in(processors, settings)
    assert all(isinstance(fault, Fault) for fault in found)
    return [fault.wanted for fault in found if isinstance(fault, Warned) and "do not hold" in fault.wanted]


OBJECTIVE = {"policies": {"default": {"canary": 10, "ttft_s": 2}}}
NAMED = {"policies": {"default": {"canary": 10}, "fast": {"leave_after_first_token": True}}}
KEPT = {"policies": {"default": {"canary": 10}, "first-tokens": {"canary": 20, "leave_after_first_token": True}}}


def shows(**more: object) -> list[dict[str, object]]:
    return [{"prefix": "/v1/", "first_tokens": True, **more}]


@pytest.mark.parametrize("config", [OBJECTIVE, {"policies": {"usual": {"canary": 5}}, "default_policy": "usual"}])
def test_a_default_that_says_more_is_told(config: dict[str, object]) -> None:
    found = warned(config, routes=shows(), nodes=["10.0.0.1:8000"])
    assert found
    assert all("canary" in one for one in found)
    assert all(("ttft_s" in one) is (config is OBJECTIVE) for one in found)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({}, {"routes": shows()}),
        ({"policies": {"default": {"leave_after_first_token": True}}}, {"routes": shows()}),
        (OBJECTIVE, {"routes": [{"prefix": "/v1/"}]}),
        (NAMED, {"routes": shows(policy="fast")}),
        (NAMED, {"routes": shows(), "policy": "fast"}),  # stays, since somebody chose it
        (OBJECTIVE, {"routes": shows(), "policy": {"name": "mine", "canary": 20}}),
        (KEPT, {"routes": shows(policy="first-tokens")}),
    ],
)
def test_what_loses_nothing_is_not(config: object, told: dict[str, object]) -> None:
    assert warned(config, **told) == []
