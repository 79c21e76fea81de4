"""Where ``attach`` puts L1 to L4 in one small model of every family of the three model libraries.

    python scripts/stage_sweep.py sweep.csv --table docs/stages.md

Takes about half an hour on one core. A second call continues the CSV.
``tests/programs/placement.py`` says how a place is checked.
"""

import argparse
import csv
import gc
import signal
import sys
import time
import warnings
from pathlib import Path

import timm
import torch
import torchvision
import transformers

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.programs.placement import NO_GRID, STAGES, verdicts  # noqa: E402

SIDE = 96
COLUMNS = ("library", "family", "model", "stage", "module", "grid", "verdict", "reason")
TEXT = """# Stages

`attach(model, gate, "L4")` in one small model of every family, with random weights. A module is
listed if the gate is in the right place; `refused` means that `attach` raises an error. Each place
was checked without the resolver of chaosgate: by cutting the gradient there, by changing patches of
the image, and by comparing with a multiplication by hand.

Written by `scripts/stage_sweep.py`; `tests/programs/placement.py` has the checks.
"""


def timm_model(family):
    sizes = {}
    for name in timm.list_models(module=family, exclude_filters="test_*"):
        with torch.device("meta"):
            sizes[name] = sum(p.numel() for p in timm.create_model(name).parameters())
    name = min(sizes, key=sizes.get)
    return name, lambda **size: timm.create_model(name, num_classes=10, **size)


def torchvision_family(name):
    return torchvision.models.get_model_builder(name).__module__.removeprefix("torchvision.models.")


def torchvision_model(family):
    names = [n for n in torchvision.models.list_models() if torchvision_family(n) == family]
    weights = torchvision.models.get_model_weights
    name = min(names, key=lambda n: weights(n).DEFAULT.meta["num_params"])
    given = {"weights_backbone": None} if "." in family else {}
    if family in ("googlenet", "inception"):
        given = {"aux_logits": False, "init_weights": False}

    def build(img_size=None):
        size = {} if img_size is None else {"image_size": img_size}
        model = torchvision.models.get_model(name, num_classes=10, **given, **size)
        return model.backbone if family.startswith("detection") else model

    return name, build


def transformers_model(family):
    mapping = transformers.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING
    kind = next(kind for kind in mapping if kind.model_type == family)
    model = mapping[kind][0] if isinstance(mapping[kind], tuple) else mapping[kind]

    def build(img_size=None):
        small = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
        small["embed_dim"] = 24
        small = {k: v for k, v in small.items() if isinstance(getattr(kind(), k, None), int)}
        small |= {} if img_size is None else {"image_size": img_size}
        if hasattr(kind(), "vision_config"):
            small = {"vision_config": {**small, "hidden_size": 64, "num_attention_heads": 4}}
        return model(kind(num_labels=10, **small))

    return model.__name__, build


def families():
    for family in timm.list_modules():
        yield "timm", family, timm_model
    found = {torchvision_family(name) for name in torchvision.models.list_models()}
    others = ("video", "quantization", "optical_flow")
    for family in sorted(f for f in found if not f.startswith(others)):
        yield "torchvision", family, torchvision_model
    for kind in transformers.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING:
        if kind.model_type != "shieldgemma2":  # a language model of four billion weights
            yield "transformers", kind.model_type, transformers_model


def sweep(build, stages, wanted=SIDE, shift=1.0):
    """The verdicts on the first size and width that the model takes."""
    sized = {"img_size": wanted}
    narrow = {**sized, "embed_dim": 96, "num_heads": 3}  # what most transformers of timm take
    sizes = [(narrow, wanted), (sized, wanted), *(({}, n) for n in (wanted, 224, 256, 384))]
    for size, side in sizes:
        torch.manual_seed(0)
        x = torch.randn(2, 3, side, side)
        try:
            model = build(**size).eval()
            with torch.no_grad():
                model(x)
        except Exception as error:  # of any library: the next size
            problem = error
        else:
            return list(verdicts(model, x, stages, bool(size), shift))
    raise problem


def rows(model_of, family, stages):
    name = ""
    try:
        name, build = model_of(family)
        found = sweep(build, stages)
        if any(row[-1] == NO_GRID for row in found):  # some need more pixels
            found = sweep(build, stages, 2 * SIDE, 0.0)
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        found = [("", "", "", "not run", text[:200])]
    return [(name, *row) for row in found]


def table(found):
    """Markdown with one line per family."""
    stages = [stage for stage in STAGES if any(row["stage"] == stage for row in found)]
    lines, known = {}, {(row["library"], row["family"], row["stage"]): row for row in found}
    models = {(row["library"], row["family"]): row["model"] for row in found}
    for library, family, _ in families():
        cells = []
        for stage in stages:
            row = known.get((library, family, stage), {"verdict": "not run"})
            cells.append(f"`{row['module']}`" if row["verdict"] == "right" else row["verdict"])
        names = [family, models.get((library, family), "")]
        lines.setdefault(library, []).append(f"| {' | '.join([*names, *cells])} |")
    text = [TEXT]
    for library, table in lines.items():
        last = [line.split(" | ")[-1].removesuffix(" |") for line in table]
        counts = {"right": sum(cell.startswith("`") for cell in last)}
        counts |= {verdict: last.count(verdict) for verdict in ("refused", "WRONG", "not run")}
        told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        text += [f"## {library}\n", f"{len(table)} families. {stages[-1]}: {told}.\n"]
        text += [f"| family | model | {' | '.join(stages)} |", "|---" * (len(stages) + 2) + "|"]
        text += [*table, ""]
    return "\n".join(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("csv", type=Path)
    parser.add_argument("--table", type=Path, help="write this Markdown file from the CSV")
    parser.add_argument("--only", nargs="*", default=[], help="families, e.g. timm/resnet")
    parser.add_argument("--stages", nargs="*", default=STAGES)
    parser.add_argument("--seconds", type=int, default=90, help="CPU time limit of a family")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)

    def late(*args):
        raise TimeoutError("time limit")

    signal.signal(signal.SIGPROF, late)
    found = list(csv.DictReader(options.csv.open())) if options.csv.exists() else []
    done = {f"{row['library']}/{row['family']}" for row in found}
    with options.csv.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if not found:
            writer.writeheader()
        for library, family, model_of in families():
            path, start = f"{library}/{family}", time.time()
            if path in done or (options.only and path not in options.only):
                continue
            signal.setitimer(signal.ITIMER_PROF, options.seconds)
            new = [(library, family, *row) for row in rows(model_of, family, options.stages)]
            signal.setitimer(signal.ITIMER_PROF, 0)
            found += [dict(zip(COLUMNS, row, strict=True)) for row in new]
            writer.writerows(found[-len(new) :])
            file.flush()
            gc.collect()
            said = " | ".join(f"{row[3]} {row[4]} {row[6]} {row[7][:80]}" for row in new)
            print(f"{path} {new[0][2]} {time.time() - start:.0f} s: {said}", flush=True)
    if options.table:
        options.table.write_text(table(found))


if __name__ == "__main__":
    main()
