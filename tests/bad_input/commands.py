"""Flags of the sub-commands, and files where others are expected."""

import json

from tests.bad_input.case import BASE, Case
from tests.bad_input.studies import STUDY, study_case


def flag_cases(command: str, flag: str, values: list[str], *words: str, says: str | None = None) -> list[Case]:
    """A case per value of a flag; several words are several values."""
    name = flag.lstrip("-").replace("-", "[-_ ]")
    return [Case(f"{command} {flag}", (*words, flag, *value.split()), says or name) for value in values]


def verify(flag: str, *values: str, says: str | None = None) -> list[Case]:
    return flag_cases("verify", flag, list(values), "verify", says=says)


def probe(flag: str, *values: str, says: str | None = None) -> list[Case]:
    return flag_cases("probe", flag, list(values), "probe", "resnet10_small", says=says)


def write(flag: str, *values: str, says: str | None = None) -> list[Case]:
    fixed = {"--from": "photos", "--to": "out", "--corruptions": "fog", "--severities": "1"}
    words = [word for name, value in fixed.items() if name != flag for word in (name, value)]
    return flag_cases("data imagenet-c", flag, list(values), "data", "imagenet-c", *words, says=says)


def slurm(flag: str, *values: str, says: str | None = None) -> list[Case]:
    words = ("study", "run", "small.yaml", "--launcher", "slurm")
    text = study_case("seeds", STUDY["seeds"]).files
    made = flag_cases("study", flag, list(values), *words, says=says or flag.lstrip("-"))
    return [Case(case.covers, case.words, case.says, files=text) for case in made]


def study(flag: str, *values: str, says: str | None = None, action: str = "run") -> list[Case]:
    text = study_case("seeds", STUDY["seeds"]).files
    made = flag_cases("study", flag, list(values), "study", action, "small.yaml", says=says)
    return [Case(case.covers, case.words, case.says, files=text) for case in made]


def export(flag: str, *values: str, says: str | None = None) -> list[Case]:
    fixed = {"--to": "made.pth", "--backbone": "resnet10_small"}
    words = [word for name, value in fixed.items() if name != flag for word in (name, value)]
    return flag_cases("export", flag, list(values), "export", "other.ckpt", *words, says=says)


def explore(flag: str, *values: str, says: str | None = None) -> list[Case]:
    return flag_cases("explore", flag, list(values), "explore", says=says)


CASES = [
    *verify("--grid", "0 7", "7", "7 x", "-3 4", "1 1"),
    *verify("--operator", "laplace", "massive:mu=-1", "massive:mu=x", "massive:nu=1", ""),
    *verify("--log-std", "-1", "nan", "inf", "x", "0", says="log[-_]std"),
    *verify("--gamma", "nan", "inf", "x"),
    *flag_cases("verify", "--beta", ["0", "-1", "nan"], "verify", "--gamma", "0.1"),
    *flag_cases("verify", "--epsilon", ["0", "-1", "inf"], "verify", "--gamma", "0.1"),
    *verify("--keep", "0", "1", "-0.5", "nan", "x"),
    *verify("--draws", "0", "-5", "1.5"),
    *verify("--seed", "x", "-1"),
    *verify("--format", "pdf"),
    *verify("--output", "empty", "torn.yaml/report.md", says="empty|torn.yaml"),
    Case("verify", ("verify", "--no-such-flag"), "no-such-flag"),
    Case("probe network", ("probe", "resnet_ten"), "resnet_ten"),
    Case("probe network", ("probe",), "network"),
    Case("probe network", ("probe", "nowhere.ckpt"), "nowhere.ckpt"),
    Case("probe network", ("probe", "torn.ckpt"), "torn.ckpt"),
    Case("probe network", ("probe", "list.ckpt"), "list.ckpt"),
    Case("probe network", ("probe", "empty"), "empty"),
    Case("probe --backbone", ("probe", "other.ckpt"), "backbone"),
    Case("probe --backbone", ("probe", "other.ckpt", "--backbone", "nothing"), "nothing"),
    *probe("--num-classes", "-1", "x"),
    *probe("--in-chans", "0", "-2", "x"),
    *probe("--images", "nowhere", "empty", says="nowhere|empty"),
    *probe("--images", "photos", says="b.png"),
    *probe("--count", "0", "-1", "x"),
    *probe("--image-size", "0", "-8", "x"),
    *probe("--stages", "L9", "fc.x", "", says="stage"),
    *probe("--methods", "gauss", "gch gch", "", says="method"),
    *probe("--log-std", "-1", "nan", "x", says="log[-_]std"),
    *probe("--energy", "0", "-1", "nan", "x"),
    *probe("--operator", "laplace", "massive:mu=0"),
    *probe("--channels", "0", "-1", "x"),
    *probe("--draws", "0", "x"),
    *probe("--pairs", "0", "x"),
    *probe("--lift", "-1", "nan", "x"),
    *probe("--logit-draws", "-1", "x"),
    *probe("--seed", "-1", "x"),
    *probe("--device", "abacus", "cuda", says="device|cuda|CUDA"),
    *probe("--format", "pdf"),
    *probe("--output", "empty", "torn.yaml/table.md", says="empty|torn.yaml"),
    *probe("--figure", "empty", "torn.yaml/figure.png", says="empty|torn.yaml"),
    *write("--from", "nowhere", "empty", says="nowhere|empty"),
    *write("--to", "photos", "torn.yaml", says="photos|torn.yaml"),
    *write("--corruptions", "fogg", "fog fog", ""),
    *write("--severities", "0", "6", "x", "1 1", ""),
    *write("--val-labels", "nowhere.txt", says="nowhere.txt"),
    *flag_cases(
        "data imagenet-c",
        "--frost-textures",
        ["nowhere"],
        *("data", "imagenet-c", "--from", "photos", "--to", "out", "--corruptions", "frost"),
        says="frost",
    ),
    *write("--size", "0", "-3", "x"),
    *write("--resize", "0", "10", "x"),
    *write("--seed", "-1", "x"),
    *write("--workers", "0", "-1", "x"),
    Case("data download name", ("data", "download", "mnist", "--to", "out"), "mnist"),
    Case("data download --to", ("data", "download", "oxford-pets"), "to"),
    Case("data check root", ("data", "check", "nowhere"), "nowhere"),
    Case("data check root", ("data", "check", "empty"), "empty"),
    *flag_cases("data check", "--workers", ["0", "-1", "x"], "data", "check", "photos"),
    Case("data", ("data",), "action"),
    Case("bench subject", ("bench", "speed"), "speed"),
    Case("bench subject", ("bench",), "subject"),
    *flag_cases("bench", "--repeats", ["0", "-1", "x"], "bench", "gate"),
    *flag_cases("bench", "--threads", ["0", "-1", "x"], "bench", "gate"),
    *flag_cases("bench", "--json", ["nowhere/rows.json"], "bench", "field", says="nowhere.*folder|folder.*nowhere"),
    *flag_cases("bench", "--images", ["nowhere", "empty"], "bench", "data", says="nowhere|empty"),
    *(Case("export network", ("export", name, "--to", "made.pth"), name) for name in ("nowhere", "empty", "torn.ckpt")),
    Case("export network", ("export", "--to", "made.pth"), "network|CKPT"),
    *export("--to", "made.bin", "made", "empty", "torn.yaml/made.pth", "list.ckpt", says="made|empty|torn|list"),
    *export("--backbone", "nothing", "resnet10_small", says="nothing|not of resnet10_small"),
    *export("--num-classes", "0", "x"),
    *export("--in-chans", "0", "x"),
    *export("--image-size", "0", "x"),
    *explore("--to", "empty", "torn.yaml/page.html", "torn.yaml", says="empty|torn.yaml"),
    *explore("--operators", "laplace", "dirichlet dirichlet", "massive:mu=-1", ""),
    *explore("--grids", "1", "x", "7 7", "57"),
    *explore("--log-std", "0", "nan", "x", "1 1", "2.5", says="log[-_]std"),
    *explore("--seed", "-1", "x"),
    Case("configs action", ("configs", "open"), "open"),
    Case("configs name", ("configs", "show"), "name"),
    Case("configs name", ("configs", "copy", "noise/gcx"), "noise/gcx.*noise/gch"),
    Case("study action", ("study", "start", "small.yaml"), "start"),
    Case("study file", ("study", "plan"), "file"),
    Case("study file", ("study", "plan", "nowhere.yaml"), "nowhere.yaml"),
    Case("study file", ("study", "plan", "empty"), "empty"),
    Case("study file", ("study", "plan", "torn.yaml"), "torn.yaml"),
    Case("study file", ("study", "plan", "list.yaml"), "list.yaml"),
    Case("study file", ("study", "plan", "binary.yaml"), "binary.yaml"),
    Case("study file", ("study", "plan", "twice.yaml"), "twice.yaml.*max_epochs"),
    *study("--root", "torn.yaml", says="torn.yaml"),
    *study("--jobs", "0", "-1", "x"),
    *study("--threads", "0", "x"),
    *study("--launcher", "cloud"),
    *study("--only", "gcx", says="--only gcx: the study has"),
    *study("--seed", "7", says="--seed 7: the study has"),
    *study("--seed", "x"),
    *study("--to", "torn.yaml", action="pack", says="torn.yaml is a file"),
    *study("--size", "large", action="plan", says="large"),
    *slurm("--slurm", "nowhere.yaml", "torn.yaml", "list.yaml", says="nowhere|torn|list"),
    *slurm("--slurm.time", "soon", "0", "1"),
    *(case for key in ("gpus", "cpus", "parallel", "notice") for case in slurm(f"--slurm.{key}", "-1", "x")),
    *slurm("--slurm.memory", "-1", "x", "nan"),
    *slurm("--slurm.requeues", "-1", "x"),
    Case("command", ("train",), "train"),
    Case("command", ("tset",), "test"),
    Case("command", ("fit", "-c", "nowhere.yaml"), "nowhere.yaml"),
    Case("command", ("fit", "-c", "torn.yaml"), "torn.yaml"),
    Case("command", ("fit", "-c", "list.yaml"), "list.yaml"),
    Case("command", ("fit", "-c", "binary.yaml"), "binary.yaml"),
    Case("command", ("fit", "-c", "twice.yaml"), "twice.yaml.*max_epochs"),
    Case("command", ("fit", "-c", "empty"), "empty"),
    Case("command", ("fit",), "data"),
    Case("command", ("fit", "-c", json.dumps(BASE), "--no.such.key=3"), "no.such.key"),
    Case("command", ("fit", "-c", json.dumps(BASE), "surplus"), "surplus"),
    Case("command", ("fit", "-c", json.dumps(BASE), "--run_dir=torn.yaml"), "torn.yaml"),
    Case("test --ckpt_path", ("test", "-c", json.dumps(BASE), "--ckpt_path=nowhere.ckpt"), "nowhere.ckpt"),
    Case("test --ckpt_path", ("test", "-c", json.dumps(BASE), "--ckpt_path=torn.ckpt"), "torn.ckpt"),
    Case("test --ckpt_path", ("test", "-c", json.dumps(BASE), "--ckpt_path=other.ckpt"), "other.ckpt"),
    Case("test --ckpt_path", ("test", "-c", json.dumps(BASE), "--ckpt_path=list.ckpt"), "list.ckpt"),
    Case("validate --ckpt_path", ("validate", "-c", json.dumps(BASE), "--ckpt_path=torn.ckpt"), "torn.ckpt"),
    Case("predict --ckpt_path", ("predict", "-c", json.dumps(BASE), "--ckpt_path=torn.ckpt"), "torn.ckpt"),
    Case("fit --ckpt_path", ("fit", "-c", json.dumps(BASE), "--run_dir=run", "--ckpt_path=torn.ckpt"), "torn.ckpt"),
    Case("test --run_dir", ("test", "-c", json.dumps(BASE), "--run_dir=run"), "no checkpoint"),
]
