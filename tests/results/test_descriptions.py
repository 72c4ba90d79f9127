"""Names and units of a run's constraint."""

from softswitch.results.descriptions import ConstraintDescription, read_description

SHARE = {"constraint": "miss rate", "objective": "loss", "is_share": True, "is_nonnegative": True, "cost": None}


def test_stored_description():
    description = read_description({"description": SHARE})
    assert description == ConstraintDescription("miss rate", "loss", is_share=True, is_nonnegative=True)
    assert description.write(0.0476) == "4.76%"


def test_run_without_description():
    assert read_description({}) == ConstraintDescription("constraint", "objective")
    assert read_description({}).write(0.0476) == "0.0476"
