"""Predicted against measured change of the NLL, in settings that the advice was not calibrated on.

CHAOSGATE_CIFAR10=FOLDER chaosgate study run evidence/advise_check
CHAOSGATE_CIFAR10=FOLDER python scripts/check_advice.py runs/studies/advise_check
"""

import json
import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure

import chaosgate as cg
from chaosgate.cli.sources import find_network
from chaosgate.run.files import RunDirectory
from chaosgate.run.identity import training_settings

RESULTS = Path(__file__).parents[1] / "results"


def over_fitting(run):
    source, nll = find_network(str(run.last)), []
    source.data.setup("fit")
    for loader in (source.data.plain_train_dataloader(), source.data.val_dataloader()):
        loss = torch.nn.CrossEntropyLoss(reduction="none")
        with torch.no_grad():
            parts = [loss(source.model(source.data.normalize(x.image)), x.target) for x in loader]
        nll.append(torch.cat(parts))
    return cg.advise(*nll)


def checks(folder):
    pairs = {}
    for run in map(RunDirectory, sorted(folder.glob("*-seed*"))):
        settings = training_settings(run.settings())
        rest = {key: value for key, value in settings.items() if not key.startswith("noise")}
        pairs.setdefault(json.dumps(rest), {})["noise.gate.class_path" in settings] = run
    found = []
    for rest, runs in pairs.items():
        without, with_noise = (
            next(row["nll"] for row in runs[noise].rows() if row["corruption"] == "clean")
            for noise in (False, True)
        )
        advice, given = over_fitting(runs[False]), json.loads(rest)
        name = given["data.class_path"].rpartition(".")[2]
        name = f"{name}, {given['data.init_args.per_class.train']:.0f} images per class, "
        name += f"{given['trainer.max_epochs']:.0f} epochs, "
        name += f"{given['model.backbone_args.channels'][-1]:.0f} channels"
        row = {"setting": name, "seed": given["seed_everything"], "r": advice.r}
        row |= {"predicted": advice.change, "interval": advice.interval}
        found.append(row | {"measured": with_noise / without - 1})
        print(found[-1], flush=True)
    return found


if __name__ == "__main__":
    rows = checks(Path(sys.argv[1]))
    (RESULTS / "advise_check.json").write_text(json.dumps(rows, indent=1) + "\n")
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axis = figure.subplots()
    for name in dict.fromkeys(row["setting"] for row in rows):
        own = [row for row in rows if row["setting"] == name]
        half = [row["interval"][1] - row["predicted"] for row in own]
        x, y = ([row[key] for row in own] for key in ("measured", "predicted"))
        axis.errorbar(x, y, half, fmt="o", label=name)
    axis.axline((0, 0), slope=1, color="gray")
    axis.set(xlabel="measured relative change of the test NLL", ylabel="predicted, 95 % interval")
    axis.legend(fontsize="small")
    figure.savefig(RESULTS / "advise_check.svg")
