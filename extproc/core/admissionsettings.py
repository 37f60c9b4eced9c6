"""What the balancer can be told of overload: classes of work, how long each may wait, and what tenants may use."""

from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from extproc.sizes import MIB, Size

NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
ClassName = Annotated[str, Field(min_length=1, max_length=64, pattern=NAME_PATTERN)]
TENANT_CHARS_MAX: Final = 256
"""Of a tenant's name; what is longer is cut."""
EVERY: Final = "*"
"""In a quota: each tenant by itself, or each model."""


class PriorityClass(BaseModel):
    """How requests of a class wait for room, if they may."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    queue_ms_max: int = Field(0, ge=0, le=3_600_000)
    """How long a request may wait for a node with room; then it gets 429. 0: it never waits."""
    queue_requests_max: int = Field(1000, ge=0, le=1_000_000)
    """So many wait at a time; further ones get 429."""
    queue_bytes_max: Size = Field(64 * MIB, ge=0, le=2**40)
    """Bodies of those that wait, which Envoy holds meanwhile."""
    reserved_share: float = Field(0.0, ge=0, lt=1)
    """Share of each node's room that lower classes leave free for this one."""


class Quota(BaseModel):
    """What a tenant may use of a model. The first quota that names both holds, and no other; without limits: all."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    tenant: str = Field(EVERY, max_length=TENANT_CHARS_MAX)
    """`*`: each tenant by itself; empty: requests that name no tenant."""
    model: str = Field(EVERY, max_length=256)
    """`*`: each model by itself."""
    tokens_per_minute: int | None = Field(None, ge=1, le=1_000_000_000_000)
    """Prompt and answer together; a minute's worth may come at once. `None`: no limit."""
    concurrent_tokens: int | None = Field(None, ge=1, le=1_000_000_000_000)
    """Of requests that wait or run at a time, with the answers that they allow. `None`: no limit."""
    request_tokens_max: int | None = Field(None, ge=1, le=1_000_000_000)
    """Of one request. `None`: no limit."""


def _listed(value: object) -> object:
    """YAML and JSON have lists, and settings never change."""
    return tuple(value) if isinstance(value, list) else value


def _each_can_hold(quotas: tuple[Quota, ...]) -> tuple[Quota, ...]:
    for place, quota in enumerate(quotas):
        for before in quotas[:place]:
            if before.tenant in (EVERY, quota.tenant) and before.model in (EVERY, quota.model):
                msg = (
                    f"quotas that can hold: that of tenant {quota.tenant!r} and model {quota.model!r} stands behind one"
                    f" of {before.tenant!r} and {before.model!r}, and the first that names both holds"
                )
                raise ValueError(msg)
    return quotas


QuotaList = Annotated[tuple[Quota, ...], BeforeValidator(_listed), AfterValidator(_each_can_hold)]


def _by_name(value: object) -> object:
    """In files a list, for its order counts, and tools that write mappings sort them."""
    if isinstance(value, dict) and all(isinstance(one, PriorityClass) for one in value.values()):
        return value
    if not isinstance(value, list):
        msg = "a list of classes, the highest first, as [{name: interactive}, {name: batch, queue_ms_max: 30000}]"
        raise ValueError(msg)
    classes: dict[object, object] = {}
    for one in value:
        name = one.get("name") if isinstance(one, dict) else None
        if not isinstance(name, str) or name in classes:
            msg = "classes that have a name each, all different"
            raise ValueError(msg)
        classes[name] = {key: setting for key, setting in one.items() if key != "name"}
    return classes


def _as_list(classes: dict[str, PriorityClass]) -> list[dict[str, object]]:
    return [{"name": name, **one.model_dump(mode="json")} for name, one in classes.items()]


Classes = Annotated[dict[ClassName, PriorityClass], BeforeValidator(_by_name), PlainSerializer(_as_list)]
