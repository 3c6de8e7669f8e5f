"""Certificates for tests, made by the openssl command."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


class Authority:
    """A certificate authority, in a folder. `cert` is its own certificate."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        folder.mkdir(parents=True, exist_ok=True)
        self._run(
            "req", "-x509", *_KEY, "-keyout", f"{name}.key", "-out", f"{name}.crt", "-days", "2", "-subj", f"/CN={name}"
        )
        self.cert = folder / f"{name}.crt"

    def issue(self, name: str) -> tuple[Path, Path]:
        """Make a key and a certificate for `name`, valid on this machine. Returns the paths of the certificate and the key."""
        folder = self._folder
        (folder / f"{name}.ext").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        self._run("req", *_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed = ["-CA", f"{self._name}.crt", "-CAkey", f"{self._name}.key", "-CAcreateserial", "-days", "2"]
        self._run("x509", "-req", "-in", f"{name}.csr", *signed, "-extfile", f"{name}.ext", "-out", f"{name}.crt")
        return folder / f"{name}.crt", folder / f"{name}.key"

    def _run(self, *arguments: str) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("the openssl command, which makes the certificates, is not here")
        done = subprocess.run(
            ["openssl", *arguments], cwd=self._folder, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr


_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
