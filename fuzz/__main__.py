"""`python -m fuzz` runs every target for some time, each in a process of its own; `python -m fuzz NAME` runs one.

libFuzzer ends a process at the first finding and leaves the input in `fuzz/findings/`; `python -m fuzz NAME FILE` runs
it again. The corpus is kept in `fuzz/corpus/`, so that the next call continues from it.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import atheris
import typer

_HERE = Path(__file__).parent
_HANG_S = 10  # decoding an input of some KiB takes milliseconds
_MEMORY_MIB = 2048
_INPUT_BYTES = 4096


def main(
    name: Annotated[str, typer.Argument(help="A target; all targets in turn if it is left out.")] = "",
    repeat: Annotated[Path | None, typer.Argument(help="An input file to run again.", exists=True)] = None,
    *,
    seconds: Annotated[int, typer.Option(min=1, help="How long each target runs.")] = 60,
) -> None:
    """Feed the decoders bytes until one of them breaks its promise."""
    with atheris.instrument_imports(include=["protocol"]):
        from fuzz.seeds import seeds  # noqa: PLC0415 - modules imported here are instrumented
        from fuzz.targets import TARGETS  # noqa: PLC0415
    if repeat is not None:
        TARGETS[name](repeat.read_bytes())
        return
    if not name:
        command = [sys.executable, "-m", "fuzz", f"--seconds={seconds}"]
        failed = [target for target in TARGETS if subprocess.run([*command, target], check=False).returncode]
        if failed:
            typer.echo(f"findings in: {', '.join(failed)}", err=True)
            sys.exit(1)
        return
    corpus, findings = _HERE / "corpus" / name, _HERE / "findings"
    for folder in (corpus, findings):
        folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds(name):
        (corpus / hashlib.sha1(seed, usedforsecurity=False).hexdigest()).write_bytes(seed)
    options = [
        f"-max_total_time={seconds}",
        f"-timeout={_HANG_S}",
        f"-rss_limit_mb={_MEMORY_MIB}",
        f"-max_len={_INPUT_BYTES}",
        f"-artifact_prefix={findings / name}-",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], TARGETS[name])
    atheris.Fuzz()


typer.run(main)
