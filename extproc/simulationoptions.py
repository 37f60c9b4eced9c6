"""What the words mean that several commands of the simulation take."""

import math
from pathlib import Path
from typing import Any, Final

from extproc import settingtypes, strategytext, yamlfile
from extproc.core.policy import policy_from_mapping
from extproc.core.settings import GOT_CHARS_MAX, Fault, shown
from extproc.sim import comparison as comparisons
from extproc.sim.comparison import Contender
from extproc.sim.exchange import Exchanging

EXCHANGE_S_MIN: Final = 0.05
EXCHANGE_S_MAX: Final = 10.0
"""As `exchange.interval_s` of serve."""


def contenders(strategies: str, policy: Path | None) -> tuple[Contender, ...] | list[Fault]:
    """Strategies by names with commas between them, each with its settings; all else is as the policy's file says."""
    base: dict[str, Any] = {}
    if policy is not None:
        match yamlfile.load(policy):
            case Fault() as fault:
                return [fault]
            case yamlfile.Document(content):
                if not isinstance(content, dict):
                    return [Fault(str(policy), "a mapping", repr(content)[:GOT_CHARS_MAX])]
                base = content
        found = policy_from_mapping(base)
        if isinstance(found, list):
            return yamlfile.faults_in(policy, found)
        if "strategy" in base:
            wanted = f"none here, since {strategytext.OPTION} says which are compared"
            return [Fault(f"{policy}: strategy", wanted, shown(base["strategy"]))]
    names = strategies.split(",")
    if len(names) > comparisons.STRATEGIES_MAX:
        return [Fault(strategytext.OPTION, f"at most {comparisons.STRATEGIES_MAX}", str(len(names)))]
    if "" in names:
        wanted = "a name before, between and behind the commas"
        return [Fault(strategytext.OPTION, wanted, repr(strategies)[:GOT_CHARS_MAX])]
    if twice := [name for name in names if names.count(name) > 1]:
        return [Fault(strategytext.OPTION, "each of them once", f"{twice[0][:GOT_CHARS_MAX]} twice")]
    contenders = [comparisons.contender(name, base) for name in names]
    faults = [fault for one in contenders if isinstance(one, list) for fault in one]
    return faults or tuple(one for one in contenders if isinstance(one, Contender))


def exchanging(text: str) -> Exchanging | Fault | None:
    """What routers tell each other by `--exchange`; `None`: nothing. Or what the option must be."""
    if text == "none":
        return None
    if text == "prefixes":
        return Exchanging(placements=True)
    interval_s = seconds("--exchange", text, EXCHANGE_S_MIN, EXCHANGE_S_MAX)
    if isinstance(interval_s, Fault):
        wanted = f"none, prefixes, or {EXCHANGE_S_MIN:g} to {EXCHANGE_S_MAX:g} seconds, as 500ms, 2s or 0.5"
        return Fault("--exchange", wanted, repr(text)[:GOT_CHARS_MAX])
    return Exchanging(interval_s=interval_s)


def seconds(option: str, text: str, least: float, most: float) -> float | Fault:
    """The seconds in the text of an option, or what they must be."""
    try:
        value = settingtypes.seconds(text)
    except ValueError:
        value = math.nan
    if least <= value <= most:
        return value
    return Fault(option, f"{least:g} to {most:g} seconds, as 500ms, 2s, 0.1m or 0.5", text[:GOT_CHARS_MAX])
