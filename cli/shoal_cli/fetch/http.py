"""One file over HTTP or HTTPS, named by its SHA-256."""

from __future__ import annotations

import functools
import hashlib
import http.client
import urllib.error
import urllib.request
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from shoal_cli.fetch.store import FetchError, Progress, ensure_folder, silent

TIMEOUT_SECONDS = 60.0
"""Without a byte."""
_CHUNK = 1 << 20


def fetch_http(url: str, sha256: str, cache: Path, progress: Progress = silent) -> Path:
    """Return the file, under the name that the URL ends in; download it unless the cache has it.

    Proxies are those of the environment (HTTPS_PROXY, NO_PROXY), certificates the system's or SSL_CERT_FILE.
    Raises FetchError: no connection, an HTTP error, other content than `sha256` says.
    """
    name = PurePosixPath(unquote(urlsplit(url).path)).name
    if not name or name.startswith("."):
        raise FetchError(f"{url}: the address must end in a file's name, such as model.onnx")
    target = cache / "http" / sha256
    ensure_folder(
        target, lambda folder: (folder / name).is_file(), functools.partial(_make, url, sha256, name, progress)
    )
    return target / name


def _make(url: str, sha256: str, name: str, progress: Progress, folder: Path) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "shoal", "Accept-Encoding": "identity"})
    found = hashlib.sha256()
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response, (folder / name).open("wb") as file:
            length = response.headers.get("Content-Length", "")
            total = int(length) if length.isdigit() else None
            done = 0
            progress(done, total)
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                found.update(chunk)
                done += len(chunk)
                progress(done, total)
            if total is not None and done != total:
                raise FetchError(f"{url}: the connection ended after {done} of {total} bytes")
    except urllib.error.HTTPError as error:
        raise FetchError(f"{url}: HTTP {error.code} {error.reason}") from error
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise FetchError(f"{url}: {getattr(error, 'reason', None) or error or type(error).__name__}") from error
    if found.hexdigest() != sha256:
        raise FetchError(f"{url}: the content has SHA-256 {found.hexdigest()}, expected {sha256}")
