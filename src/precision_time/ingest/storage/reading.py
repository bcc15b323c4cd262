"""Reads pictures as a training loop does: from storage, through a cache, decoded and augmented, as tensors."""

from __future__ import annotations

import io
import os
import random
from typing import Any

from precision_time.errors import IngestError, MissingExtraError
from precision_time.ingest.storage.file_cache import FileCache
from precision_time.ingest.storage.index import Index, read_index
from precision_time.ingest.storage.object_reader import ObjectReader, open_reader

try:
    import torch
    from PIL import Image, UnidentifiedImageError
    from torch.utils.data import Dataset
except ImportError as absent:
    raise MissingExtraError(
        f"reading pictures needs PyTorch and Pillow ({absent}); pip install 'precision-time[ingest]'"
    ) from absent

CROPPED = 0.875
"""Edge of the random crop as a share of the picture's, as 224 of 256."""


class Pictures(Dataset):
    """A torch data set of (tensor of floats 0..1 in CHW order, label). Each process opens its own connection."""

    def __init__(
        self,
        root: str,
        cache: FileCache | None = None,
        first: int = 0,
        samples: int | None = None,
        index: Index | None = None,
    ) -> None:
        self.root, self.cache = root, cache
        self.index = (index or read_index(root)).part(first, samples)
        self._reader: tuple[int, ObjectReader] | None = None

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        return decode(self.read(number), self.index.names[number]), self.index.labels[number]

    def read(self, number: int) -> bytes:
        """The stored file, from the cache if it is there."""
        name = self.index.names[number]
        if self.cache is None:
            return self._open().read(name)
        return self.cache.get(name, self._open().read)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}

    def _open(self) -> ObjectReader:
        if self._reader is None or self._reader[0] != os.getpid():
            self._reader = os.getpid(), open_reader(self.root)
        return self._reader[1]


def decode(content: bytes, name: str = "") -> Any:
    """The picture as a tensor, with a random crop and flip. `name`: of its file, for an error."""
    try:
        picture = Image.open(io.BytesIO(content)).convert("RGB")
    except OSError as error:
        which = f"file {name!r}" if name else "a file"
        why = "" if isinstance(error, UnidentifiedImageError) else f": {error}"
        raise IngestError(f"{which} of the data set is no picture{why}; make the data set anew") from error
    width, height = (round(CROPPED * edge) for edge in picture.size)
    left, top = random.randint(0, picture.width - width), random.randint(0, picture.height - height)
    picture = picture.crop((left, top, left + width, top + height))
    if random.random() < 0.5:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
    return pixels.view(height, width, 3).permute(2, 0, 1).float().div_(255.0)
