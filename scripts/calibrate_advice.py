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
from pathlib import Path

import numpy as np
from scipy.stats import t

from chaosgate.compat.advice import TABLE

ROOT = Path(__file__).parents[1]


def pairs():
    """By setting: r and the relative change, of every pair of runs."""
    found, seen = {}, set()
    for path in sorted(ROOT.glob("results/*/rows.jsonl.xz")):
        if "timing" in path.parent.name:
            continue
        without, with_noise = {}, {}
        with lzma.open(path, "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        for row in rows:
            levels = [level for axis, level in row["levels"].items() if axis != "strength"]
            key = "-".join([path.parent.name, *levels]), row["seed"]
            gate = (row["config"]["noise"]["gate"] or {}).get("init_args", {})
            if row["checkpoint"] == "last" and row["members"] == 1:
                if row["method"] == "none":
                    without[key] = row
                elif row["method"] == "gch" and gate.get("log_std") == 1:
                    with_noise[key] = row
        for key in sorted(without.keys() & with_noise.keys()):
            one, other = without[key], with_noise[key]
            if (runs := (one["run"], other["run"])) not in seen:
                seen.add(runs)
                setting = found.setdefault(key[0], {"r": [], "change": []})
                training = np.mean([line["train/loss"] for line in one["curves"][-5:]])
                setting["r"].append(round(1 - training / one["curves"][-1]["val/nll"], 4))
                setting["change"].append(round(clean_nll(other) / clean_nll(one) - 1, 4))
    return found


def clean_nll(row):
    return next(cell["nll"] for cell in row["rows"] if cell["corruption"] == "clean")


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
    TABLE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    print(table)
