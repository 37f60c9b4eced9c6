"""A process that has imported the product, and forks itself for each `python -m extproc …` that tests ask for.

Nine tenths of what a start costs is imports, and tests start hundreds. Here they are paid once for each worker of the
tests; what runs after them is the whole of the real program: `__main__` run as by `-m`, in a process, a session and
with an output of its own, ended by Python's own end. No thread may run before a fork, so nothing is begun here.

Run as `python -m tests.forkserver FD`, the descriptor of a SOCK_SEQPACKET socket. Each message there has arguments, a
folder and two descriptors: where the child's output goes, and a pipe that is told its pid, then its exit status.
"""

import gc
import importlib
import json
import os
import runpy
import selectors
import socket
import sys
from contextlib import suppress
from pathlib import Path

from extproc.children import end_with_parent
from extproc.cli.common import let_grpc_log_errors_only

COMMANDS = ("serve", "agent", "emulate")
MESSAGE_BYTES_MAX = 65536

_IMPORTED = ("extproc.app", "extproc.agent.agent", "extproc.agent.credentials", "extproc.sim.emulator")


def _next_child(asked: int) -> tuple[list[str], int] | None:
    """Fork as often as asked. Returns in each child, with its arguments and output, and at the end in the parent."""
    asking = socket.socket(fileno=asked)
    with selectors.DefaultSelector() as watched:
        watched.register(asking, selectors.EVENT_READ)
        while True:
            for key, _ in watched.select():
                if key.data is not None:
                    _tell_end(watched, key)
                    continue
                message, descriptors, _, _ = socket.recv_fds(asking, MESSAGE_BYTES_MAX, 2)
                if not message:
                    return None
                threads = len(list(Path("/proc/self/task").iterdir()))
                assert threads == 1, "what another thread holds stays held in the child"
                output, told = descriptors
                arguments, folder = json.loads(message)
                pid = os.fork()
                if pid == 0:
                    os.chdir(folder)
                    os.close(told)
                    _close(watched)
                    return arguments, output
                os.close(output)
                _tell(told, pid)
                watched.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, told))


def _tell_end(watched: selectors.BaseSelector, ended: selectors.SelectorKey) -> None:
    pid, told = ended.data
    _, status = os.waitpid(pid, 0)
    watched.unregister(ended.fd)
    os.close(ended.fd)
    _tell(told, os.waitstatus_to_exitcode(status))
    os.close(told)


def _tell(told: int, number: int) -> None:
    with suppress(BrokenPipeError):  # a test may have given up
        os.write(told, f"{number}\n".encode())


def _close(watched: selectors.BaseSelector) -> None:
    """Close in a child what is the parent's."""
    for key in list(watched.get_map().values()):
        if key.data is None:
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        else:
            os.close(key.fd)
            os.close(key.data[1])


def _become(arguments: list[str], output: int) -> None:
    """What the kernel and the interpreter do for `python -m extproc`."""
    os.setsid()
    end_with_parent()
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.argv = ["extproc", *arguments]
    runpy.run_module("extproc", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    end_with_parent()
    let_grpc_log_errors_only()
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # no child walks them, and their pages stay shared
    if child := _next_child(int(sys.argv[1])):
        _become(*child)
