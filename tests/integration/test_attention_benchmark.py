"""The benchmark of attention in a small setting: a row for each batch, with both times and their ratio."""

from tests.integration.test_concurrency_benchmark import benchmark
from tests.training_samples import one_thread


def test_each_batch_is_timed_with_both_ways(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    attention = benchmark("attention")
    with one_thread():
        attention.main(attention.Benchmark(batches=((2, 40), (1, 130)), rounds=3, threads=1))

    rows = [line.split("│")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert [(row[0].strip(), row[1].strip()) for row in rows] == [("2", "40"), ("1", "130")]
    for ours, theirs, times in ([float(cell) for cell in row[2:]] for row in rows):
        assert ours > 0
        assert abs(times * ours - theirs) < 0.051 * (1 + times + ours)  # all three are rounded to a tenth
