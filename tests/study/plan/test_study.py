"""A study that cannot mean what it says is refused in one sentence."""

from pathlib import Path

import pytest

from chaosgate.cli.commands import main
from chaosgate.run.config_files import config_folder
from chaosgate.study import load_study
from tests.study.toy_studies import Write


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"method": {}}, "no key 'method'. Did you mean 'methods'?"),
        ({"reference": "non"}, "no method 'non'. Did you mean 'none'?"),
        ({"metrics": ["top1", "nlll"]}, "no metric 'nlll'. Did you mean 'nll'?"),
        ({"checkpoint": "lst"}, "Did you mean 'last'?"),
        ({"base": ["basic.yaml"]}, "names basic.yaml, which is neither in"),
        ({"methods": {}}, "'methods' is missing"),
        ({"seeds": [0, 0]}, "names a seed twice"),
        ({"seeds": ["a"]}, "give whole numbers"),
        ({"seeds": [True]}, "give whole numbers"),
        ({"methods": {"none": "none.yaml", "a b": "gch.yaml"}}, "becomes part of a directory name"),
        ({"methods": {"none": 3}}, "give a file, dotted keys"),
        ({"grid": {"stage": 3}}, "grid.stage is 3; give levels, e.g. {L3:"),
        ({"grid": {"x": [{"a.b": 1}, {"c.d": 1}]}}, "two levels that look alike"),
    ],
)
def test_mistake_is_named_with_what_to_do(
    write_study: Write, keys: dict[str, object], message: str
) -> None:
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        load_study(write_study(**keys))
    assert message in str(caught.value)
    assert "small.yaml" in str(caught.value)


def test_missing_reference_is_refused(write_study: Write) -> None:
    path = write_study()
    path.write_text(path.read_text().replace("reference: none\n", ""))
    with pytest.raises(ValueError, match="'reference' is missing.*none, gch"):
        load_study(path)


def test_method_given_twice_is_refused_with_its_line(write_study: Write) -> None:
    path = write_study()
    path.write_text(path.read_text().replace("  gch: gch.yaml", "  none: gch.yaml"))
    with pytest.raises(ValueError, match="'none' is given twice"):
        load_study(path)


def test_broken_yaml_names_the_file(write_study: Write) -> None:
    path = write_study()
    (path.parent / "gch.yaml").write_text("noise: [")
    with pytest.raises(ValueError, match="gch.yaml is not YAML"):
        load_study(path)


def test_files_are_found_beside_the_study_or_above_it(write_study: Write, tmp_path: Path) -> None:
    path = write_study()
    deep = tmp_path / "configs" / "study"
    deep.mkdir(parents=True)
    (deep / "none.yaml").write_text(
        "noise: {gate: null, stages: [L3]}\n"
    )  # nearer than the one above
    (deep / "s.yaml").write_text(path.read_text())
    study = load_study(deep / "s.yaml")
    assert study.base[0].source == tmp_path / "base.yaml"
    assert study.methods["none"][0].source == deep / "none.yaml"


def test_a_local_copy_wins_in_a_shipped_study_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    copy = tmp_path / "noise" / "gch.yaml"
    copy.parent.mkdir()
    copy.write_text(
        "noise: {gate: {class_path: chaosgate.GaussianChaos, init_args: {log_std: 0.125}}, stages: [L4]}"
    )
    study = load_study("quickstart")
    (gch,) = study.methods["gch"]
    assert gch.source == copy and gch.content["noise"]["gate"]["init_args"]["log_std"] == 0.125
    assert study.methods["none"][0].source == config_folder() / "noise" / "none.yaml"


def test_method_may_be_one_line_with_a_file_and_keys(write_study: Write) -> None:
    study = load_study(
        write_study(
            methods={
                "none": "none.yaml",
                "strong": ["gch.yaml", {"noise.gate.init_args.log_std": 2.0}],
            }
        )
    )
    file, keys = study.methods["strong"]
    assert file.source is not None and keys.content == {"noise.gate.init_args.log_std": 2.0}


def test_unnamed_levels_are_named_by_their_values(write_study: Write) -> None:
    study = load_study(
        write_study(grid={"stage": [{"noise.stages": ["L3"]}, {"noise.stages": ["L3", "L4"]}]})
    )
    assert list(study.grid["stage"].levels) == ["L3", "L3+L4"]


def test_command_says_it_in_one_line_and_starts_nothing(
    write_study: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_study(reference="nothing")
    assert main(["study", "run", str(path), "--root", str(tmp_path / "runs")]) == 1
    captured = capsys.readouterr()
    assert (
        captured.err.count("\n") == 1
        and "no method 'nothing'" in captured.err
        and captured.out == ""
    )
    assert not (tmp_path / "runs").exists()
    assert main(["study", "run", str(tmp_path / "smal.yaml")]) == 1
    assert "has base.yaml, gch.yaml, none.yaml, small.yaml" in capsys.readouterr().err
