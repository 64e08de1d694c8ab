"""What two JSON values differ in, and agreement of one worker with itself."""

import pytest
import tensorflow as tf

from tfscale.distribute import agreement


@pytest.mark.parametrize(
    "left, right, expected",
    [
        (1, 1, None),
        ({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}, None),
        (1, 2, ("", "1", "2")),
        (1, True, ("", "1", "True")),
        ("1", 1, ("", "'1'", "1")),
        ([1, 2], [1, 3], ("[1]", "2", "3")),
        ([1], [1, 3], ("[1]", "absent", "3")),
        ([1, 3], [1], ("[1]", "3", "absent")),
        ({"a": 1}, {"b": 1}, ("a", "1", "absent")),
        ({"a": {"b": [0, {"c": 1}]}}, {"a": {"b": [0, {"c": 2}]}}, ("a.b[1].c", "1", "2")),
        ([], {}, ("", "[]", "{}")),
    ],
)
def test_first_difference(left, right, expected):
    assert agreement.first_difference(left, right) == expected


def test_long_values_are_shortened():
    _, left, _ = agreement.first_difference("x" * 1000, "y")
    assert len(left) < 220 and left.endswith("...")


def test_one_worker_agrees_with_itself():
    strategy = tf.distribute.get_strategy()
    assert agreement.gather_values(strategy, "name", {"a": (1, 2)}) == [{"a": [1, 2]}]
    agreement.agree(strategy, "name", [1])
