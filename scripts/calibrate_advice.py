"""Write the calibration of chaosgate.advise from the kept rows.

One entry for each setting: over-fitting r of every network without noise, and the relative change
of its clean test NLL by Gaussian Chaos at log_std 1 at the same seed. Rows hold no training NLL in
evaluation mode. It is replaced by the mean of `train/loss` at the ends of the last five epochs:
single batches, in training mode, under the augmentation of these studies (none, or mirroring).
Pets is left out, where crops are random; so are networks that were selected by validation NLL, and
the studies of timing, which are newer than the calibration.
"""

import json
import lzma
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy.stats import t

ROOT = Path(__file__).parents[1]
Setting = dict[str, list[float]]


def pairs():
    found = defaultdict(lambda: {"r": [], "change": []})
    seen = set()
    for path in sorted(ROOT.glob("results/*/rows.jsonl.xz")):
        if "timing" in path.parent.name:
            continue
        with lzma.open(path, "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        rows = [row for row in rows if row["checkpoint"] == "last" and row["members"] == 1]
        for one in (row for row in rows if row["method"] == "none"):
            for other in (row for row in rows if same_setting(row, one)):
                if (key := (one["run"], other["run"])) in seen:
                    continue
                seen.add(key)
                setting = found["-".join([path.parent.name, *one["levels"].values()])]
                training = np.mean([line["train/loss"] for line in one["curves"][-5:]])
                setting["r"].append(round(1 - training / one["curves"][-1]["val/nll"], 4))
                setting["change"].append(round(clean(other) / clean(one) - 1, 4))
    return dict(found)


def same_setting(row, one):
    rest = {axis: level for axis, level in row["levels"].items() if axis != "strength"}
    gate = row["config"]["noise"]["gate"] or {}
    same = row["seed"] == one["seed"] and rest == one["levels"] and row["method"] == "gch"
    return same and gate["init_args"].get("log_std") == 1


def clean(row):
    return float(next(cell["nll"] for cell in row["rows"] if cell["corruption"] == "clean"))


def line(settings):
    """Slope and intercept through all pairs of runs."""
    return np.polyfit(*(np.concatenate([one[k] for one in settings]) for k in ("r", "change")), 1)


if __name__ == "__main__":
    found, errors = pairs(), []
    for name, left_out in found.items():
        fitted = line([one for other, one in found.items() if other != name])
        errors += list(np.polyval(fitted, left_out["r"]) - left_out["change"])
    slope, intercept = line(list(found.values()))
    table = {
        "about": "small ResNets on CIFAR-10 and Fashion-MNIST, 16 to 60 epochs",
        "slope": round(slope, 4),
        "intercept": round(intercept, 4),
        "error": round(float(np.sqrt(np.mean(np.square(errors)))), 4),
        "quantile": round(float(t.ppf(0.975, len(found) - 2)), 4),
        "settings": found,
    }
    target = ROOT / "src" / "chaosgate" / "run" / "calibration.json"
    target.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    print(target, table)
