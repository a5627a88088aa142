"""The depth that is chosen unasked: what it keeps, who decides it, and who does not."""

from __future__ import annotations

import numpy as np
import pytest

from aam.data.depth import LOWEST_DEPTH, choose_depth, dropped_by_class
from aam.errors import InputError


@pytest.mark.parametrize(
    ("depths", "classes", "expected"),
    [
        (range(1, 11), None, 2),
        (range(1, 10), None, 1),
        (range(1, 101), None, 11),
        (range(1, 11), "a" * 9 + "b", 2),
        (range(1, 41), "a" * 20 + "b" * 20, 3),
        (range(1, 41), "a" * 10 + "b" * 30, 2),
        (range(1, 41), ["a"] * 9 + [None] * 31, 5),
    ],
)
def test_ninety_percent_are_kept_of_all_and_of_every_class_of_ten(depths, classes, expected):
    depths = np.array(depths) + 1000
    labels = None if classes is None else [label or None for label in classes]
    choice = choose_depth(depths, None if labels is None else {"site": labels})
    assert choice.depth == 1000 + expected
    for name in {*(labels or []), "all"} - {None}:
        members = depths if name == "all" else depths[[label == name for label in labels]]
        assert len(members) < 10 or (members >= choice.depth).mean() >= 0.9


def test_a_shallow_sample_of_a_rare_class_does_not_decide_and_the_class_that_does_is_named():
    """Issue 15, point 13: 15 reads of one sample of a class of three set the depth, and no class was named."""
    depths = np.array([15, 4000, 4000, *[2000] * 12, *[5000] * 50])
    labels = ["rare"] * 3 + ["shallow"] * 12 + ["deep"] * 50
    choice = choose_depth(depths, {"type": labels})
    assert choice.depth == 2000
    assert choice.without_classes == 2000
    depths[3:5] = 900
    choice = choose_depth(depths, {"type": labels})
    assert choice.depth == 900
    assert "90 % of the 12 training samples of class 'shallow' of 'type'" in choice.message()
    assert "without class columns, as in aam pretrain, it would be 2000" in choice.message()


def test_labels_of_held_out_samples_decide_nothing():
    depths = np.array([*[600] * 10, *[3000] * 90])
    labels = ["a"] * 10 + ["b"] * 90
    assert choose_depth(depths, {"type": labels}).depth == 600
    training = [*range(1, 10), *range(10, 100)]
    assert choose_depth(depths, {"type": labels}, training).depth == 3000, "only nine training samples are of a"
    relabelled = ["b", *labels[1:]]
    assert choose_depth(depths, {"type": relabelled}, training) == choose_depth(depths, {"type": labels}, training)


def test_no_depth_below_the_lowest_is_chosen_unasked():
    choice = choose_depth(np.array([20] * 5 + [900] * 15))
    assert (choice.depth, choice.keeping) == (LOWEST_DEPTH, 20)
    assert "90 % of all samples reach only 20; pass --rarefy-depth" in choice.message()
    with pytest.raises(InputError, match=r"no sample has 500 reads.*deepest has 499.*--rarefy-depth.*have 499 or more"):
        choose_depth(np.array([499] * 20))
    with pytest.raises(InputError, match=r"pass --rarefy-depth to use fewer$"):
        choose_depth(np.array([0] * 20))


def test_dropped_samples_are_counted_by_class():
    labels = {"s1": "gut", "s2": "gut", "s3": "oral", "s4": None}
    assert dropped_by_class(labels, {"s2": 3, "s4": 1}) == {"": (1, 1), "gut": (1, 2), "oral": (0, 1)}
