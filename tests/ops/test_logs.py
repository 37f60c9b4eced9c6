import json
import subprocess
import sys

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
    assert "ZeroDivisionError" in text


def test_what_is_under_the_level_is_left_out() -> None:
    (error,) = logged("json", "error").splitlines()
    assert json.loads(error)["event"] == "error of ours"
