"""The structure of a state: keys, lengths, types, shapes; not its numbers."""

from typing import Any

import pytest
import torch

from mlmcgrad.runs.structure import check_structure

EXPECTED: dict[str, Any] = {
    "a": [1, 2.0, "text", None, True],
    "b": {0: torch.zeros(2, 3)},
    "c": (1,),
}


def test_other_numbers_are_the_same_structure() -> None:
    found = {"c": [7], "b": {0: torch.ones(2, 3)}, "a": [5, 6, "", None, False]}
    check_structure(found, EXPECTED)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"a": [1, 2.0, "text", None]}, r"^it\['a'\] is not a list of 5"),
        ({"a": "12345"}, r"^it\['a'\] is not a list of 5"),
        ({"a": [True, 2.0, "text", None, True]}, r"^it\['a'\]\[0\] is True, not int"),
        ({"a": [1.0, 2.0, "text", None, True]}, r"^it\['a'\]\[0\] is 1.0, not int"),
        ({"a": [1, "2", "text", None, True]}, r"^it\['a'\]\[1\] is '2', not float"),
        ({"a": [1, 2.0, 3, None, True]}, r"^it\['a'\]\[2\] is 3, not str"),
        ({"a": [1, 2.0, "text", 0, True]}, r"^it\['a'\]\[3\] is 0, not NoneType"),
        ({"a": [1, 2.0, "text", None, 1]}, r"^it\['a'\]\[4\] is 1, not bool"),
        ({"b": {0: torch.zeros(3, 2)}}, r"^it\['b'\]\[0\] is not a tensor of .*shape \(2, 3\)"),
        ({"b": {0: torch.zeros(2, 3).double()}}, r"is not a tensor of torch.float32"),
        ({"b": {0: 1.0}}, r"^it\['b'\]\[0\] is not a tensor"),
        ({"b": {1: torch.zeros(2, 3)}}, r"^it\['b'\] has \['1'\], not \['0'\]"),
        ({"b": []}, r"^it\['b'\] has list, not \['0'\]"),
        ({"d": 1}, r"^it has \['a', 'b', 'c', 'd'\], not \['a', 'b', 'c'\]"),
    ],
)
def test_a_difference_is_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_structure({**EXPECTED, **change}, EXPECTED)
