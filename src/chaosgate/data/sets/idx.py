"""The idx format of the MNIST family, plain or gzipped."""

import gzip
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Array of an idx file of unsigned bytes; the header gives its shape."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} cannot be unpacked ({error}); fetch it again.") from error
    if len(data) < 4 or data[:3] != b"\x00\x00\x08":
        raise ValueError(f"{path} is not an idx file of unsigned bytes; fetch it again.")
    header = 4 + 4 * data[3]
    shape = tuple(int(size) for size in np.frombuffer(data[4:header], dtype=">u4"))
    if len(data) - header != int(np.prod(shape)):
        raise ValueError(
            f"{path} announces {'x'.join(map(str, shape))} bytes and holds {len(data) - header}; fetch it again."
        )
    return np.frombuffer(data, dtype=np.uint8, offset=header).reshape(shape)
