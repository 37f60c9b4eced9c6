from pathlib import Path

import pytest

from extproc.regularfile import open_regular
from tests.irregular import IRREGULAR, irregular


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    (tmp_path / "link").symlink_to(path)
    for one in (path, tmp_path / "link"):
        with open_regular(one) as file:
            assert file.read() == b"content"


@pytest.mark.parametrize("kind", IRREGULAR)
def test_whatever_else_is_refused_and_left_closed(tmp_path: Path, kind: str) -> None:
    reason = irregular(tmp_path / "file", kind)
    before = open_files()
    with pytest.raises(OSError, match=reason) as raised:
        open_regular(tmp_path / "file")
    assert (raised.value.strerror, raised.value.filename) == (reason, str(tmp_path / "file"))
    assert open_files() == before


def open_files() -> list[str]:
    return sorted(one.name for one in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize(
    ("name", "reason"),
    [("nowhere", "No such file or directory"), ("a\0b", "embedded null byte"), ("\ud800", "surrogates not allowed")],
)
def test_what_names_no_file_is_an_error_of_the_same_kind(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(OSError, match=reason) as raised:
        open_regular(tmp_path / name)
    assert reason in str(raised.value.strerror)
