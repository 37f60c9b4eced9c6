"""Which headers are taken to pass Envoy."""

from typing import Any

import pytest

from extproc.core.quotas import Quotas
from extproc.envoycheck.file import At
from extproc.envoycheck.headers import dropped, hidden, matches, removes
from extproc.envoycheck.needs import QUOTA_HEADERS, READ_HEADERS
from extproc.gateway import requesthead
from extproc.gateway.codec import DESTINATION_HEADER
from tests.bootstraps import configured

Json = Any


@pytest.mark.parametrize(
    ("regex", "whether"),
    [
        ("x-a", True),
        ("x-", False),
        ("X-A", False),
        ("(?i)X-A", True),
        ("[[:alpha:]-]+", True),
        ("a|x-a", True),
        (r"\pL-\pL", True),
        ("(([a-z-])+)+!", False),
        (r"\Qx-a\E", None),
        ("(", None),
        ("\ud800", False),
        (7, None),
        ({}, None),
    ],
)
def test_expressions_match_whole_texts_and_those_that_cannot_be_read_tell_nothing(
    regex: Json, whether: bool | None
) -> None:
    assert matches(regex, "x-a") is whether
    if whether is None:
        rules = At("", {"allow_expression": {"regex": regex}, "disallow_expression": {"regex": regex}})
        assert dropped(rules, DESTINATION_HEADER) is None
        patterns = {"patterns": [{"safe_regex": {"regex": regex}}]}
        assert hidden(At("", {"allowed_headers": patterns, "disallowed_headers": patterns}), "x-a") is None


def test_the_headers_are_those_that_are_set_and_read() -> None:
    assert set(READ_HEADERS) == requesthead._ALWAYS
    quotas = Quotas(configured(quotas=[{"tokens_per_minute": 1}]).quotas, buckets_max=1)
    quotas.take("first", "", "m", 1, 0.0)
    exceeded = quotas.check("", "m", 1, 0.0)
    assert exceeded is not None
    assert {name for name, _ in exceeded.headers} == set(QUOTA_HEADERS)


@pytest.mark.parametrize(
    ("mutation", "whether"),
    [
        ({"remove": "x-a"}, True),
        ({"remove": "X-A"}, True),
        ({"remove": "x-ab"}, False),
        ({"remove_on_match": {"key_matcher": {"prefix": "x-"}}}, True),
        ({"remove_on_match": {"key_matcher": {"exact": "x-b"}}}, False),
        ({"remove_on_match": {"key_matcher": {"custom": {}}}}, False),
        ({"append": {"header": {"key": "X-A", "value": "1"}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}}, True),
        ({"append": {"header": {"key": "x-a", "value": "1"}, "append_action": "ADD_IF_ABSENT"}}, False),
        ({"append": {"header": {"key": "x-a", "value": "1"}}}, False),
        ({"append": {"header": {"key": "x-b", "value": "1"}, "append_action": 3}}, False),
        ([], False),
    ],
)
def test_a_mutation_may_leave_nothing_of_what_a_client_said(mutation: Json, whether: bool) -> None:
    assert removes(At("", mutation), "x-a") is whether
