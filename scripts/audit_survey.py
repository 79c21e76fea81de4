"""Audit one small model of every timm, torchvision and transformers family.

    python scripts/audit_survey.py survey.csv --table results/audit.md

timm models get each of their drop arguments set to 0.1, one at a time; the others are audited as
they are created. Takes one to two hours on one core. A second call continues the CSV.
"""

import argparse
import csv
import gc
import inspect
import signal
import sys
import time
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from stage_sweep import families  # noqa: E402

import chaosgate as cg  # noqa: E402

ARGUMENTS = ("drop_rate", "drop_path_rate", "attn_drop_rate", "proj_drop_rate", "pos_drop_rate",
             "patch_drop_rate", "drop_block_rate")  # fmt: skip
COLUMNS = (
    "library",
    "family",
    "model",
    "argument",
    "sources",
    "act",
    "requested",
    "realized",
    "verdicts",
)
TEXT = """# What the drop arguments do

`cg.audit` of one small model of every family, with random weights, random images and batch 4. For timm,
each drop argument of the model is set to 0.1, one at a time; torchvision and transformers models are
audited as their library creates them. "Sources" are places that drew random numbers, "act" those whose
redraw changes the output. The rates are means over the sources that state a rate. A realized rate is that
of five forwards of four images, so rates of whole samples (drop path) scatter.

"No effect" means that no place drew random numbers with this argument. `off` counts layers of rate zero.

Written by `scripts/audit_survey.py`.
"""


def rates(found):
    known = [s for s in found.sources if s.draws and s.requested == s.requested]
    known = [s for s in known if s.realized == s.realized]
    if not known:
        return "", ""
    mean = [sum(getattr(s, name) for s in known) / len(known) for name in ("requested", "realized")]
    return tuple(f"{value:.3f}" for value in mean)


def row(model, x):
    found = cg.audit(model, x)
    drawn = [s for s in found.sources if s.draws or s.evaluation]
    verdicts = {}
    for source in found.sources:
        name = "off" if source.healthy and not source.draws else source.verdict
        if name != "acts":
            verdicts.setdefault(name, []).append(source.module or "(model)")
    told = "; ".join(
        f"{len(where)} {name}" + ("" if name == "off" else f" ({where[0]})")
        for name, where in verdicts.items()
    )
    acting = sum(s.verdict in ("acts", "active in evaluation") and s.change > 0 for s in drawn)
    return (len(drawn), acting, *rates(found), told)


def built(build, **arguments):
    """The model on the first size that it takes, with its images."""
    problem = None
    narrow = {
        "img_size": 64,
        "embed_dim": 96,
        "num_heads": 3,
    }  # what most transformers of timm take
    for size, side in (
        (narrow, 64),
        ({"img_size": 64}, 64),
        ({}, 64),
        ({}, 96),
        ({}, 224),
        ({}, 256),
    ):
        torch.manual_seed(0)
        x = torch.randn(4 if side < 200 else 2, 3, side, side)
        try:
            model = build(**size, **arguments)
            with torch.no_grad():
                model.eval()(x)
        except Exception as error:  # of any library: the next size
            problem = error
        else:
            return model, x
    raise problem


def rows(library, model_of, family):
    try:
        name, build = model_of(family)
    except Exception as error:
        yield ("", "", *[""] * 4, f"not run: {type(error).__name__}")
        return
    if library != "timm":
        yield name, "", *attempt(build)
        return
    import timm

    entry = timm.model_entrypoint(name)
    source = inspect.getsource(inspect.getmodule(entry))
    for argument in ARGUMENTS:
        if argument in source:
            yield name, argument, *attempt(build, **{argument: 0.1})


def attempt(build, **arguments):
    try:
        return row(*built(build, **arguments))
    except Exception as error:
        return (*[""] * 4, f"not run: {' '.join(f'{type(error).__name__}: {error}'.split())[:80]}")


def table(found):
    text = [TEXT]
    for library in dict.fromkeys(one["library"] for one in found):
        mine = [one for one in found if one["library"] == library]
        ran = [one for one in mine if not one["verdicts"].startswith("not run")]
        silent = sum(one["argument"] != "" and one["sources"] == "0" for one in ran)
        text += [f"## {library}\n", f"{len(ran)} audits ran, {len(mine) - len(ran)} did not."]
        if library == "timm":
            text.append(f"In {silent} the argument has no effect.")
        head = [
            "family",
            "model",
            "argument",
            "sources",
            "act",
            "requested",
            "realized",
            "other verdicts",
        ]
        text += ["", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        for one in mine:
            values = [str(one[name]) for name in COLUMNS[1:]]
            if one in ran and one["argument"] and one["sources"] == "0":
                values[-1] = f"**no effect** {values[-1]}".strip()
            text.append(f"| {' | '.join(values)} |")
        text.append("")
    return "\n".join(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("csv", type=Path)
    parser.add_argument("--table", type=Path, help="write this Markdown file from the CSV")
    parser.add_argument("--only", nargs="*", default=[], help="families, e.g. timm/resnet")
    parser.add_argument("--seconds", type=int, default=180, help="CPU time limit of a family")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)

    def late(*args):
        raise TimeoutError("time limit")

    signal.signal(signal.SIGPROF, late)
    found = list(csv.DictReader(options.csv.open())) if options.csv.exists() else []
    done = {f"{one['library']}/{one['family']}" for one in found}
    with options.csv.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if not found:
            writer.writeheader()
        for library, family, model_of in families():
            path, start = f"{library}/{family}", time.time()
            if path in done or (options.only and path not in options.only):
                continue
            new = []
            signal.setitimer(signal.ITIMER_PROF, options.seconds)
            try:
                for one in rows(library, model_of, family):
                    new.append(dict(zip(COLUMNS, (library, family, *one), strict=True)))
            except TimeoutError:
                new = new or [dict.fromkeys(COLUMNS, "") | {"library": library, "family": family}]
                new[-1]["verdicts"] = new[-1]["verdicts"] or "not run: time limit"
            signal.setitimer(signal.ITIMER_PROF, 0)
            found += [{key: str(value) for key, value in one.items()} for one in new]
            writer.writerows(new)
            file.flush()
            gc.collect()
            print(f"{path} {len(new)} rows {time.time() - start:.0f} s", flush=True)
    if options.table:
        options.table.write_text(table(found))


if __name__ == "__main__":
    main()
