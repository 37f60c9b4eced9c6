"""What each worker is told of what holds for all together."""

import pickle
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from extproc.address import TcpAddress, UnixAddress
from extproc.config import Config, parse
from extproc.sizes import MIB
from extproc.workers.shares import config_of

FOLDER = Path("/tmp/extproc-x")
AT = TcpAddress("127.0.0.1", 9012)
WHOLE = {
    "workers": 3,
    "listen": {"extproc": "0.0.0.0:9002", "agents": "0.0.0.0:9004", "scaler": "0.0.0.0:9006", "insecure": True},
    "limits": {"streams_max": 100, "body_bytes_total_max": 90 * MIB},
    "quotas": [{"tenant": "acme", "tokens_per_minute": 100, "concurrent_tokens": 10, "request_tokens_max": 7}, {}],
    "classes": [{"name": "standard", "queue_requests_max": 10, "queue_bytes_max": 0, "queue_ms_max": 5}],
    "journal": {"path": "/var/log/serve.journal"},
}


def whole(**changes: object) -> Config:
    found = parse(WHOLE | changes)
    assert isinstance(found, Config), found
    return found


def test_what_is_counted_where_requests_come_is_divided_and_rounded_up() -> None:
    own = config_of(whole(), 1, AT, FOLDER)
    assert (own.limits.streams_max, own.limits.body_bytes_total_max) == (34, 32 * MIB), "a body fits, at least"
    acme, every = own.quotas
    assert (acme.tokens_per_minute, acme.concurrent_tokens, acme.request_tokens_max) == (34, 4, 7)
    assert (every.tokens_per_minute, every.concurrent_tokens) == (None, None)
    queue = own.classes["standard"]
    assert (queue.queue_requests_max, queue.queue_bytes_max, queue.queue_ms_max) == (4, 0, 5)


def test_it_listens_for_envoy_and_privately_for_its_parent_and_has_a_journal_of_its_own() -> None:
    own = config_of(whole(), 1, AT, FOLDER)
    assert (own.workers, own.listen.extproc, own.listen.scaler) == (1, AT, None)
    assert own.listen.agents == UnixAddress("/tmp/extproc-x/agents.1")
    assert own.listen.admin == UnixAddress("/tmp/extproc-x/admin.1")
    assert own.journal.path == Path("/var/log/serve.journal.w1")
    assert config_of(whole(journal={}), 1, AT, FOLDER).journal.path is None


def test_what_agents_may_name_is_what_the_public_port_allows() -> None:
    config = whole()
    assert config_of(config, 0, AT, FOLDER).hosts_allowed == config.hosts_allowed
    assert not any(one.is_loopback for one in config.hosts_allowed), "the agents' port is for other machines"


def test_it_travels_to_another_process_whole() -> None:
    own = config_of(whole(), 2, AT, FOLDER)
    assert pickle.loads(pickle.dumps(own)) == own


@given(st.integers(1, 10**12), st.integers(1, 16))
def test_all_shares_hold_the_whole_and_at_most_one_more_each(limit: int, workers: int) -> None:
    config = whole(workers=workers, quotas=[{"tokens_per_minute": limit}])
    share = config_of(config, 0, AT, FOLDER).quotas[0].tokens_per_minute
    assert share is not None
    assert limit <= share * workers < limit + workers
