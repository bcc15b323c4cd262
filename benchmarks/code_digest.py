"""The digest of what a long benchmark depends on, so that it goes on only where nothing of this has changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from precision_time.fit.provenance import sha256
from precision_time.shipped import MANIFEST, ROOT


def code_digest(*folders: Path, files: Iterable[Path] = (), settings: object = None) -> str:
    """Of the package's code and shipped data, of the code in `folders`, of `files` and of the text of `settings`."""
    code = sorted(path for folder in (ROOT, *folders) for path in folder.rglob("*.py"))
    digest = hashlib.sha256(repr(settings).encode())
    for path in (*files, ROOT / MANIFEST, *code):
        digest.update(sha256(path).encode())
    return digest.hexdigest()[:16]
