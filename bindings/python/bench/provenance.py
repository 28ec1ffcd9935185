"""Where a measurement comes from: machine, commit and versions, as records in bench/records have them."""

import importlib.metadata
import os
import pathlib
import platform
import subprocess


def _said(command):
    try:
        folder = pathlib.Path(__file__).parent
        return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _processor():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def provenance():
    versions = {}
    for package in ("polydraft", "numpy", "torch", "transformers"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "machine": _processor(),
        "threads": os.cpu_count(),
        "commit": _said(["git", "rev-parse", "HEAD"]),
        "compiler": _said(["rustc", "--version"]),
        "python": platform.python_version(),
        "versions": versions,
    }
