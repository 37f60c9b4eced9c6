"""Which policy is to stand beside the recorded ones."""

from pathlib import Path
from typing import assert_never

from extproc import strategytext, yamlfile
from extproc.core.policy import RoutingPolicy, policy_from_mapping
from extproc.core.settings import Fault


class Other:
    """Another policy than the recorded ones; or these, with another strategy and what settings come with it."""

    def __init__(self, other: RoutingPolicy | str, **settings: object) -> None:
        """A whole policy; or the name of a strategy, with settings whose values are those of a policy."""
        self._other = other
        self._settings = settings

    def __str__(self) -> str:
        """For people."""
        if isinstance(self._other, str):
            return ":".join([self._other, *(f"{name}={value}" for name, value in self._settings.items())])
        return f"{self._other.strategy} (policy of the file)"

    def of(self, recorded: RoutingPolicy) -> RoutingPolicy:
        """What stands in for a recorded policy. Its name stays, for turns are counted by it."""
        if isinstance(self._other, str):
            return recorded.model_copy(update={"strategy": self._other, **self._settings})
        return self._other.model_copy(update={"name": recorded.name})


def other_of(strategy: str | None, policy_file: Path | None) -> Other | list[Fault] | None:
    """What a command line asks for; `None`: the recorded policies."""
    if strategy is not None:
        found = strategytext.policy_of(strategy, {})
        if isinstance(found, list):
            return found
        settings = {name: getattr(found, name) for name in sorted(found.model_fields_set - {"strategy"})}
        return Other(found.strategy, **settings)
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
