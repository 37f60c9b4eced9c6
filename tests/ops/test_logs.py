import contextlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

CODE = """
import structlog
from extproc.ops import logs
logs.configure(logs.LogFormat({format!r}), {level!r})
log = structlog.get_logger()
log.info("node forgotten", node_id="gpu-1")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("error of ours", where="tick")
"""


def on_a_terminal(code: str) -> str:
    """What the code writes to a stderr that is a terminal."""
    controller, terminal = pty.openpty()
    try:
        subprocess.run([sys.executable, "-c", code], stderr=terminal, check=True, env=os.environ | {"TERM": "xterm"})
    finally:
        os.close(terminal)
    written = b""
    with contextlib.suppress(OSError):  # at its end
        while chunk := os.read(controller, 65_536):
            written += chunk
    os.close(controller)
    return written.decode()


def logged(log_format: str, level: str) -> str:
    # A process of its own: structlog is configured once per process.
    code = CODE.format(format=log_format, level=level)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert ended.stdout == ""
    return ended.stderr


def test_where_no_terminal_is_a_line_is_a_json_object() -> None:
    plain, error = (json.loads(line) for line in logged("auto", "info").splitlines())
    assert plain["event"] == "node forgotten"
    assert plain["node_id"] == "gpu-1"
    assert plain["level"] == "info"
    assert plain["timestamp"].endswith("Z")
    assert error["level"] == "error"
    assert error["exception"][0]["exc_type"] == "ZeroDivisionError"


def test_text_can_be_asked_for() -> None:
    text = logged("text", "info")
    assert "node forgotten" in text
    assert not text.startswith("{")
    assert "ZeroDivisionError: division by zero" in text


def test_colours_are_for_terminals_only() -> None:
    assert "\x1b" not in logged("text", "info")
    line = CODE.format(format="auto", level="info").split("try:")[0]
    assert "\x1b[" in on_a_terminal(line)
    assert "node forgotten" in on_a_terminal(line)


def test_what_is_under_the_level_is_left_out() -> None:
    (error,) = logged("json", "error").splitlines()
    assert json.loads(error)["event"] == "error of ours"


def test_a_stderr_that_cannot_be_written_loses_lines_and_nothing_else() -> None:
    code = CODE.format(format="json", level="info") + "print('went on')"
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=full, check=False, text=True
        )
    assert ended.stdout == "went on\n"
    closed = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, code], stdout=subprocess.PIPE, check=False, text=True
    )
    assert closed.stdout == "went on\n"


def test_a_pipe_that_nobody_reads_holds_nothing_up() -> None:
    code = """
import structlog
from extproc.ops import logs
logs.configure(logs.LogFormat.JSON, "info")
for number in range(20_000):
    structlog.get_logger().info("line", number=number)
print("went on")
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "went on\n"
        assert process.wait(20) == 0
