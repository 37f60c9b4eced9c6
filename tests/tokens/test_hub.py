"""A model's files from a hub, over HTTP: the server here answers as Hugging Face's does."""

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio
from aiohttp import web

from tests.tokens.bpe import train

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
COMMITS = {"main": "a" * 40, "v2": "b" * 40}
NO_NETWORK = "http://127.0.0.1:9"
"""Where the library is told so, and need not find out in 20 s."""
LOAD = """
import json, sys
from extproc.tokensettings import TokenSettings
from extproc.tokens.loading import Tokenizers, load
loaded = load(TokenSettings.model_validate({"models": {"m": json.loads(sys.argv[1])}}))
print(json.dumps([loaded.of("m").name, loaded.of("m").template is not None] if isinstance(loaded, Tokenizers) else
    [str(fault) for fault in loaded]))
"""


class Hub:
    """Repositories of files, each at two commits, and what was asked of it."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.asked: list[str] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        asked = request.match_info
        self.asked.append(f"{request.method} {asked['revision']} {asked['file']}")
        commit = COMMITS.get(asked["revision"], asked["revision"])
        headers = {"X-Repo-Commit": commit}
        if asked["repository"] != "org/model":
            return web.Response(status=404, headers={"X-Error-Code": "RepoNotFound"})
        if commit not in COMMITS.values():
            return web.Response(status=404, headers={"X-Error-Code": "RevisionNotFound"})
        if (content := self.files.get(asked["file"])) is None:
            return web.Response(status=404, headers=headers | {"X-Error-Code": "EntryNotFound"})
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        return web.Response(body=content, headers=headers | {"ETag": etag})


@pytest_asyncio.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    train(tmp_path / "t.json")
    config = json.dumps({"chat_template": TEMPLATE}).encode()
    hub = Hub({"tokenizer.json": (tmp_path / "t.json").read_bytes(), "tokenizer_config.json": config, "x.bin": b"x"})
    app = web.Application()
    app.router.add_get("/{repository:[^/]+/[^/]+}/resolve/{revision}/{file:.+}", hub.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    hub.url = f"http://{host}:{port}"
    yield hub
    await runner.cleanup()


async def loaded(url: str, cache: Path, **entry: Any) -> list[Any]:
    """Name and template of an entry's model, or faults; by a process of its own, since settings are read once."""
    entry = {"tokenizer": "org/model", "hub": True} | entry
    environment = os.environ | {
        "HF_ENDPOINT": url,
        "HF_HOME": str(cache),
        "HF_HUB_OFFLINE": str(int(url == NO_NETWORK)),
    }
    environment = {name: one for name, one in environment.items() if "proxy" not in name.lower()}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", LOAD, json.dumps(entry)),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert not err, "no bars of progress in a log"
    answer: list[Any] = json.loads(out.decode().splitlines()[-1])
    return answer


async def test_just_the_files_that_count_are_fetched_at_one_commit(hub: Hub, tmp_path: Path) -> None:
    assert await loaded(hub.url, tmp_path / "cache") == ["org/model", True]
    assert {one.split()[2] for one in hub.asked} == {
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "chat_template.json",
        "additional_chat_templates/tool_use.jinja",
    }
    revisions = {one.split()[1] for one in hub.asked if not one.endswith(" tokenizer.json")}
    assert revisions == {COMMITS["main"]}, "a branch may move on between two files"


async def test_the_revision_is_the_one_that_was_asked_for(hub: Hub, tmp_path: Path) -> None:
    assert await loaded(hub.url, tmp_path / "cache", revision="v2") == ["org/model", True]
    assert {one.split()[1] for one in hub.asked} <= {"v2", COMMITS["v2"]}


async def test_what_was_fetched_is_not_fetched_again(hub: Hub, tmp_path: Path) -> None:
    await loaded(hub.url, tmp_path / "cache")
    hub.asked.clear()
    assert await loaded(hub.url, tmp_path / "cache") == ["org/model", True]
    assert hub.asked == ["HEAD main tokenizer.json"], "where the branch stands now"
    assert await loaded(hub.url, tmp_path / "cache", revision=COMMITS["main"]) == ["org/model", True]
    assert len(hub.asked) == 1


async def test_without_a_network_the_cache_serves(hub: Hub, tmp_path: Path) -> None:
    await loaded(hub.url, tmp_path / "cache")
    assert await loaded(NO_NETWORK, tmp_path / "cache") == ["org/model", True]
    [told] = await loaded(NO_NETWORK, tmp_path / "empty")
    assert told.startswith("tokens.models.m.tokenizer: wanted a repository of a hub, got org/model@main: ")


async def test_a_cache_that_does_not_know_whether_a_file_is_there_does_not_serve(hub: Hub, tmp_path: Path) -> None:
    await loaded(hub.url, tmp_path / "cache")
    [known] = await asyncio.to_thread(lambda: [*tmp_path.glob("cache/hub/*/.no_exist/*/chat_template.jinja")])
    known.unlink()
    [told] = await loaded(NO_NETWORK, tmp_path / "cache")
    assert "a repository of a hub" in told


async def test_a_repository_or_revision_that_is_not_there_is_a_fault(hub: Hub, tmp_path: Path) -> None:
    [told] = await loaded(hub.url, tmp_path / "cache", tokenizer="org/other")
    assert told.startswith("tokens.models.m.tokenizer: wanted a repository of a hub, got org/other@main: ")
    [told] = await loaded(hub.url, tmp_path / "cache", revision="v3")
    assert "org/model@v3" in told
    [told] = await loaded(hub.url, tmp_path / "cache", tokenizer="/etc")
    assert "/etc@main" in told


async def test_a_repository_without_a_tokenizer_is_a_fault(hub: Hub, tmp_path: Path) -> None:
    del hub.files["tokenizer.json"]
    [told] = await loaded(hub.url, tmp_path / "cache")
    assert "a repository of a hub, got org/model@main: " in told
    assert "tokenizer.json" in told
