"""Whether what the agent reported agrees with vLLM's own log, and with what the clients had. Pure.

vLLM logs once a second what its scheduler last said, the agent looks on its own beat, and a client hears of a token
when it has come through Envoy. So two that are right can differ while the engine moves. Two differences tell that
apart from an error: the one to the nearest report in time, and the one to the range of the reports around that moment,
which is 0 if one of them, or a value between them, is the same.

Clients are asked where nothing has changed with them for a while: a burst takes vLLM a step or two to take in. Requests
that are preempted decode for their client and wait for the engine, so the engine's batch bounds the decodes.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bench.realvllm.recording import At, Recording, Values

AROUND_S: Final = 0.75
"""Reports so much before or after belong to a moment, and the next ones beyond `SKEW_S` on both sides,"""
SKEW_S: Final = 0.5
"""A look lasts so long at most, and a line of the log may be read so late."""
GAP_S: Final = 3.0
"""if they are not farther away: then vLLM was down, or too busy to show its metrics."""
STILL_S: Final = 1.5
"""After this long without a change the clients have what the engine has."""

_LOGGED: Final = {
    "requests_running": re.compile(r"Running: (\d+) reqs"),
    "requests_waiting": re.compile(r"Waiting: (\d+) reqs"),
    "kv_usage": re.compile(r"KV cache usage: (\d+\.\d)%"),
    "hit_rate": re.compile(r"Prefix cache hit rate: (\d+\.\d)%"),
}
_IN_PERCENT: Final = ("kv_usage", "hit_rate")


@dataclass(frozen=True, slots=True)
class Agreement:
    """How one of the agent's numbers stands to another source's. Shares are in percent."""

    what: str
    against: str
    compared: int
    """Moments at which both were known."""
    equal: int
    """Times that the nearest report said the same, as precisely as the source tells."""
    nearest_mean: float
    nearest_worst: float
    beyond_worst: float
    """Worst distance from the range of the reports around."""
    outside: int
    """Times that this distance was more than the tolerance."""
    tolerance: float

    @property
    def holds(self) -> bool:
        """Outside in few cases only, and there was something to compare."""
        return self.compared > 0 and self.outside <= OUTSIDE_SHARE_MAX * self.compared


TOLERANCES: Final = {
    "requests_running": 1.0,
    "requests_waiting": 1.0,
    "kv_usage": 1.0,
    "hit_rate": 0.1,
    "active_decodes": 1.0,
    "requests": 1.0,
}
"""Requests, or percent."""
OUTSIDE_SHARE_MAX: Final = 0.05
"""The log may tell of a step between two looks, as when a burst comes: in four runs that was so in up to 5 % of its
lines, and never with the clients."""


def with_log(recording: Recording) -> list[Agreement]:
    """The reports beside vLLM's own lines."""
    found = []
    for name, pattern in _LOGGED.items():
        told = [(t_s, float(match[1])) for t_s, text in recording.logs if (match := pattern.search(text))]
        reported = _reported(recording, _hit_rate if name == "hit_rate" else _field(name))
        found.append(_agreement(name, "log", told, reported, 0.05 if name in _IN_PERCENT else 0.0))
    return found


def with_clients(recording: Recording) -> list[Agreement]:
    """The reports beside what the clients had when the sample was taken."""
    decodes, requests = [], []
    for t_s, fields in sampled(recording):
        if fields["state"] != "ready" or (had := _still_at(recording.clients, t_s)) is None:
            continue
        decodes.append((t_s, min(float(had["decoding"]), fields.get("requests_running", 0.0))))
        requests.append((t_s, float(had["decoding"] + had["pending"])))
    return [
        _agreement("requests", "clients", requests, _reported(recording, _requests), 0.0),
        _agreement("active_decodes", "clients", decodes, _reported(recording, _field("active_decodes")), 0.0),
    ]


def sampled(recording: Recording) -> list[At[Values]]:
    """The reports by the time of their samples."""
    found = [(t_s - fields.get("sample_age_s", 0.0), fields) for t_s, fields in recording.snapshots]
    return sorted(found, key=lambda one: one[0])


def _reported(recording: Recording, value_of: Callable[[Values], float | None]) -> list[At[float]]:
    values = [(t_s, value_of(fields)) for t_s, fields in sampled(recording)]
    return [(t_s, value) for t_s, value in values if value is not None]


def _field(name: str) -> Callable[[Values], float | None]:
    scale = 100.0 if name in _IN_PERCENT else 1.0
    return lambda fields: fields[name] * scale if name in fields else None


def _hit_rate(fields: Values) -> float | None:
    queries = fields.get("prefix_queries_total")
    return 100.0 * fields["prefix_hits_total"] / queries if queries else None


def _requests(fields: Values) -> float | None:
    if "active_decodes" not in fields or "pending_prefills" not in fields:
        return None
    return float(fields["active_decodes"] + fields["pending_prefills"])


def _agreement(
    what: str, against: str, told: Sequence[At[float]], reported: Sequence[At[float]], precision: float
) -> Agreement:
    nearest, beyond = [], []
    for t_s, value in told:
        around = _around(reported, t_s)
        if not around:
            continue
        nearest.append(abs(min(around, key=lambda one: abs(one[0] - t_s))[1] - value))
        values = [one[1] for one in around]
        beyond.append(max(0.0, min(values) - value, value - max(values)))
    return Agreement(
        what=what,
        against=against,
        compared=len(nearest),
        equal=sum(one <= precision + 1e-9 for one in nearest),
        nearest_mean=sum(nearest) / len(nearest) if nearest else 0.0,
        nearest_worst=max(nearest, default=0.0),
        beyond_worst=max(beyond, default=0.0),
        outside=sum(one > TOLERANCES[what] for one in beyond),
        tolerance=TOLERANCES[what],
    )


def _around(reported: Sequence[At[float]], t_s: float) -> list[At[float]]:
    """The reports just before and just after, and all others that are close; none where there is a gap."""
    before = [one for one in reported if one[0] <= t_s - SKEW_S][-1:]
    after = [one for one in reported if one[0] >= t_s + SKEW_S][:1]
    if any(abs(one[0] - t_s) > GAP_S for one in (*before, *after)):
        return []
    return [*before, *after, *(one for one in reported if abs(one[0] - t_s) <= AROUND_S)]


def _still_at(clients: Sequence[At[Values]], t_s: float) -> Values | None:
    """What the clients had, if nothing changed with them just before and while the agent looked."""
    latest = next(((at_s, counts) for at_s, counts in reversed(clients) if at_s <= t_s + SKEW_S), None)
    return latest[1] if latest is not None and t_s - latest[0] >= STILL_S else None
