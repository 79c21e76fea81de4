"""The bench of the alternatives has a row for every shipped one, measured by what it really does."""

from pathlib import Path

import pytest

from chaosgate.bench import alternatives


def test_every_shipped_alternative_has_a_row() -> None:
    rows = alternatives.run(repeats=1, batch=4, side=32)
    shipped = {path.stem for path in (Path(__file__).parents[2] / "configs" / "alternative").glob("*.yaml")}
    assert shipped - {"swa"} | {"plain"} == {row["what"] for row in rows if row["of"] == "training step"}
    assert {"plain", "mc_dropout", "ensemble", "temperature"} == {
        row["what"] for row in rows if row["of"] == "test of a batch"
    }
    assert all(row["over_plain"] > 0 for row in rows)


def test_settings_arrive_at_what_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A contender that trains the plain network would cost nothing."""
    mixed, losses, rates, averages, gates = [], [], [], [], []
    real = {name: getattr(alternatives, name) for name in ("mix_images", "classification_loss", "attach")}
    made, average = alternatives.network, alternatives.AveragedModel.update_parameters
    monkeypatch.setattr(
        alternatives, "mix_images", lambda *given: (mixed.append(given[3:5]), real["mix_images"](*given))[1]
    )
    monkeypatch.setattr(
        alternatives.AveragedModel, "update_parameters", lambda *given: (averages.append(1), average(*given))[1]
    )
    monkeypatch.setattr(alternatives, "network", lambda rate=0.0: (rates.append(rate), made(rate))[1])
    monkeypatch.setattr(
        alternatives, "attach", lambda *given, **more: (gates.append(given[2]), real["attach"](*given, **more))[1]
    )
    monkeypatch.setattr(
        alternatives,
        "classification_loss",
        lambda *given, **more: (losses.append(more), real["classification_loss"](*given, **more))[1],
    )
    alternatives.run(repeats=1, batch=4, side=32)
    assert sorted(set(mixed)) == [(0.0, 1.0), (0.2, 0.0)]
    assert {"label_smoothing": 0.1} in losses and {"focal_gamma": 3.0} in losses
    assert rates.count(0.1) == 1 and len(averages) == 2 and gates == ["L4", "L4"]  # one round warms up
