"""The cost benchmark varies one number at a time."""

from benchmarks import costs


def test_numbers_are_varied_separately():
    varied = costs.sizes((1, 10))
    assert varied["m"] == (costs.BASE, costs.Size(200, 5, 32))
    assert varied["E"] == (costs.BASE, costs.Size(20, 50, 32))
    assert varied["B"] == (costs.BASE, costs.Size(20, 5, 320))
    assert [size.rows for size in varied["B"]] == [3200, 32000]


def test_history_size_per_round(capsys):
    costs.print_memory_of(30)
    assert "37 bytes a round" in capsys.readouterr().out
