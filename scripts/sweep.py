"""Try ``attach`` or ``audit`` on one small model of every family of timm, torchvision and
transformers.

    python scripts/sweep.py stages    # docs/stages.md, half an hour on one core
    python scripts/sweep.py audit     # results/audit.md, one to two hours

The tables of the page are continued; remove them to start again. A new page begins with the
docstring of the survey. ``tests/programs/placement.py`` says how a place is checked.
"""

import signal
import sys
import warnings
from inspect import getdoc, getmodule, getsource
from pathlib import Path

import timm
import torch
import torchvision
import transformers

import chaosgate as cg

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.programs.placement import NO_GRID, verdicts  # noqa: E402

AUDITED = "argument sources act requested realized verdict".split()
SECONDS = 180  # of CPU time for a family
ARGUMENTS = """drop_rate drop_path_rate attn_drop_rate proj_drop_rate pos_drop_rate patch_drop_rate
    drop_block_rate""".split()
MAPPING = transformers.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING


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
        size = {"image_size": img_size} if img_size else {}
        model = torchvision.models.get_model(name, num_classes=10, **fixed, **size)
        return model.backbone if family.startswith("detection") else model

    return name, build


def transformers_model(family):
    kind = next(kind for kind in MAPPING if kind.model_type == family)
    model = MAPPING[kind][0] if isinstance(MAPPING[kind], tuple) else MAPPING[kind]
    default = kind()

    def build(img_size=None):
        small = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
        small["embed_dim"] = 24
        small = {k: v for k, v in small.items() if isinstance(getattr(default, k, None), int)}
        if img_size:
            small["image_size"] = img_size
        if hasattr(default, "vision_config"):
            small = {"vision_config": {**small, "hidden_size": 64, "num_attention_heads": 4}}
        return model(kind(num_labels=10, **small))

    return model.__name__, build


def families():
    for family in timm.list_modules():
        yield "timm", family, timm_model
    others = ("video", "quantization", "optical_flow")
    found = {torchvision_family(name) for name in torchvision.models.list_models()}
    for family in sorted(f for f in found if not f.startswith(others)):
        yield "torchvision", family, torchvision_model
    for kind in MAPPING:
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
    """The module of L4, or the verdict."""
    for side, shift in ((96, 1.0), (192, 1.0), (192, 0.0)):  # some need more pixels
        model, x, sized = small(build, side, 2)
        ((_, module, _, verdict, reason),) = verdicts(model, x, ["L4"], sized, shift)
        if reason != NO_GRID and verdict != "refused":
            break
    yield [f"`{module}`" if verdict == "right" else verdict]


def audit(library, name, build):
    """Random sources of one small model of every family, by `cg.audit`.

    Weights and images are random. In timm models each drop argument is set to 0.1, one at a time.
    *sources*: places that drew random numbers. *act*: those whose redraw changes the output. The
    rates are means over the sources that state one; the realized rate is that of five forwards of
    four images, so rates of whole samples scatter. *off* counts layers of rate zero. A row without
    sources: the argument has no effect.

    `scripts/sweep.py` writes this page.
    """
    source = getsource(getmodule(timm.model_entrypoint(name))) if library == "timm" else ""
    for argument in [one for one in ARGUMENTS if one in source] or [""]:
        try:
            model, x, _ = small(build, 64, 4, **({argument: 0.1} if argument else {}))
            yield [argument, *summary(cg.audit(model, x).to_frame())]
        except Exception as error:  # of any library
            yield [argument, *[""] * 4, f"not run: {type(error).__name__}"]


def summary(found):
    """Columns of an audit."""
    if found.empty:
        return [0, 0, "", "", ""]
    is_off = (found.verdict == "never draws") & (found.requested == 0)
    verdicts = found.verdict.mask(is_off, "off").value_counts()
    drawn = found[(found.draws > 0) | (found.evaluation > 0)]
    rates = drawn[["requested", "realized"]].dropna().mean().round(3).fillna("")
    notes = [f"{count} {verdict}" for verdict, count in verdicts.items() if verdict != "acts"]
    return [len(drawn), sum(found.change > 1e-5), *rates, "; ".join(notes)]


KINDS = {  # survey, its page, its columns
    "stages": (stages, "docs/stages.md", ["L4"]),
    "audit": (audit, "results/audit.md", AUDITED),
}


def late(*args):
    raise Late


def table_lines(*rows):
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows)


def main(kind):
    survey, path, columns = KINDS[kind]
    page, names = ROOT / path, ["family", "model", *columns]
    text = page.read_text() if page.exists() else f"# {kind.title()}\n\n{getdoc(survey)}\n"
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    signal.signal(signal.SIGPROF, late)
    for library, family, find in families():
        if f"\n## {library}\n" not in text:
            text += f"\n## {library}\n\n{table_lines(names, ['---'] * len(names))}"
        if f"\n| {family} |" in text.partition(f"\n## {library}\n")[2]:
            continue
        name = ""
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            name, build = find(family)
            found = list(survey(library, name, build))
        except (Exception, Late) as error:  # of any library
            print(repr(error))
            found = [[*[""] * (len(columns) - 1), "not run"]]
        signal.setitimer(signal.ITIMER_PROF, 0)
        rows = table_lines(*([family, name, *row] for row in found))
        print(rows, end="", flush=True)
        text += rows
        page.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1])
