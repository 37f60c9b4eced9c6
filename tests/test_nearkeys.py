"""Which key was meant by one that is not known."""

import pytest

from extproc import config
from extproc.agent import settings as agentsettings

ENGINE = {"node_id": "a", "engine": "http://a"}


@pytest.mark.parametrize(
    ("mapping", "wanted"),
    [
        ({"engines": [ENGINE], "router": []}, {"router": "a known key (routers?)"}),
        ({"engines": [ENGINE | {"gpus": 1}]}, {"engines.0.gpus": "a known key (gpu?)"}),
        (
            {"engines": [ENGINE | {"kv_events": {"endpoint": "tcp://a:1", "endpiont": 1}}]},
            {"engines.0.kv_events.endpiont": "a known key (endpoint?)"},
        ),
        ({"engines": [ENGINE | {"routers": []}]}, {"engines.0.routers": "a known key"}),  # of another place
        ({"engines": [ENGINE], "nats": {"tls": {"cert": "a"}}}, {"nats.tls.cert": "a known key (certificate?)"}),
        ({"engines": [ENGINE], "nats": {"tls": {"ce": "a"}}}, {"nats.tls.ce": "a known key"}),  # too short
        ({"engines": [ENGINE], "nats": {"token": "a"}}, {"nats.token": "a known key (token_file?)"}),
        ({"engines": [ENGINE], "zzz": 1, "": 2}, {"zzz": "a known key", "": "a known key"}),
    ],
)
def test_an_agents_keys(mapping: object, wanted: dict[str, str]) -> None:
    found = agentsettings.parse(mapping)
    assert isinstance(found, list)
    assert {fault.path: fault.wanted for fault in found if fault.wanted.startswith("a known key")} == wanted


def test_a_routers_keys() -> None:
    found = config.parse({"polices": {}, "policies": {"default": {"canry": 1}}, "listen": {"admn": "127.0.0.1:1"}})
    assert isinstance(found, list)
    assert {fault.path: fault.wanted for fault in found} == {
        "polices": "a known key (policies?)",
        "policies.default.canry": "a known key (canary?)",
        "listen.admn": "a known key (admin?)",
    }
