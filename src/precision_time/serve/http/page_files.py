"""The files of the page, read once when the server starts, so that no request opens one."""

from __future__ import annotations

import hashlib
from pathlib import Path

from precision_time.serve.page import static_folder

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}


def page_files(folder: Path = static_folder) -> dict[str, tuple[bytes, str, str]]:
    """Path of the address -> content, media type and entity tag; index.html is also at /."""
    found: dict[str, tuple[bytes, str, str]] = {}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.is_file() and path.suffix in _TYPES:
            content = path.read_bytes()
            entry = content, _TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            found["/" + path.relative_to(folder).as_posix()] = entry
    if "/index.html" in found:
        found["/"] = found["/index.html"]
    return found
