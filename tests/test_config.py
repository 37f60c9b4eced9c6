from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from extproc import yamlfile
from extproc.address import TcpAddress, UnixAddress
from extproc.config import Config, parse, read
from extproc.core.settings import Fault
from extproc.sizes import GIB, KIB, MIB
from tests.parsing import faults, whole, written

DOCS = Path(__file__).parent.parent / "docs" / "config.md"


def test_nothing_is_the_default_configuration() -> None:
    config = whole(parse({}))
    assert config == Config()
    assert config.listen.extproc == TcpAddress("127.0.0.1", 9002)
    assert config.default_policy in config.policies


def documented() -> str:
    return DOCS.read_text().split("```yaml\n")[1].split("```")[0]


def test_the_documented_example_is_the_default_configuration(tmp_path: Path) -> None:
    assert whole(read(written(tmp_path, documented()))) == Config()


def test_the_documented_example_names_every_key(tmp_path: Path) -> None:
    loaded = yamlfile.load(written(tmp_path, documented()))
    assert isinstance(loaded, yamlfile.Document)

    def missing(model: type[BaseModel], mapping: Any, path: str) -> list[str]:
        absent = [path + name for name in model.model_fields if name not in mapping]
        for name, field in model.model_fields.items():
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel) and name in mapping:
                absent += missing(field.annotation, mapping[name], f"{path}{name}.")
            for argument in get_args(field.annotation):
                if isinstance(argument, type) and issubclass(argument, BaseModel):
                    entries = mapping.get(name) or {}
                    if isinstance(entries, list):  # the first one has them all
                        entries = {entries[0]["name"]: entries[0]}
                    for key, entry in entries.items():
                        absent += missing(argument, entry, f"{path}{name}.{key}.")
        return absent

    # A policy's name is its key.
    assert missing(Config, loaded.content, "") == ["policies.default.name"]


@pytest.mark.parametrize(
    ("mapping", "fault"),
    [
        (5, "(top): wanted a mapping, got 5"),
        ({"listn": {}}, "listn: wanted a known key (listen?), got {}"),
        ({"drain_s": "10"}, "drain_s: wanted a valid number, got '10'"),
        ({"drain_s": True}, "drain_s: wanted a valid number, got True"),
        ({"drain_s": float("nan")}, "drain_s: wanted a finite number, got nan"),
        ({"drain_s": 600.1}, "drain_s: wanted less than or equal to 600, got 600.1"),
        ({"listen": {"admin": 9090}}, "listen.admin: wanted host:port, [ipv6]:port or unix:/path, got 9090"),
        ({"default_policy": "batch"}, "default_policy: wanted one of default, got 'batch'"),
        (
            {"policies": {"batch": {"name": "other"}}},
            "policies: wanted no `name` in policies.batch, or the same name, got {'batch': {'name': 'other'}}",
        ),
        (
            {"policies": {"batch": {"strategy": "luck"}}},
            (
                "policies.batch.strategy: wanted one of least-added-delay, least-inflight, lmetric, load-score, "
                "power-of-two, random, round-robin, got 'luck'"
            ),
        ),
        ({"policies": []}, "policies: wanted a mapping, got []"),
        ({"policies": {"batch": None}}, "policies.batch: wanted a mapping, got None"),
        (
            {"hosts_allowed": ["10.0.0.1/8"]},
            (
                "hosts_allowed: wanted networks as 10.0.0.0/8 or fc00::/7, without host bits; not '10.0.0.1/8', "
                "got ['10.0.0.1/8']"
            ),
        ),
        ({"hosts_allowed": "10.0.0.0/8"}, "hosts_allowed: wanted a list of networks as 10.0.0.0/8, got '10.0.0.0/8'"),
        (
            {"limits": {"body_bytes_max": "32MB"}},
            "limits.body_bytes_max: wanted bytes as a number, or with KiB, MiB or GiB as in 32MiB, got '32MB'",
        ),
        (
            {"limits": {"body_bytes_max": "2MiB", "body_bytes_total_max": "1MiB"}},
            "limits.body_bytes_total_max: wanted at least body_bytes_max, got '1MiB'",
        ),
        ({"tokens": {"models": {"a": {"tokenizer": 1}}}}, "tokens.models.a.tokenizer: wanted a path, got 1"),
    ],
)
def test_a_fault_names_its_path_what_was_wanted_and_what_it_got(mapping: object, fault: str) -> None:
    assert faults(parse(mapping)) == [fault]


def test_every_fault_is_told_at_once() -> None:
    told = faults(parse({"listen": {"admin": "x", "agents": "y"}, "nodes": {"fresh_s": -1}, "drain_s": -1}))
    assert sorted(line.split(":")[0] for line in told) == ["drain_s", "listen.admin", "listen.agents", "nodes.fresh_s"]


def test_a_policy_takes_its_name_from_its_key() -> None:
    config = whole(parse({"policies": {"batch": {"limits": {"kv_usage_max": 0.5}}}, "default_policy": "batch"}))
    assert config.policies["batch"].name == "batch"
    assert config.policies["batch"].limits.kv_usage_max == 0.5
    assert set(config.policies) == {"default", "batch"}


def test_the_default_policy_can_be_given_other_values() -> None:
    config = whole(parse({"policies": {"default": {"limits": {"kv_usage_max": 0.5}}}}))
    assert config.policies["default"].limits.kv_usage_max == 0.5


@pytest.mark.parametrize(("text", "size"), [(2048, 2048), ("2KiB", 2 * KIB), ("3MiB", 3 * MIB), ("1GiB", GIB)])
def test_sizes_are_numbers_or_have_a_unit(text: object, size: int) -> None:
    assert whole(parse({"limits": {"body_bytes_max": text, "body_bytes_total_max": "4GiB"}})).limits.body_bytes_max == (
        size
    )


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("body_bytes_max", KIB, 512 * MIB),  # the default of body_bytes_total_max
        ("body_items_max", 1000, 50_000_000),
        ("streams_max", 1, 1_000_000),
        ("policy_bytes_max", 64, MIB),
        ("policies_cached_max", 1, 100_000),
        ("agent_streams_max", 1, 100_000),
        ("agent_message_bytes_max", KIB, 16 * MIB),
    ],
)
def test_limits_hold_at_their_edges(name: str, least: int, most: int) -> None:
    whole(parse({"limits": {name: least}}))
    whole(parse({"limits": {name: most}}))
    assert faults(parse({"limits": {name: least - 1}}))
    assert faults(parse({"limits": {name: most + 1}}))


def test_addresses_can_be_unix_sockets_and_ipv6() -> None:
    config = whole(parse({"listen": {"extproc": "unix:/run/x.sock", "agents": "[::1]:9004"}}))
    assert config.listen.extproc == UnixAddress("/run/x.sock")
    assert config.listen.agents == TcpAddress("::1", 9004)


def test_json_is_read_too(tmp_path: Path) -> None:
    assert whole(read(written(tmp_path, '{"drain_s": 3}', "extproc.json"))).drain_s == 3


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n"])
def test_an_empty_file_is_the_default_configuration(tmp_path: Path, text: str) -> None:
    assert whole(read(written(tmp_path, text))) == Config()


keys = st.sampled_from(["listen", "nodes", "limits", "tokens", "models", "policies", "default", "name", "fresh_s"])
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=5)
anything = st.recursive(
    scalars | keys,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys | scalars, inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None, max_examples=100)
@given(st.dictionaries(st.sampled_from(sorted(Config.model_fields)) | scalars, anything, max_size=6))
def test_no_mapping_makes_parse_raise(mapping: dict[object, object]) -> None:
    outcome = parse(mapping)
    assert isinstance(outcome, Config) or (outcome and all(isinstance(fault, Fault) for fault in outcome))


@pytest.mark.parametrize(
    ("agents", "loopback"),
    [
        ("127.0.0.1:9004", True),
        ("127.0.0.9:9004", True),
        ("[::1]:9004", True),
        ("localhost:9004", True),
        ("unix:/run/agents", True),
        ("0.0.0.0:9004", False),
        ("[::]:9004", False),
        ("10.0.0.1:9004", False),
        ("router.example:9004", False),
    ],
)
def test_loopback_hosts_are_taken_by_default_only_from_agents_of_this_machine(agents: str, loopback: bool) -> None:
    config = parse({"listen": {"agents": agents, "insecure": True}})
    assert isinstance(config, Config)
    networks = {str(network) for network in config.hosts_allowed}
    assert ("127.0.0.0/8" in networks, "::1/128" in networks) == (loopback, loopback)
    assert "10.0.0.0/8" in networks


def test_loopback_hosts_can_be_asked_for() -> None:
    config = parse({"listen": {"agents": "0.0.0.0:9004", "insecure": True}, "hosts_allowed": ["127.0.0.0/8"]})
    assert isinstance(config, Config)
    assert [str(network) for network in config.hosts_allowed] == ["127.0.0.0/8"]


def test_a_section_without_content_is_its_default() -> None:
    assert parse({"listen": None, "nodes": None, "drain_s": None}) == Config()
    assert faults(parse({"lsten": None})) == ["lsten: wanted a known key (listen?), got None"]


@pytest.mark.parametrize("address", ["127.0.0.1:9002", "unix:/run/one"])
def test_two_servers_cannot_listen_at_one_address(address: str) -> None:
    told = faults(parse({"listen": {"extproc": address, "agents": address}}))
    assert told == [f"listen.agents: wanted an address of its own, not that of extproc, got {address!r}"]
    assert isinstance(parse({"listen": {"extproc": "127.0.0.1:0", "agents": "127.0.0.1:0"}}), Config)


@pytest.mark.parametrize(
    "quotas",
    [
        [{"tenant": "*"}, {"tenant": "acme", "tokens_per_minute": 5}],
        [{"tenant": "acme", "model": "m"}, {"tenant": "acme", "model": "m"}],
        [{"tenant": "*", "model": "m"}, {"tenant": "acme", "model": "m"}],
    ],
)
def test_a_quota_that_can_never_hold_is_a_fault(quotas: list[dict[str, Any]]) -> None:
    (fault,) = faults(parse({"quotas": quotas}))
    assert "stands behind one of" in str(fault)
    whole(parse({"quotas": quotas[::-1] if quotas[0] != quotas[1] else quotas[:1]}))
