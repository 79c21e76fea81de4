"""Try ``attach`` or ``audit`` on one small model of every family of timm, torchvision and
transformers.

    python scripts/sweep.py stages stages.csv
    python scripts/sweep.py audit audit.csv

Half an hour for the stages and one to two hours for the audits on one core. A second call
continues the CSV. The table goes to docs/stages.md or results/audit.md.
``tests/programs/placement.py`` says how a place is checked.
"""

import argparse
import csv
import inspect
import signal
import sys
import warnings
from itertools import groupby
from pathlib import Path

import timm
import torch
import torchvision
import transformers

import chaosgate as cg

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.programs.placement import NO_GRID, verdicts  # noqa: E402

ARGUMENTS = ("drop_rate", "drop_path_rate", "attn_drop_rate", "proj_drop_rate", "pos_drop_rate")
ARGUMENTS += ("patch_drop_rate", "drop_block_rate")
SECONDS = 180  # of CPU time for a family
TABLES = {"stages": "docs/stages.md", "audit": "results/audit.md"}
COLUMNS = {
    "stages": ["L4"],
    "audit": ["argument", "sources", "act", "requested", "realized", "verdict"],
}
TEXT = {
    "stages": """# Stages

Where `attach(model, gate, "L4")` places a gate, in one small model of every family with random
weights. A module is listed if the place is right. *refused*: `attach` raises an error. *WRONG*: the
gate acts at another place than it should; name a module instead of L4. *not run*: the model has
over 100 million parameters, could not be built or took too long. The places were checked without
chaosgate: by cutting the gradient there, by changing patches of the image, by multiplying by hand.

`scripts/sweep.py` writes this page; `tests/programs/placement.py` has the checks.
""",
    "audit": """# What the drop arguments do

`cg.audit` of one small model of every family, with random weights and random images. In timm
models each drop argument is set to 0.1, one at a time. *sources*: places that drew random numbers.
*act*: those whose redraw changes the output. The rates are means over the sources that state one;
the realized rate is that of five forwards of four images, so rates of whole samples scatter.
*off* counts layers of rate zero. A row without sources: the argument has no effect.

`scripts/sweep.py` writes this page.
""",
}


class Late(BaseException):
    """The time limit; not an Exception, which the search for a size catches."""


def timm_model(family):
    sizes = {}
    for name in timm.list_models(module=family, exclude_filters="test_*"):
        with torch.device("meta"):
            sizes[name] = sum(p.numel() for p in timm.create_model(name).parameters())
    name = min(sizes, key=sizes.get)
    if sizes[name] > 1e8:
        raise MemoryError(f"{name} has {sizes[name] / 1e6:.0f} million parameters")
    return name, lambda **given: timm.create_model(name, num_classes=10, **given)


def torchvision_family(name):
    return torchvision.models.get_model_builder(name).__module__.removeprefix("torchvision.models.")


def torchvision_model(family):
    names = [n for n in torchvision.models.list_models() if torchvision_family(n) == family]
    weights = torchvision.models.get_model_weights
    name = min(names, key=lambda n: weights(n).DEFAULT.meta["num_params"])
    fixed = {"weights_backbone": None} if "." in family else {}
    if family in ("googlenet", "inception"):
        fixed = {"aux_logits": False, "init_weights": False}

    def build(img_size=None):
        size = {} if img_size is None else {"image_size": img_size}
        model = torchvision.models.get_model(name, num_classes=10, **fixed, **size)
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


def small(build, side, batch, **given):
    """The model on the first size and width that it takes, its images, whether a size was given."""
    sized = {"img_size": side}
    narrow = {**sized, "embed_dim": 96, "num_heads": 3}  # what most transformers of timm take
    for size, n in [(narrow, side), (sized, side), *(({}, n) for n in (side, 224, 256, 384))]:
        torch.manual_seed(0)
        x = torch.randn(batch, 3, n, n)
        try:
            model = build(**size, **given).eval()
            with torch.no_grad():
                model(x)
            return model, x, bool(size)
        except Exception as error:  # of any library: the next size
            problem = error
    raise problem


def stages(library, name, build):
    model, x, sized = small(build, 96, 2)
    (row,) = verdicts(model, x, ["L4"], sized, 1.0)
    if row[-1] == NO_GRID:  # some need more pixels
        model, x, sized = small(build, 192, 2)
        (row,) = verdicts(model, x, ["L4"], sized, 0.0)
    _, module, _, verdict, reason = row
    print(reason)
    return [[f"`{module}`" if verdict == "right" else verdict]]


def audit(library, name, build):
    source = ""
    if library == "timm":
        source = inspect.getsource(inspect.getmodule(timm.model_entrypoint(name)))
    for argument in [one for one in ARGUMENTS if one in source] or [""]:
        try:
            model, x, _ = small(build, 64, 4, **({argument: 0.1} if argument else {}))
            yield argument, *audited(cg.audit(model, x).sources)
        except Exception as error:  # of any library
            yield argument, *[""] * 4, f"not run: {type(error).__name__}"


def audited(sources):
    rated = [s for s in sources if s.draws and s.requested + s.realized >= 0]  # not nan
    means = [sum(getattr(s, rate) for s in rated) for rate in ("requested", "realized")]
    other = {}
    for source in sources:
        verdict = "off" if source.healthy and not source.draws else source.verdict
        if verdict != "acts":
            other.setdefault(verdict, []).append(source.module or "(model)")
    told = [f"{len(m)} {v}" + ("" if v == "off" else f" ({m[0]})") for v, m in other.items()]
    acting = sum(s.change > 0 and s.verdict in ("acts", "active in evaluation") for s in sources)
    drawn = sum(bool(s.draws or s.evaluation) for s in sources)
    rates = [f"{mean / len(rated):.3f}" if rated else "" for mean in means]
    return drawn, acting, *rates, "; ".join(told)


def page(kind, found):
    """Markdown with one table per library."""
    text, names = TEXT[kind], ["family", "model", *COLUMNS[kind]]
    for library, rows in groupby(found, key=lambda row: row["library"]):
        lines = [names, ["---"] * len(names), *([row[name] for name in names] for row in rows)]
        table = "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
        text += f"\n## {library}\n\n{table}\n"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=COLUMNS)
    parser.add_argument("csv", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)

    def late(*args):
        raise Late

    signal.signal(signal.SIGPROF, late)
    columns = COLUMNS[options.kind]
    found = list(csv.DictReader(options.csv.open())) if options.csv.exists() else []
    done = {(row["library"], row["family"]) for row in found}
    with options.csv.open("a", newline="") as file:
        writer = csv.DictWriter(file, ["library", "family", "model", *columns])
        if not found:
            writer.writeheader()
        for library, family, model_of in families():
            if (library, family) in done:
                continue
            head, name = {"library": library, "family": family}, ""
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                name, build = model_of(family)
                run = stages if options.kind == "stages" else audit
                rows = [dict(zip(columns, row, strict=True)) for row in run(library, name, build)]
            except (Exception, Late) as error:  # of any library
                print(repr(error))
                rows = [dict.fromkeys(columns, "") | {columns[-1]: "not run"}]
            signal.setitimer(signal.ITIMER_PROF, 0)
            new = [{**head, "model": name, **row} for row in rows]
            writer.writerows(new)
            file.flush()
            found += new
            print(*(list(row.values()) for row in new), sep="\n", flush=True)
    (Path(__file__).parents[1] / TABLES[options.kind]).write_text(page(options.kind, found))


if __name__ == "__main__":
    main()
