"""What a file's lines name by numbers: policies, and nodes' lists of models."""

from typing import Final, TypeVar

from extproc.core.policy import RoutingPolicy, policy_from_mapping
from extproc.core.settings import Fault
from extproc.core.snapshot import ServedModel, Snapshot
from extproc.journal.lines import Models, Policy, Reported
from extproc.replay.bounds import snapshot_of

NAMES_MAX: Final = 20_000
"""Numbers that are remembered of a file; no journal of ours uses more."""
_Named = TypeVar("_Named")


class Names:
    """The numbers of one file so far."""

    def __init__(self) -> None:
        self._policies: dict[int, RoutingPolicy] = {}
        self._models: dict[int, tuple[ServedModel, ...]] = {}

    def take(self, where: str, line: Policy | Models) -> Fault | None:
        """What a number names; or what is wrong with it."""
        match line:
            case Models(number=number, models=models):
                _remember(self._models, number, models)
            case Policy(number=number, policy=mapping):
                policy = policy_from_mapping(mapping)
                if not isinstance(policy, RoutingPolicy):
                    fault = policy[0]
                    return Fault(f"{where}: policy.{fault.path}", fault.wanted, fault.got)
                _remember(self._policies, number, policy)
        return None

    def policy(self, where: str, number: int) -> RoutingPolicy | Fault:
        """The policy of this number."""
        return self._policies.get(number) or _unexplained(f"{where}: policy", number)

    def snapshot(self, where: str, line: Reported) -> Snapshot | Fault:
        """What was reported, with the models of its number."""
        models = None
        if line.models is not None and (models := self._models.get(line.models)) is None:
            return _unexplained(f"{where}: models", line.models)
        return snapshot_of(where, line, models)


def _unexplained(where: str, number: int) -> Fault:
    return Fault(where, "a number that a line before explains", f"{number}")


def _remember(names: dict[int, _Named], number: int, named: _Named) -> None:
    names[number] = named
    if len(names) > NAMES_MAX:
        del names[next(iter(names))]
