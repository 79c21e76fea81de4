from chaosgate.bench.field import run


def test_the_benchmark_measures_all_candidates_and_says_so_where_the_dense_one_is_left_out():
    small, large = run(repeats=2, grids=((5, 4), (57, 56)))
    assert small["grid"] == "5x4" and small["dense_cholesky_ms"] > 0
    assert "dense_cholesky_ms" not in large
    for row in (small, large):
        assert row["ratio"] == row["ours_ms"] / row["scipy_ms"] > 0
        assert "products_ms" not in row


def test_on_large_grids_the_benchmark_says_what_limits_ours():
    (row,) = run(repeats=1, grids=((128, 130),))
    assert 0 < row["products_ms"]
