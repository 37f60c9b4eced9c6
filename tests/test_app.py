"""`python -m extproc serve` as its users meet it: a process, real gRPC and HTTP, real signals."""

import json
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import yaml
from click.testing import CliRunner
from envoy.config.core.v3.base_pb2 import HeaderMap, HeaderValue
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3.external_processor_pb2 import (
    HttpBody,
    HttpHeaders,
    ProcessingRequest,
    ProtocolConfiguration,
)
from envoy.service.ext_proc.v3.external_processor_pb2_grpc import ExternalProcessorStub
from grpc_health.v1 import health_pb2, health_pb2_grpc
from msgspec.structs import replace

from extproc.app import HEALTH_SERVICES, _ended
from extproc.children import Child, ourselves
from extproc.cli import main
from extproc.core.decision import Chosen
from extproc.core.policy import RoutingPolicy
from extproc.gateway.accesslog import AnswerEnded
from extproc.ops.metrics import Metrics
from extproc.pb import nodes_pb2, nodes_pb2_grpc
from tests.core.fleet import MODEL, NOW_S, balancer, request
from tests.core.fleet import snapshot as core_snapshot
from tests.tokens.bpe import train
from tests.waiting import until

ANY_PORTS = {"extproc": "127.0.0.1:0", "agents": "127.0.0.1:0", "admin": "127.0.0.1:0"}
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@dataclass
class Served:
    """A running serve and connections to it."""

    child: Child
    at: dict[str, str]
    envoy: grpc.aio.Channel
    agents: grpc.aio.Channel
    http: aiohttp.ClientSession

    @property
    def health(self) -> Any:
        return health_pb2_grpc.HealthStub(self.envoy)

    def stream(self, *metadata: tuple[str, str]) -> Any:
        return ExternalProcessorStub(self.envoy).Process(metadata=metadata)

    def agent(self) -> Any:
        return nodes_pb2_grpc.NodesStub(self.agents).Report()  # type: ignore[no-untyped-call]

    async def page(self, path: str) -> str:
        async with self.http.get(self._url(path)) as response:
            return await response.text()

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.http.get(f"http://serve{path}" if "unix" in self.at["admin"] else self._url(path)) as response:
            return response.status, await response.json(content_type=None)

    def _url(self, path: str) -> str:
        return f"http://{self.at['admin']}{path}"


Serve = Callable[..., Awaitable[Served]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Child]]]:
    children: list[Child] = []

    async def start(config: dict[str, Any]) -> Child:
        path = tmp_path / "serve.yaml"
        path.write_text(yaml.safe_dump({"listen": ANY_PORTS} | config))
        children.append(await Child.start("serve", ourselves("serve", "--config", str(path)), tmp_path))
        return children[-1]

    yield start
    for child in children:
        if child.running:
            await child.kill()


@pytest.fixture
async def serve(start: Callable[..., Awaitable[Child]]) -> AsyncIterator[Serve]:
    running: list[Served] = []

    async def serve(**config: Any) -> Served:
        child = await start(config)
        at = json.loads((await child.logged(r'^\{.*"event": ?"listening".*\}$', within_s=30))[0])
        path = at["admin"].removeprefix("unix:") if "unix" in at["admin"] else None
        served = Served(
            child,
            at,
            grpc.aio.insecure_channel(at["extproc"]),
            grpc.aio.insecure_channel(at["agents"]),
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(path) if path else None),
        )
        running.append(served)
        return served

    yield serve
    for served in running:
        await served.envoy.close()
        await served.agents.close()
        await served.http.close()


def headers() -> ProcessingRequest:
    pairs = {":method": "POST", ":path": "/v1/completions"}
    values = [HeaderValue(key=key, raw_value=value.encode()) for key, value in pairs.items()]
    return ProcessingRequest(
        request_headers=HttpHeaders(headers=HeaderMap(headers=values)),
        protocol_config=ProtocolConfiguration(request_body_mode=ProcessingMode.BUFFERED),
    )


def body(**fields: Any) -> ProcessingRequest:
    text = json.dumps({"model": "m", "prompt": "hello"} | fields)
    return ProcessingRequest(request_body=HttpBody(body=text.encode(), end_of_stream=True))


async def asked(stream: Any, **fields: Any) -> Any:
    """Send one whole request on a stream; the reply that carries the decision."""
    await stream.write(headers())
    assert (await stream.read()).WhichOneof("response") == "request_headers"
    await stream.write(body(**fields))
    return await stream.read()


def snapshot(node_id: str = "gpu-1") -> nodes_pb2.AgentMessage:
    return nodes_pb2.AgentMessage(
        snapshot=nodes_pb2.NodeSnapshot(
            node_id=node_id, host="127.0.0.1:8000", boot_id="b", sequence=1, state=nodes_pb2.NODE_STATE_READY
        )
    )


async def reported(served: Served) -> Any:
    """An agent's open stream on which one node was reported."""
    stream = served.agent()
    await stream.write(snapshot())
    reply = await stream.read()
    assert reply.acknowledgement.verdict == nodes_pb2.Acknowledgement.VERDICT_APPLIED, reply
    return stream


async def test_it_is_ready_once_an_agent_has_reported_a_node(serve: Serve) -> None:
    served = await serve()
    assert await served.get("/readyz") == (503, {"ready": False, "reason": "no node has reported"})
    await reported(served)
    assert await served.get("/readyz") == (200, {"ready": True, "nodes": 1, "nodes_ready": 1})
    _, page = await served.get("/nodes")
    assert [node["node_id"] for node in page["nodes"]] == ["gpu-1"]


async def test_a_reported_node_is_chosen_counted_and_freed_at_the_streams_end(serve: Serve) -> None:
    served = await serve(nodes={"report_interval_s": 0.01, "fresh_s": 60, "stale_s": 60})
    await reported(served)

    async def own() -> int:
        _, page = await served.get("/nodes")
        open_: int = page["nodes"][0]["own"]["sequences_open"]
        return open_

    async def destination() -> tuple[Any, Any] | None:
        stream = served.stream()
        reply = await asked(stream)
        if set_headers := reply.request_body.response.header_mutation.set_headers:
            return stream, set_headers[0]
        await stream.done_writing()  # two report intervals have not passed yet
        return None

    found: Any = await until(destination)
    stream, header = found
    assert (header.header.key, header.header.raw_value) == ("x-envoy-original-dst-host", b"127.0.0.1:8000")
    assert await own() == 1
    _, page = await served.get("/decisions?limit=1")
    assert page["decisions"][0]["outcome"]["node_id"] == "gpu-1"
    await stream.done_writing()
    assert await stream.code() == grpc.StatusCode.OK

    async def freed() -> bool:
        return await own() == 0

    await until(freed)


@pytest.mark.parametrize("service", HEALTH_SERVICES)
async def test_the_health_service_answers_for_its_names(serve: Serve, service: str) -> None:
    served = await serve()
    assert (await served.health.Check(health_pb2.HealthCheckRequest(service=service))).status == SERVING


async def test_a_configured_tokenizer_counts_prompts(serve: Serve, tmp_path: Path) -> None:
    expected = len(train(tmp_path / "t.json").encode("the quick brown fox").ids)
    served = await serve(tokens={"models": {"known-*": {"tokenizer": "t.json"}}})

    async def tokens(model: str) -> tuple[float, bool]:
        reply = await asked(served.stream(), model=model, prompt="the quick brown fox")
        fields = reply.dynamic_metadata.fields["extproc"].struct_value.fields
        return fields["tokens"].number_value, fields["tokens_exact"].bool_value

    assert await tokens("known-1") == (expected, True)
    assert await tokens("other") == (5, False)


async def test_tokenizers_are_told_with_the_reason_of_each_choice(serve: Serve, tmp_path: Path) -> None:
    train(tmp_path / "t.json")
    models = {
        "known-*": {"tokenizer": "t.json"},
        "lora": {"base": "known-1"},
        "gone": {"tokenizer": "no-such", "required": False},
    }
    served = await serve(tokens={"models": models})
    page = await served.page("/metrics")
    told = [line for line in page.splitlines() if line.startswith("extproc_tokenizer_info")]
    gone, known = sorted(told, key=lambda line: 'engine="none"' not in line)
    assert 'reason="wanted a folder or a tokenizer.json' in gone
    assert 'models="gone"' in gone
    assert 'engine="fastokens"' in known
    assert 'reason="agrees with tokenizers on' in known
    assert 'models="known-*, lora"' in known


@pytest.mark.parametrize("exact", [True, False])
def test_what_the_engine_counted_is_compared_with_our_count(exact: bool) -> None:
    metrics = Metrics()
    answer = AnswerEnded("a-1", 200, "via_upstream", (), "10.0.0.1:80", 0.25, 2.0, "m", 10, exact, 12, 5)
    for one in (answer, replace(answer, prompt_tokens=None), replace(answer, counted_tokens=None)):
        _ended(balancer(), metrics, lambda: NOW_S, one)
    page = metrics.page(()).decode()
    for name, label, number in (
        ("extproc_token_usage_difference_tokens_bucket", f'exact="{str(exact).lower()}",le="1.0"', 0),
        ("extproc_token_usage_difference_tokens_bucket", f'exact="{str(exact).lower()}",le="10.0"', 1),
        ("extproc_token_usage_difference_tokens_bucket", f'exact="{str(not exact).lower()}",le="+Inf"', 0),
        ("extproc_answers_total", 'status="2xx"', 3),
        ("extproc_answer_seconds_bucket", 'le="1.0"', 0),
        ("extproc_answer_seconds_bucket", 'le="3.0"', 3),
        ("extproc_answer_first_byte_seconds_bucket", 'le="0.3"', 3),
    ):
        assert f"{name}{{{label}}} {number}.0" in page.splitlines(), (name, label)


def test_the_balancer_learns_how_requests_ended_that_it_sent_or_another() -> None:
    fleet = balancer(core_snapshot("a"), core_snapshot("b"))
    assert isinstance(fleet.route(request("a-1"), RoutingPolicy(), NOW_S).outcome, Chosen)
    good = AnswerEnded("a-1", 200, "via_upstream", (), None, 0.25, 2.0, MODEL, 10, True, None, 900)
    _ended(fleet, Metrics(), lambda: NOW_S, good)
    assert fleet.requests_open == 0
    # Of a request that another process sent: it says as much about the node.
    bad = replace(good, request_id="other-1", status=503, upstream_host=core_snapshot("a").host, completion_tokens=None)
    _ended(fleet, Metrics(), lambda: NOW_S, bad)
    # Neither of a node of ours, nor of a request of ours.
    _ended(fleet, Metrics(), lambda: NOW_S, replace(bad, request_id="other-2", upstream_host="10.9.9.9:1"))
    sent = [fleet.route(request(f"a-{number}"), RoutingPolicy(), NOW_S).outcome for number in range(2, 10)]
    assert [one.node_id for one in sent if isinstance(one, Chosen)] == ["b"] * 8


async def test_sigterm_lets_decided_streams_go_with_ok_and_ends_with_status_0(serve: Serve) -> None:
    served = await serve()
    streams = [served.stream() for _ in range(3)]
    for stream in streams:
        await asked(stream)
    agent = await reported(served)
    served.child.signal(signal.SIGTERM)
    assert [await stream.code() for stream in streams] == [grpc.StatusCode.OK] * 3
    assert await agent.code() == grpc.StatusCode.OK
    assert await served.child.ended() == 0


async def test_a_journal_is_replayed_to_the_same_decisions_and_holds_no_text(serve: Serve, tmp_path: Path) -> None:
    settings = {"nodes": {"report_interval_s": 0.01, "fresh_s": 60, "stale_s": 60}}
    served = await serve(journal={"path": str(tmp_path / "serve.journal")}, **settings)
    await reported(served)

    async def chosen() -> bool:
        stream = served.stream()
        reply = await asked(stream, prompt="a secret of the client's " * 40)
        await stream.done_writing()
        return bool(reply.request_body.response.header_mutation.set_headers)

    await until(chosen)
    served.child.signal(signal.SIGTERM)
    assert await served.child.ended() == 0
    assert "secret" not in (tmp_path / "serve.journal").read_text()
    replayed = CliRunner().invoke(main, ["replay", str(tmp_path / "serve.journal"), "--json"])
    told = json.loads(replayed.stdout)
    assert (replayed.exit_code, told["different"]) == (0, 0)
    assert told["identical"] >= 1


async def test_a_journal_that_cannot_be_written_keeps_it_from_starting(
    start: Callable[..., Awaitable[Child]], tmp_path: Path
) -> None:
    config = {"listen": ANY_PORTS, "journal": {"path": str(tmp_path / "nowhere" / "serve.journal")}}
    child = await start(config)
    assert await child.ended() == 1
    assert "journal.path: wanted a file that can be written" in child.log.read_text()


async def test_while_it_drains_new_streams_are_refused_and_open_ones_are_decided(serve: Serve) -> None:
    served = await serve(drain_s=60)
    undecided = served.stream()
    await undecided.write(headers())
    await undecided.read()
    watch = served.health.Watch(health_pb2.HealthCheckRequest(service=HEALTH_SERVICES[1]))
    assert (await watch.read()).status == SERVING

    served.child.signal(signal.SIGTERM)
    assert (await watch.read()).status == NOT_SERVING
    assert await served.get("/readyz") == (503, {"ready": False, "reason": "draining"})
    refused = served.stream()
    assert await refused.code() == grpc.StatusCode.UNAVAILABLE
    await undecided.write(body())
    assert (await undecided.read()).WhichOneof("response") == "request_body"
    assert await undecided.code() == grpc.StatusCode.OK
    watch.cancel()
    assert await served.child.ended() == 0


async def test_streams_that_stay_undecided_are_cut_off_after_drain_s(serve: Serve) -> None:
    served = await serve(drain_s=0.1)
    undecided = served.stream()
    await undecided.write(headers())
    await undecided.read()
    served.child.signal(signal.SIGINT)
    assert await undecided.code() != grpc.StatusCode.OK
    assert await served.child.ended() == 0


async def test_a_second_signal_ends_it_at_once(serve: Serve) -> None:
    served = await serve(drain_s=600)
    undecided = served.stream()
    await undecided.write(headers())
    await undecided.read()
    served.child.signal(signal.SIGTERM)
    await served.child.logged('"draining"', within_s=30)
    served.child.signal(signal.SIGTERM)
    assert await served.child.ended() == 128 + signal.SIGTERM


async def test_streams_over_the_limit_are_refused_and_health_checks_are_not(serve: Serve) -> None:
    served = await serve(limits={"streams_max": 2})
    streams = [served.stream() for _ in range(2)]
    for stream in streams:
        await asked(stream)
    assert await served.stream().code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    healthy = await served.health.Check(health_pb2.HealthCheckRequest(service=HEALTH_SERVICES[1]))
    assert healthy.status == SERVING, "health checks are no streams"
    await streams[0].done_writing()
    assert await streams[0].code() == grpc.StatusCode.OK
    await asked(served.stream())


async def test_policies_and_their_limits_are_those_of_the_configuration(serve: Serve) -> None:
    served = await serve(policies={"batch": {}}, default_policy="batch", limits={"policy_bytes_max": 64})

    async def policy(value: str | None) -> tuple[str, str]:
        metadata = [] if value is None else [("x-extproc-policy", value)]
        fields = (await asked(served.stream(*metadata))).dynamic_metadata.fields["extproc"].struct_value.fields
        return fields["policy"].string_value, fields["policy_error"].string_value

    assert await policy(None) == ("batch", "")
    assert await policy("default") == ("default", "")
    assert await policy(json.dumps({"name": "x" * 49})) == ("x" * 49, "")
    assert await policy(json.dumps({"name": "x" * 53})) == ("batch", "wanted at most 64 bytes, got 65")


async def test_bodies_up_to_the_limit_are_read_and_longer_ones_get_413(serve: Serve) -> None:
    served = await serve(limits={"body_bytes_max": "5MiB"})  # over gRPC's own limit of 4 MiB
    empty = len(body(prompt="").request_body.body)
    longest = 5 * 1024 * 1024 - empty
    assert (await asked(served.stream(), prompt="a" * longest)).WhichOneof("response") == "request_body"
    refused = await asked(served.stream(), prompt="a" * (longest + 1))
    assert refused.immediate_response.status.code == 413


async def test_agents_are_held_to_the_configured_limits(serve: Serve) -> None:
    limits = {"agent_streams_max": 1, "agent_message_bytes_max": 1024}
    served = await serve(hosts_allowed=["10.0.0.0/8"], limits=limits)
    agent = served.agent()
    await agent.write(snapshot())
    acknowledgement = (await agent.read()).acknowledgement
    assert acknowledgement.verdict == nodes_pb2.Acknowledgement.VERDICT_REFUSED, "127.0.0.1 is not allowed here"
    assert await served.agent().code() == grpc.StatusCode.RESOURCE_EXHAUSTED, "a second agent"
    await agent.write(snapshot("x" * 1024))
    assert await agent.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, "a message that is too long"
    assert (await served.get("/readyz"))[0] == 503


async def test_a_silent_node_is_forgotten(serve: Serve) -> None:
    served = await serve(nodes={"fresh_s": 0.1, "stale_s": 0.1, "member_s": 0.1, "prune_interval_s": 0.05})
    await reported(served)

    async def gone() -> bool:
        return (await served.get("/readyz"))[0] == 503

    await until(gone)
    await served.child.logged('"node left"', within_s=10)


async def test_every_server_can_listen_at_a_unix_socket(serve: Serve, tmp_path: Path) -> None:
    listen = {name: f"unix:{tmp_path}/{name}.sock" for name in ANY_PORTS}
    served = await serve(listen=listen)
    assert {name: served.at[name] for name in listen} == listen
    await reported(served)
    assert (await served.get("/readyz"))[0] == 200
    await asked(served.stream())
    await served.child.kill()
    again = await serve(listen=listen)
    assert (await again.get("/readyz"))[0] == 503, "the sockets that the killed process left were replaced"


async def refusal(child: Child) -> str:
    """What a serve that cannot start said."""
    assert await child.ended() == 1
    return child.log.read_text()


@pytest.mark.parametrize("server", sorted(ANY_PORTS))
async def test_a_taken_port_is_one_clear_line_and_status_1(start: Callable[..., Awaitable[Child]], server: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        child = await start({"listen": ANY_PORTS | {server: at}})
        assert await refusal(child) == (
            f"listen: wanted an address that can be listened at, got {at}: Address already in use\n"
        )


@pytest.mark.parametrize("server", sorted(ANY_PORTS))
async def test_nobody_can_share_a_port_of_ours(serve: Serve, server: str) -> None:
    host, port = (await serve()).at[server].split(":")
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with pytest.raises(OSError, match="Address already in use"):
            other.bind((host, int(port)))


@pytest.mark.parametrize("server", sorted(ANY_PORTS))
async def test_a_unix_socket_of_another_serve_and_a_file_are_left_alone(
    serve: Serve, start: Callable[..., Awaitable[Child]], tmp_path: Path, server: str
) -> None:
    path = tmp_path / "a.sock"
    served = await serve(listen=ANY_PORTS | {"extproc": f"unix:{path}"})
    child = await start({"listen": ANY_PORTS | {server: f"unix:{path}"}})
    assert await child.ended() == 1
    await asked(served.stream())
    file = tmp_path / "precious"
    file.write_text("kept")
    child = await start({"listen": ANY_PORTS | {server: f"unix:{file}"}})
    assert await child.ended() == 1
    assert file.read_text() == "kept"


async def test_a_broken_tokenizer_keeps_it_from_starting(
    start: Callable[..., Awaitable[Child]], tmp_path: Path
) -> None:
    (tmp_path / "t.json").write_text("{}")
    child = await start({"tokens": {"models": {"llama-*": {"tokenizer": "t.json"}}}})
    said = await refusal(child)
    assert said.startswith(f"tokens.models.llama-*.tokenizer: wanted a tokenizer.json, got {tmp_path}/t.json: ")
    assert said.count("\n") == 1


async def test_a_faulty_configuration_keeps_it_from_starting(start: Callable[..., Awaitable[Child]]) -> None:
    assert await refusal(await start({"drain_s": -1})) == "drain_s: wanted greater than or equal to 0, got -1\n"
