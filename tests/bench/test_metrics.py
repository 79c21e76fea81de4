from chaosgate.bench import metrics as bench


def test_our_state_does_not_grow_with_the_samples(monkeypatch):
    monkeypatch.setattr(bench, "CLASSES", 10)
    sizes = []
    for samples in (500, 1500):
        monkeypatch.setattr(bench, "SAMPLES", samples)
        rows = bench.run(repeats=1)
        assert all(row["ratio"] > 0 for row in rows)
        sizes.append([(row["ours_state_bytes"], row["reference_state_bytes"]) for row in rows])
    for (ours, theirs), (ours_later, theirs_later) in zip(*sizes, strict=True):
        assert ours == ours_later
        assert theirs < theirs_later
