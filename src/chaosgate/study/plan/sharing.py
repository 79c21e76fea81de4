"""Which other studies use the same training runs."""

from collections.abc import Sequence

from chaosgate.study.plan.loading import load_study
from chaosgate.study.plan.runs import Run, plan_runs
from chaosgate.study.plan.study import Study


def shared_with(study: Study, runs: Sequence[Run]) -> dict[str, list[str]]:
    """Files (without ending) of the studies in the same folder that share a run's training, by name of the run."""
    size = None if study.size is None else study.size.name
    users: dict[str, list[str]] = {}
    for path in sorted(study.path.parent.glob("*.yaml")):
        if path.resolve() == study.path.resolve():
            continue
        try:
            other = load_study(path, size)
            trainings = {run.training for run in plan_runs(other, runs[0].root.parent)}
        except (ValueError, OSError):  # no study, or one that has something wrong: it will say so itself
            continue
        for training in trainings if other.project == study.project else ():
            users.setdefault(training, []).append(path.stem)
    return {run.name: users.get(run.training, []) for run in runs}
