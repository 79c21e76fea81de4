"""The released JPEGs of ImageNet-C on disk: where each cell is, which files it has, and its images as they are."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from chaosgate.data.pipeline.decoding import Decoder, FileImages, Picture, decode
from chaosgate.data.pipeline.sample import Cell

GROUPS = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    "extra": ("speckle_noise", "gaussian_blur", "spatter", "saturate"),
}
"""The five archives of the release and what is in them."""


def group_of(corruption: str) -> str:
    """Archive that a corruption is released in."""
    return next(group for group, names in GROUPS.items() if corruption in names)


def find_cells(root: Path, cells: Sequence[Cell]) -> dict[Cell, Path]:
    """Folder of every cell, in ``<corruption>/<severity>`` or ``<group>/<corruption>/<severity>``.

    Raises:
        FileNotFoundError: Some are missing; the message lists them all, and which archives hold them.
    """
    found: dict[Cell, Path] = {}
    for cell in cells:
        name, severity = cell.corruption, str(cell.severity)
        places = (root / name / severity, root / group_of(name) / name / severity)
        place = next((place for place in places if place.is_dir()), None)
        if place is not None:
            found[cell] = place
    missing = [cell for cell in cells if cell not in found]
    if missing:
        by_name: dict[str, list[str]] = {}
        for cell in missing:
            by_name.setdefault(cell.corruption, []).append(str(cell.severity))
        listed = "; ".join(f"{name} {','.join(severities)}" for name, severities in by_name.items())
        archives = sorted({f"{group_of(name)}.tar" for name in by_name})
        raise FileNotFoundError(
            f"{root} lacks {len(missing)} of {len(cells)} cells: {listed}. They are in {', '.join(archives)} "
            "(chaosgate data download imagenet-c-noise, ...). Or ask for fewer (data.corruptions, data.severities), or "
            "set data.source to 'generated' and data.root to clean images."
        )
    return found


class ReleasedImages:
    """Images of one cell as they are: no resize and no cut.

    Args:
        folder: Folder of the cell.
        names: Names relative to it; all cells share one block of them, so memory does not grow with the cells.
        size: Side of the square that every image must have.
        decoder: As for all photographs.
    """

    def __init__(self, folder: Path, names: FileImages, size: int, decoder: Decoder) -> None:
        self.folder = folder
        self.names = names
        self.size = size
        self.decoder: Decoder = decoder

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Picture:
        path = self.folder / self.names.path(index)
        picture = decode(path, self.decoder)
        size = (picture.shape[2], picture.shape[1]) if isinstance(picture, Tensor) else picture.size
        if size != (self.size, self.size):
            raise ValueError(
                f"{path} is {size[0]}x{size[1]}; the images of a cell are {self.size}x{self.size} and are neither "
                "resized nor cut. Set data.image_size, or point data.root at the released set."
            )
        return picture
