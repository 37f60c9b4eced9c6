from pathlib import Path

import pytest

from extproc.sim import traces

NOON = "2023-11-16 12:00:00.0000000"


def written(folder: Path, *rows: str) -> Path:
    path = folder / "trace"
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    return path


def test_timestamps_may_be_plain_seconds(tmp_path: Path) -> None:
    taken = traces.read(written(tmp_path, "1700000000.25,1,1", "1700000002, 2,1", " 1700000001.000001,3,1"))
    assert isinstance(taken, list)
    assert [(arrival.at_s, arrival.prompt_tokens) for arrival in taken] == [(0.0, 1), (0.750001, 3), (1.75, 2)]


@pytest.mark.parametrize("second", [NOON, "-1", "1e3", "nan", "", "9" * 13])
def test_a_file_in_seconds_is_so_in_every_row(tmp_path: Path, second: str) -> None:
    path = written(tmp_path, "0,1,1", f"{second},1,1")
    assert str(traces.read(path)) == f"{path}:3: wanted TIMESTAMP in seconds, as in the first row, got {second}"


def test_a_file_in_dates_is_so_in_every_row(tmp_path: Path) -> None:
    path = written(tmp_path, f"{NOON},1,1", "17.5,1,1")
    wanted = "TIMESTAMP as 2023-11-16 18:15:46.6805900, or in seconds"
    assert str(traces.read(path)) == f"{path}:3: wanted {wanted}, got 17.5"
