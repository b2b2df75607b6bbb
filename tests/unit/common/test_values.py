"""Text to typed values."""

from typing import Any

import pytest

from edl.common.errors import UsageError
from edl.common.values import convert

pytestmark = pytest.mark.fast

TYPED = dict[str, Any]
TEXTS = dict[str, str]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1,b=2", {"a": 1, "b": 2}),
        ("a=1; b=2", {"a": 1, "b": 2}),
        ("lr=1e-3,x=.5,y=-2.0", {"lr": 1e-3, "x": 0.5, "y": -2.0}),
        ("on=true,off=False,none=null", {"on": True, "off": False, "none": None}),
        ("name=deep fm,path=/a/b.csv", {"name": "deep fm", "path": "/a/b.csv"}),
        ("zip=00123,version=1.2.3", {"zip": "00123", "version": "1.2.3"}),
        ("quoted='1',other=\"a,b=c\"", {"quoted": "1", "other": "a,b=c"}),
        (
            "hidden=[64, 32],map={a: 1, b: [2, 3]}",
            {"hidden": [64, 32], "map": {"a": 1, "b": [2, 3]}},
        ),
        ("columns=age,job,target=y", {"columns": "age,job", "target": "y"}),
        ("apostrophe=it's,b=1", {"apostrophe": "it's", "b": 1}),
        ("empty=,b=1", {"empty": "", "b": 1}),
        ('{"a": 1, "b": {"c": [true]}}', {"a": 1, "b": {"c": [True]}}),
        ("{a: 1, b: x}", {"a": 1, "b": "x"}),
        ("", {}),
        ("code=__import__('os').getcwd()", {"code": "__import__('os').getcwd()"}),
    ],
)
def test_typed_dictionary_is_read_from_text(text: str, expected: dict[str, Any]) -> None:
    assert expected == convert(text, TYPED, "--model_params")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A=1,B=2", {"A": "1", "B": "2"}),
        ("CUDA=0,1,B=2", {"CUDA": "0,1", "B": "2"}),
        ("OPTS='a=1,b=2',C=3", {"OPTS": "a=1,b=2", "C": "3"}),
        ("URL=http://x/?a=1;b=2", {"URL": "http://x/?a=1;b=2"}),
        ("{A: 1}", {"A": "1"}),
    ],
)
def test_environment_stays_text(text: str, expected: dict[str, str]) -> None:
    assert expected == convert(text, TEXTS, "--envs")


def test_repeated_flag_is_merged_and_the_last_wins() -> None:
    assert {"a": 3, "b": 2} == convert(("a=1,b=2", "a=3"), TYPED, "--model_params")


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ("3", int, 3),
        (3.0, int, 3),
        ("none", int | None, None),
        (None, int | None, None),
        ("2", int | None, 2),
        ("1e1", float, 10.0),
        ("On", bool, True),
        ("0", bool, False),
        (False, bool, False),
        (17, str, "17"),
    ],
)
def test_scalar_is_converted(value: Any, kind: Any, expected: Any) -> None:
    assert expected == convert(value, kind, "--x")


@pytest.mark.parametrize(
    ("value", "kind", "part"),
    [
        ("many", int, "--x takes a whole number, not 'many'."),
        (True, int, "whole number"),
        (2.5, int, "whole number"),
        ("2.5", int, "whole number"),
        (float("inf"), int, "whole number"),
        (None, int, "whole number"),
        ("fast", float, "takes a number"),
        ("maybe", bool, "either true or false"),
        (None, str, "takes a text"),
        ([1], str, "takes a text"),
        ("word", TYPED, "'word' has no key"),
        ("a b=1", TYPED, "has no key"),
        ("{a: [}", TYPED, "neither JSON nor YAML"),
        ("a=[1", TYPED, "neither JSON nor YAML"),
        (7, TYPED, "a mapping by name"),
        ({1: 2}, TYPED, "a mapping by name"),
        ({"a": {"b": 1}}, TEXTS, "--x: a takes a text"),
        ('{"a": 1, "a": 2}', TYPED, "gives 'a' twice"),
        ('{"b": [{"a": 1, "a": 2}]}', TYPED, "gives 'a' twice"),
        ("{a: 1, a: 2}", TYPED, "'a' is given twice"),
        ("a={b: 1, b: 2}", TYPED, "'b' is given twice"),
    ],
)
def test_wrong_value_is_one_sentence(value: Any, kind: Any, part: str) -> None:
    with pytest.raises(UsageError) as caught:
        convert(value, kind, "--x")

    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"lr": 1e-3}', {"lr": 0.001}),
        ("{lr: 1e-3, day: 2024-01-01}", {"lr": 0.001, "day": "2024-01-01"}),
        ("lr=[1e-3, 2]", {"lr": [0.001, 2]}),
    ],
)
def test_a_number_is_a_number_in_json_and_yaml_and_a_date_stays_text(
    text: str, expected: dict[str, Any]
) -> None:
    assert expected == convert(text, dict[str, Any], "--model_params")


def test_what_is_no_value_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="--model_params takes numbers, texts, lists and mappings"):
        convert("{a: !!binary aGk=}", dict[str, Any], "--model_params")
