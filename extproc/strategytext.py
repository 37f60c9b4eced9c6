"""A strategy as commands take it: its name, with settings of its policy where wanted, as `NAME:SETTING=VALUE`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from extproc.core.cost import STRATEGIES
from extproc.core.policy import RoutingPolicy, policy_from_mapping
from extproc.core.settings import GOT_CHARS_MAX, Fault

OPTION: Final = "--strategy"
"""Where the faults stand."""
SETTINGS: Final = (
    "crowding_weight",
    "first_token_weight",
    "leave_after_first_token",
    "output_token_weight",
    "ttft_s",
    "wait_fraction",
)
"""What can be set beside the name; for mappings there are files, and requests that are simulated or recorded have
neither headers nor aliases."""


def policy_of(text: str, base: Mapping[str, Any], *others: str) -> RoutingPolicy | list[Fault]:
    """The policy, or what is wrong with the text.

    `base` is the mapping of a policy for what the text does not set. `others` are names, of no policy, that the caller
    takes as well: a fault lists them.
    """
    name, *settings = text.split(":")
    if name not in STRATEGIES:
        return [Fault(OPTION, f"one of {', '.join([*sorted(STRATEGIES), *others])}", repr(name)[:GOT_CHARS_MAX])]
    mapping = {**base, "strategy": name}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            return [Fault(OPTION, "name:setting=value", repr(text)[:GOT_CHARS_MAX])]
        if key not in SETTINGS:
            return [Fault(f"{OPTION} {name}", f"a setting of {', '.join(SETTINGS)}", repr(key)[:GOT_CHARS_MAX])]
        mapping[key] = value
    policy = policy_from_mapping(mapping)
    if isinstance(policy, list):
        return [replace(fault, path=f"{OPTION} {name}: {fault.path}") for fault in policy]
    return policy
