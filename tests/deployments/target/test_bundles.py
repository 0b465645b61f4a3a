"""Where a further bundle may be, as Ray takes it."""

from __future__ import annotations

import pytest
from ray.util.placement_group import validate_placement_group

from deployments.target.bundles import NODE_LABEL, selectors_of


@pytest.mark.parametrize(
    ("here", "away_from", "label"),
    [(None, (), None), (None, {"b", "a"}, "!in(a,b)"), ("a", (), "a"), ("a", {"b"}, "a")],
)
def test_ray_takes_what_it_is_told_of_a_bundles_node(here: str | None, away_from: set[str], label: str | None) -> None:
    selectors = selectors_of(here, away_from)
    assert selectors == (None if label is None else [{NODE_LABEL: label}])
    validate_placement_group(bundles=[{"CPU": 1.0}], bundle_label_selector=selectors)


def test_an_empty_list_is_none_that_ray_takes() -> None:
    with pytest.raises(ValueError, match="bundle label selector"):
        validate_placement_group(bundles=[{"CPU": 1.0}], bundle_label_selector=[])
