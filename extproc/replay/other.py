"""Which policy is to stand beside the recorded ones."""

from pathlib import Path
from typing import assert_never

from extproc import yamlfile
from extproc.core.cost import STRATEGIES
from extproc.core.policy import RoutingPolicy, policy_from_mapping
from extproc.core.settings import Fault


class Other:
    """Another policy than the recorded ones; or these, with another strategy."""

    def __init__(self, other: RoutingPolicy | str) -> None:
        self._other = other

    def __str__(self) -> str:
        """For people."""
        return self._other if isinstance(self._other, str) else f"{self._other.strategy} (policy of the file)"

    def of(self, recorded: RoutingPolicy) -> RoutingPolicy:
        """What stands in for a recorded policy. Its name stays, for turns are counted by it."""
        if isinstance(self._other, str):
            return recorded.model_copy(update={"strategy": self._other})
        return self._other.model_copy(update={"name": recorded.name})


def other_of(strategy: str | None, policy_file: Path | None) -> Other | list[Fault] | None:
    """What a command line asks for; `None`: the recorded policies."""
    if strategy is not None:
        if strategy not in STRATEGIES:
            return [Fault("strategy", f"one of {', '.join(sorted(STRATEGIES))}", repr(strategy)[:80])]
        return Other(strategy)
    if policy_file is None:
        return None
    match yamlfile.load(policy_file):
        case Fault() as fault:
            return [fault]
        case yamlfile.Document(content):
            if not isinstance(content, dict):
                return [Fault(str(policy_file), "a mapping", repr(content)[:80])]
            policy = policy_from_mapping(content)
            return Other(policy) if isinstance(policy, RoutingPolicy) else policy
        case unexpected:
            assert_never(unexpected)
