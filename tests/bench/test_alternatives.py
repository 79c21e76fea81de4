"""The bench of the alternatives has a row for every shipped one, measured by what it really does."""

from pathlib import Path

import pytest

from chaosgate.bench import alternatives


def test_every_shipped_alternative_has_a_row() -> None:
    rows = alternatives.run(repeats=1, batch=4, side=32)
    shipped = {path.stem for path in (Path(__file__).parents[2] / "configs" / "alternative").glob("*.yaml")}
    expected = shipped - {"swa"} | {"plain", "stochastic_depth"}
    assert expected == {row["what"] for row in rows if row["of"] == "training step"}
    assert {"plain", "mc_dropout", "ensemble", "temperature"} == {
        row["what"] for row in rows if row["of"] == "test of a batch"
    }
    assert all(row["over_plain"] > 0 for row in rows)


def test_settings_arrive_at_what_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A contender that trains the plain network would cost nothing."""
    mixed, focal, rates, averages, gates = [], [], [], [], []
    made, attach = alternatives.network, alternatives.attach
    average = alternatives.AveragedModel.update_parameters
    mixing, loss = alternatives.Mixing, alternatives.FocalLoss
    monkeypatch.setattr(alternatives, "Mixing", lambda *given: (mixed.append(given), mixing(*given))[1])
    monkeypatch.setattr(alternatives, "FocalLoss", lambda gamma: (focal.append(gamma), loss(gamma))[1])
    monkeypatch.setattr(
        alternatives.AveragedModel, "update_parameters", lambda *given: (averages.append(1), average(*given))[1]
    )
    monkeypatch.setattr(alternatives, "network", lambda rate=0.0: (rates.append(rate), made(rate))[1])
    monkeypatch.setattr(
        alternatives, "attach", lambda *given, **more: (gates.append(given[2]), attach(*given, **more))[1]
    )
    alternatives.run(repeats=1, batch=4, side=32)
    assert sorted(set(mixed)) == [(0.0, 1.0), (0.2, 0.0)] and focal == [3.0]
    assert rates.count(0.1) == 1 and len(averages) == 2 and gates == ["L4", "L4"]  # one round warms up
