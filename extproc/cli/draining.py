"""The command that takes nodes out of use before their engines are stopped."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from extproc.address import Address

STILL_BUSY: Final = 3
"""Exit status where there were requests left when the time was up."""
_ANSWER_S: Final = 5.0
"""Longest wait for the agent's answer, beyond what it was asked to wait for."""


@click.command()
@click.option(
    "--admin",
    default="127.0.0.1:9005",
    envvar="EXTPROC_ADMIN",
    show_envvar=True,
    show_default=True,
    help="The agent's own port: host:port or unix:/path, as its `admin` says.",
)
@click.option("--node", "nodes", multiple=True, help="Which node; may be given several times.  [default: all]")
@click.option("--wait", default=0.0, show_default=True, help="Seconds to wait until its engine has no requests.")
@click.option("--hold", is_flag=True, help="Let it drain until --undo, even after its engine was started again.")
@click.option("--undo", is_flag=True, help="Let it take requests again.")
def drain(admin: str, nodes: tuple[str, ...], wait: float, hold: bool, undo: bool) -> None:
    """Have an agent report its nodes as draining.

    Routers send nothing more there; what runs goes on. It ends when the engine was started again and is ready, unless
    held, or by --undo. For Kubernetes' preStop, systemd's ExecStop, or by hand:

    \b
      extproc drain --wait 60
      extproc drain --node gpu-1 --hold
      extproc drain --node gpu-1 --undo

    Exit status: 0 done, and no requests are left if it waited; 1 the agent was not reached or refused; 2 wrong usage;
    3 requests were left when the time was up.
    """
    from extproc import address

    try:
        at = address.parse(admin)
    except ValueError as error:
        msg = f"--admin: wanted {error}, got {admin!r}"
        raise click.UsageError(msg) from None
    if undo and hold:
        msg = "--hold and --undo are contraries: give one of them"
        raise click.UsageError(msg)
    status, told = asyncio.run(_ask(at, nodes, None if undo else wait, hold=hold))
    if status not in (200, 504):
        click.echo(f"{admin}: {told.get('fault', f'answers {status}')}", err=True)
        sys.exit(1)
    click.echo(json.dumps(told))
    sys.exit(STILL_BUSY if status == 504 else 0)


async def _ask(at: Address, nodes: tuple[str, ...], wait: float | None, *, hold: bool) -> tuple[int, dict[str, Any]]:
    """The agent's answer; status 0 if there is none. `wait`: `None` to undo."""
    import aiohttp

    from extproc.address import UnixAddress

    query = [("node", node) for node in nodes] + ([] if wait is None else [("wait", f"{wait:g}")])
    query += [("hold", "1")] if hold else []
    connector = aiohttp.UnixConnector(at.path) if isinstance(at, UnixAddress) else None
    host = "localhost" if isinstance(at, UnixAddress) else str(at)
    url = f"http://{host}/{'undrain' if wait is None else 'drain'}"
    timeout = aiohttp.ClientTimeout(total=max(0.0, wait or 0.0) + _ANSWER_S)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.post(url, params=query) as answer,
        ):
            told = await answer.json()
            return answer.status, told if isinstance(told, dict) else {}
    except TimeoutError:
        return 0, {"fault": "the agent does not answer in time"}
    except (aiohttp.ContentTypeError, ValueError):
        return 0, {"fault": "what answers there is no agent: is it its `admin` port?"}
    except aiohttp.ClientConnectorError as error:
        why = os.strerror(error.os_error.errno).lower() if error.os_error.errno else "no connection"
        return 0, {"fault": f"no agent is reached there ({why}): does it run, and is its `admin` this address?"}
    except (aiohttp.ClientError, OSError) as error:
        return 0, {"fault": f"the agent did not answer: {error}"}
