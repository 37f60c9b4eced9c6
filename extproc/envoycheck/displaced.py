"""Does the policy that `extproc render` writes at routes for first tokens take the place of one that says more?

Nothing else tells it: such routes work, without the objectives and shares that policies.default has.
"""

from collections.abc import Iterator
from typing import Final

from extproc.config import Config
from extproc.core.policy import RoutingPolicy
from extproc.core.settings import Fault
from extproc.envoycheck.file import Warned
from extproc.envoycheck.places import places
from extproc.envoycheck.policies import of_route, policies_at
from extproc.envoycheck.processors import Processors

RENDERED: Final = "first-tokens"
"""The policy's name."""
_ITS_OWN: Final = ("name", "leave_after_first_token", "destination")


def faults_in(found: Processors, settings: Config) -> Iterator[Fault]:
    """Routes at which keys of the default policy do not hold, because of that one. Never raises."""
    if RENDERED in settings.policies:
        return
    default = settings.policies[settings.default_policy]
    for place in places(found):
        if place.routed is None:
            continue
        for policy in policies_at(place, settings).possible:
            lost = [] if policy.name != RENDERED else _differing(policy, default)
            asked = place.asked_for if place.asked_for is not None else of_route(place.routed.route)
            if lost and asked is not None:
                keys = f"{', '.join(lost)} of policies.{settings.default_policy}"
                yield Warned(asked.path, f"a policy that says them too (else {keys} do not hold here)", RENDERED)


def _differing(policy: RoutingPolicy, default: RoutingPolicy) -> list[str]:
    return [
        name
        for name in RoutingPolicy.model_fields
        if name not in _ITS_OWN and getattr(policy, name) != getattr(default, name)
    ]
