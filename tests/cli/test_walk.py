"""A newcomer's walk: the README's section on own images, noise and models, followed word by word."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image

from chaosgate.run.directory import RunDirectory

README = (Path(__file__).parents[2] / "README.md").read_text()
BLOCKS = re.findall(
    r"```(\w+)\n(.*?)```", README.split("## Your own images, noise, model")[1].split("\n## ")[0], re.DOTALL
)
CLASSES = ("cat", "dog", "fox", "owl")


def write_photos(root: Path) -> None:
    """Four classes that a colour and a stripe tell apart."""
    generator = torch.Generator().manual_seed(0)
    for k, name in enumerate(CLASSES):
        (root / name).mkdir(parents=True)
        for i in range(40):
            photo = torch.randint(0, 90, (72, 80, 3), generator=generator, dtype=torch.uint8)
            photo[..., k % 3] += 110
            photo[:, :: 2 + k] //= 2
            Image.fromarray(photo.numpy()).save(root / name / f"{i}.jpg")


def start(words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(words: list[str]) -> str:
    process = start(words)
    out, _ = process.communicate(timeout=1800)
    assert process.returncode == 0, out[-3000:]
    return out


def interrupt(words: list[str]) -> str:
    """Ctrl-C as soon as the first epoch is saved."""
    process = start(words)
    for _ in range(3000):
        if list(Path("runs").glob("*/checkpoints/epoch-*.json")):
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 130 and "--resume" in out, out[-3000:]
    return out


@pytest.mark.slow
def test_newcomer_follows_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CHAOSGATE_ALLOW")  # modules of this folder need no permission
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # tests share the cores
    write_photos(Path("photos"))
    said: dict[str, str] = {}
    for language, text in BLOCKS:
        if named := re.match(r"# (\w+\.(?:py|yaml))\n", text):
            Path(named.group(1)).write_text(text)
        if language == "bash":
            for line in text.splitlines():
                words = shlex.split(line, comments=True)
                if "PETS" in words:
                    continue  # real photographs and real weights: not here
                assert words[0] == "chaosgate"
                name = " ".join(words[1:3]) if "--resume" not in words else "resume"
                act = interrupt if name == "fit -c" else run
                said[name] = act([str(Path(sys.executable).with_name("chaosgate")), *words[1:]])
        elif language == "python" and "pl.Trainer" in text:
            said["loop"] = run([sys.executable, "loop.py"])
    assert list(said) == ["data check", "fit -c", "resume", "test -c", "predict -c", "study run", "loop"]
    assert (
        "Next:" in said["resume"] and "chaosgate test -c base -c model/convnext -c mine -c noise/gch" in said["resume"]
    )
    (folder,) = [path for path in Path("runs").iterdir() if path.name.startswith("convnext_atto")]
    rows = RunDirectory(folder).rows()
    assert len(rows) == 1 and rows[0]["top1"] > 0.5  # a quarter by guessing; SGD 0.1 stays there
    lines = (folder / "predictions.csv").read_text().splitlines()
    assert len(lines) == 1 + rows[0]["n"] and lines[0].startswith("index,path,label,prediction,confidence,")
    epochs = [json.loads(line)["epoch"] for line in (folder / "curves.jsonl").read_text().splitlines()]
    assert epochs == list(range(10))
    assert "chain" in said["study run"] and "blink" in said["study run"]
    assert Path("runs/studies/two_noises").is_dir() and int(re.search(r"noised (\d+) times", said["loop"]).group(1)) > 0
