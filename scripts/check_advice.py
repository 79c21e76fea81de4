"""Predicted against measured change of the NLL, in settings that the advice was not calibrated on.

CHAOSGATE_CIFAR10=FOLDER chaosgate study run evidence/advise_check
CHAOSGATE_CIFAR10=FOLDER python scripts/check_advice.py runs/studies/advise_check
"""

import json
import sys
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

import chaosgate as cg
from chaosgate.cli.advice import nll_of
from chaosgate.run.files import RunDirectory
from chaosgate.run.identity import training_settings

RESULTS = Path(__file__).parents[1] / "results"


def clean_nll(run):
    return next(row["nll"] for row in run.rows() if row["corruption"] == "clean")


def checks(folder):
    pairs = {}
    for run in map(RunDirectory, sorted(folder.glob("*-seed*"))):
        settings = training_settings(run.settings())
        rest = {key: value for key, value in settings.items() if not key.startswith("noise")}
        method = "gch" if len(rest) < len(settings) else "none"
        pairs.setdefault(json.dumps(rest), {})[method] = run
    for rest, runs in pairs.items():
        found, given = cg.advise(*nll_of(runs["none"].path, 10**6)), json.loads(rest)
        yield {
            "setting": f"{given['data.class_path'].rpartition('.')[2]}, "
            f"{given['data.init_args.per_class.train']} images per class, "
            f"{given['trainer.max_epochs']} epochs, "
            f"{given['model.backbone_args.channels'][-1]} channels",
            "seed": given["seed_everything"],
            "r": found.r,
            "predicted": found.change,
            "interval": found.interval,
            "measured": clean_nll(runs["gch"]) / clean_nll(runs["none"]) - 1,
        }


if __name__ == "__main__":
    found = pd.DataFrame(checks(Path(sys.argv[1])))
    found.to_json(RESULTS / "advise_check.json", orient="records", indent=1)
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axis = figure.subplots()
    for setting, rows in found.groupby("setting"):
        half = rows.interval.str[1] - rows.predicted
        axis.errorbar(rows.measured, rows.predicted, half, fmt="o", label=setting)
    axis.axline((0, 0), slope=1, color="gray")
    axis.set(xlabel="measured relative change of the test NLL", ylabel="predicted, 95 % interval")
    axis.legend(fontsize="small")
    figure.savefig(RESULTS / "advise_check.svg")
