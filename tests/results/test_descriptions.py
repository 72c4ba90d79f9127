"""Names and units of a run's constraint."""

from softswitch.results.descriptions import ConstraintDescription, bound_sentence, client_noun, read_description

SHARE = {"constraint": "miss rate", "objective": "loss", "is_share": True, "is_nonnegative": True, "cost": None}


def test_a_stored_description():
    description = read_description({"description": SHARE})
    assert description == ConstraintDescription("miss rate", "loss", is_share=True, is_nonnegative=True)
    assert description.write(0.0476) == "4.76%"


def test_a_run_without_a_description():
    assert read_description({}) == ConstraintDescription("constraint", "objective")
    assert read_description({}).write(0.0476) == "0.0476"
    assert bound_sentence({"tolerance": 0.125}) == "At every client, the constraint may be at most 0.125."
    assert bound_sentence({"tolerance": 0.125, "bounded": "At every site, …"}) == "At every site, …"


def test_the_name_of_a_client():
    assert client_noun({"data.client": "hospital"}) == "hospital"
    assert client_noun({}) == "client"
