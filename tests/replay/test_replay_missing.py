from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.journaled import FLEET, FULL, asks, routes, write
from tests.replay.replaying import LONG, command, replayed


def test_without_its_beginning_decisions_are_not_compared_until_the_next_run(path: Path) -> None:
    write(path, LONG, file_bytes_max=10_000, files_max=3)
    found = replayed(path)
    assert len(found.files) == 3
    assert found.not_compared == {"the beginning of its run is gone": found.decisions}
    assert 0 < found.not_compared_same_node <= found.decisions < 60
    assert (found.identical, found.different, found.damaged) == (0, 0, 0)
    assert command(path).exit_code == 1, "nothing was proven"
    write(path, LONG, file_bytes_max=2**20, files_max=3)
    found = replayed(path)
    assert (found.runs, found.identical, found.different) == (2, 60, 0)
    assert sum(found.not_compared.values()) == found.decisions - 60
    result = command(path)
    assert result.exit_code == 0
    assert "the beginning of its run is gone" in result.stdout


def test_a_file_missing_in_between_is_noticed(path: Path) -> None:
    write(path, LONG, file_bytes_max=10_000, files_max=99)
    count = len(replayed(path).files)
    (path.parent / f"{path.name}.{count - 3}").unlink()
    found = replayed(path)
    assert list(found.not_compared) == ["a file before it is missing"]
    assert found.runs == 1
    assert found.identical > 0
    assert found.good


def test_lost_lines_leave_a_doubt(path: Path) -> None:
    write(path, FLEET + routes(4))
    lines = path.read_bytes().splitlines()
    lines.insert(-4, b'{"call":"lost","lines":3}')
    path.write_bytes(b"\n".join(lines))
    found = replayed(path)
    assert (found.identical, found.not_compared) == (2, {"lines before it could not be written": 2})
    assert found.lines_lost == 3
    assert "lines lost" in command(path).stdout


@pytest.mark.parametrize("options", [(), ("--json",), ("--strategy", "random")])
@pytest.mark.parametrize("lines", [0, 1, None], ids=["an empty file", "a first line", "nodes only"])
def test_no_decision_at_all_proves_nothing(path: Path, lines: int | None, options: tuple[str, ...]) -> None:
    write(path, FLEET)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:lines]))
    result = command(path, *options)
    assert (result.exit_code, result.stderr) == (1, f"{path}: no decision was recorded\n")


def test_decisions_that_cannot_be_compared_prove_nothing_but_what_another_policy_would_do(path: Path) -> None:
    write(path, LONG, file_bytes_max=10_000, files_max=3)
    result = command(path)
    assert (result.exit_code, result.stderr) == (1, f"{path}: no decision could be compared\n")
    result = command(path, "--strategy", "random")
    assert (result.exit_code, result.stderr) == (0, "")


@given(st.data())
def test_a_journal_cut_anywhere_is_good_up_to_there(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("replay") / "j"
    write(path, [*FLEET, *routes(3), *FULL, *asks(3), *FLEET, ("admit", {"calls": 1}), *FULL, *asks(2), ("drain", {})])
    content = path.read_bytes()
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    found = replayed(path)
    assert (found.damaged, found.different) == (0, 0)
    assert found.identical == found.decisions
    assert found.unproven == (None if found.decisions else "no decision was recorded")
    assert found.good is (found.decisions > 0)


def test_a_run_that_was_cut_harms_the_next_one_in_nothing(path: Path) -> None:
    write(path, FLEET + routes(2))
    path.write_bytes(path.read_bytes()[:-30])
    write(path, FLEET + routes(2))
    found = replayed(path)
    assert (found.runs, found.identical, found.cut, found.damaged) == (2, 4, 1, 0)
    assert "lines cut" in command(path).stdout
