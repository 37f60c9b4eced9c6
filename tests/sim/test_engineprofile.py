from pathlib import Path

import pytest

from extproc.sim import engineprofile
from extproc.sim.steptime import StepCost

GOOD = "step_s: 0.01\nprefill_token_s: 1.0e-5\ndecoding_sequence_s: 0.0\nkv_token_s: 0\nattention_pair_s: 1.0e-9\n"


def test_the_default_profile_is_what_engines_have_by_default() -> None:
    assert engineprofile.read(engineprofile.DEFAULT) == StepCost()


def test_a_profile_gives_every_cost(tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text(GOOD)
    assert engineprofile.read(file) == StepCost(0.01, 1e-5, 0.0, 0.0, 1e-9)


@pytest.mark.parametrize("number", ["1e-9", "1E-9", "1.e-9", "1.0e-9", "1.0E-09"])
def test_a_number_may_be_written_as_json_has_it(tmp_path: Path, number: str) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text(GOOD.replace("1.0e-9", number).replace("0.01", "1e1"))
    assert engineprofile.read(file) == StepCost(10.0, 1e-5, 0.0, 0.0, 1e-9)


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", ["(top): wanted a mapping, got None"]),
        ("[]", ["(top): wanted a mapping, got []"]),
        (GOOD + "speed: 1\n", ["speed: wanted a known key, got 1"]),
        (GOOD.replace("step_s: 0.01\n", ""), ["step_s: wanted a value, got nothing"]),
        (GOOD.replace("0.01", "0"), ["step_s: wanted greater than 0, got 0"]),
        (GOOD.replace("0.01", "61"), ["step_s: wanted less than or equal to 60, got 61"]),
        (GOOD.replace("1.0e-5", "-1.0e-5"), ["prefill_token_s: wanted greater than or equal to 0, got -1e-05"]),
        (GOOD.replace("1.0e-5", ".nan"), ["prefill_token_s: wanted a finite number, got nan"]),
        (GOOD.replace("1.0e-5", "fast"), ["prefill_token_s: wanted a valid number, got 'fast'"]),
        (GOOD.replace("1.0e-5", "1e999"), ["prefill_token_s: wanted a finite number, got inf"]),
        (GOOD.replace("1.0e-5", "'0.5'"), ["prefill_token_s: wanted a valid number, got '0.5'"]),
        (GOOD.replace("kv_token_s: 0", "kv_token_s: 1.1"), ["kv_token_s: wanted less than or equal to 1, got 1.1"]),
    ],
)
def test_what_is_no_profile_is_told_with_its_place(tmp_path: Path, text: str, faults: list[str]) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text(text)
    found = engineprofile.read(file)
    assert isinstance(found, list)
    assert [str(one) for one in found] == [f"{file}: {fault}" for fault in faults]


def test_a_file_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    found = engineprofile.read(tmp_path / "none.yaml")
    assert isinstance(found, list)
    assert found[0].wanted == "a readable file"
