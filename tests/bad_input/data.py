"""Data modules."""

from typing import Any

from tests.bad_input.case import INF, NAN, Case, class_cases, run_case

COUNTS = [0, -1, 1.5, "many"]
SHARES = [0.0, 1.0, -0.1, NAN, "some"]


def as_data(node: dict[str, Any]) -> dict[str, Any]:
    return {"data": node}


def data_cases(name: str, bad: dict[str, list[Any]], says: dict[str, str] | None = None, **valid: Any) -> list[Case]:
    return class_cases(f"chaosgate.{name}", bad, as_data, valid, says)


SHARED = {
    "batch_size": COUNTS,
    "eval_batch_size": COUNTS,
    "num_workers": [-1, 0.5],
    "mean": [[], [NAN], "grey"],
    "std": [[0.0], [-1.0], [INF], []],
    "severities": [[0], [6], [], [1, 1], "hard"],
}
PARTS = [{"train": 0}, {"tests": 3}, 5]
CORRUPTIONS = [["fogg"], "all of them", [], ["fog", "fog"]]
CASES = [
    *data_cases("FashionMNIST", SHARED),
    *data_cases(
        "FashionMNIST",
        {
            "root": ["nowhere"],
            "corruptions": CORRUPTIONS,
            "val_fraction": SHARES,
            "crop_padding": [-1, 1.5],
            "per_class": PARTS,
        },
        says={"root": "nowhere"},
    ),
    run_case(
        "FashionMNIST.download", as_data({"class_path": "chaosgate.FashionMNIST", "init_args": {"download": True}})
    ),
    run_case("FashionMNIST.seed", {"seed_everything": -3}, "seed"),
    *(
        class_cases(
            "chaosgate.ImageFolder",
            {
                **SHARED,
                "mean": [[0.5], [0.5, 0.5, NAN]],
                "std": [[1.0, 1.0, 0.0]],
                "image_size": COUNTS,
                "eval_resize": [100, 0, "x"],
                "train_scale": [[0.5, 1.5], [NAN, 1.0], [0.5]],
                "severities": [[0], [6], "hard"],
                "recipe": ["best"],
                "interpolation": ["cubic"],
                "decoder": ["turbo"],
                "crop_padding": [-1, 1.5],
                "corruptions": CORRUPTIONS,
                "corruption_table": ["large"],
                "root": ["nowhere"],
                "val_fraction": SHARES,
                "test_fraction": SHARES,
                "per_class": PARTS,
            },
            as_data,
            {"root": "nowhere"},
            {"root": "nowhere"},
        )
    ),
    *data_cases("ImageFolder", {"frost_textures": ["no_textures"]}, root="nowhere", corruptions=["frost"]),
    run_case("ImageFolder.root", {"data": {"class_path": "chaosgate.ImageFolder"}}),
    run_case(
        "ImageFolder.root", {"data": {"class_path": "chaosgate.ImageFolder", "init_args": {"root": "empty"}}}, "empty"
    ),
    *data_cases(
        "ImageNet",
        {
            "image_size": [0],
            "val_folder": ["no_val"],
            "validation": ["test"],
            "val_fraction": SHARES,
            "subset": SHARES,
            "root": ["nowhere"],
        },
        {"root": "nowhere", "val_folder": "val_folder|no_val"},
        root="nowhere",
    ),
    *data_cases(
        "ImageNetC",
        {
            "source": ["made"],
            "corruptions": [None, *CORRUPTIONS],
            "severities": [[0], []],
            "image_size": [-2],
            "clean": ["no_clean"],
            "root": ["nowhere"],
        },
        {"root": "nowhere", "clean": "no_clean"},
        root="nowhere",
        corruptions="paper",
    ),
    *data_cases(
        "OxfordPets",
        {"root": ["nowhere"], "image_size": [0], "val_fraction": SHARES, "per_class": PARTS},
        {"root": "nowhere"},
        root="nowhere",
    ),
    *data_cases("ImageNet", {"classes": ["no_classes.txt"]}, {"classes": "no_classes.txt"}, root="photos"),
    *data_cases(
        "ImageNetVariant",
        {"root": ["nowhere"], "variant": ["c", 3], "image_size": [0], "classes": ["no_classes.txt"]},
        {"root": "nowhere", "classes": "no_classes.txt|photos"},
        root="photos",
        variant="r",
    ),
    *(
        case
        for name in ("CIFAR10", "CIFAR100")
        for case in data_cases(
            name,
            {"root": ["nowhere", "empty"], "released": ["no_released"]},
            {"root": "nowhere|empty", "released": "no_released|photos"},
            root="photos",
            corruptions="paper",
        )
    ),
    *(
        case
        for name in ("CIFAR10", "CIFAR100")
        for case in data_cases(name, {"mean": [[0.5], [NAN, 0.5, 0.5]], "std": [[0.0, 1.0, 1.0], []]}, root="photos")
    ),
    *data_cases(
        "HuggingFace",
        {
            "root": [3],
            "image_size": [0, "x"],
            "image_column": [3],
            "label_column": [3],
            "splits": [3, {"train": 3}],
            "config": ["no_such_configuration"],
            "val_fraction": SHARES,
            "test_fraction": SHARES,
        },
        root="photos",
    ),
    *(
        run_case(f"{name}.root", as_data({"class_path": f"chaosgate.{name}", "init_args": init_args}), "root")
        for root in ("", " ")  # an empty path is the working folder, which nobody named
        for name, init_args in (
            *((one, {"root": root}) for one in ("FashionMNIST", "ImageFolder", "ImageNet", "OxfordPets", "CIFAR10")),
            ("ImageNetC", {"root": root, "corruptions": "paper"}),
            ("ImageNetVariant", {"root": root, "variant": "r"}),
            ("HuggingFace", {"root": root}),
        )
    ),
    run_case("data", {"data": {"class_path": "chaosgate.NoSuchData"}}, "NoSuchData"),
    run_case("data", {"data": None}, "data"),
    run_case("data", {"data": {"class_path": "chaosgate.GaussianChaos"}}, "data|ImageData"),
]
