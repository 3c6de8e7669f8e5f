"""The command `shoal` as a whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from shoal_cli.main import COMMANDS, main


def test_the_overview_lists_every_command_and_imports_none() -> None:
    code = "import sys; from shoal_cli.main import main; main(['--help'], standalone_mode=False); print(sorted(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name in COMMANDS:
        assert f"  {name} " in result.stdout
    modules = result.stdout.splitlines()[-1]
    for heavy in ("numpy", "google.protobuf", "rich", "msgspec", "yaml", "shoal_dataplane", "torch", "grpc"):
        assert f"'{heavy}'" not in modules


def test_every_command_can_be_loaded_and_describes_itself() -> None:
    for name in COMMANDS:
        result = CliRunner().invoke(main, [name, "--help"])
        assert result.exit_code == 0, result.output
        assert "Usage:" in result.output


def test_an_unknown_command_gets_a_near_name() -> None:
    result = CliRunner().invoke(main, ["serv"])
    assert result.exit_code == 2
    assert "No such command 'serv'. Did you mean 'serve'?" in result.output


def test_the_version_command_imports_no_framework() -> None:
    code = "import sys; from shoal_cli.main import main; main(['version'], standalone_mode=False); sys.exit('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("shoal ")


def test_digest_prints_one_line_a_path(tmp_path: Path) -> None:
    runner = CliRunner()
    file = tmp_path / "a"
    file.write_text("abc")
    one = runner.invoke(main, ["digest", str(file)]).output
    assert one == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\n"
    assert runner.invoke(main, ["digest", str(file), str(file)]).output == f"{one.strip()}  {file}\n" * 2
    assert runner.invoke(main, ["digest", str(tmp_path / "nope")]).exit_code == 2
