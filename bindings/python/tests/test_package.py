"""Examples, stubs and docstrings, and import cycles."""

import ast
import doctest
import inspect
import pathlib
import subprocess
import sys

import numpy
import polydraft
import polydraft.verification
import pytest
from polydraft import _native

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL


def examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    names = {"np": numpy, **vars(polydraft)}
    yield from finder.find(polydraft.verification, globs={**names})
    yield from (d for d in finder.find(polydraft, globs={**names}) if d.name == "polydraft")
    for name, item in vars(_native).items():
        if inspect.isclass(item) or inspect.isroutine(item):
            members = [(name, item)]
            if inspect.isclass(item):
                members += [(f"{name}.{member}", getattr(item, member)) for member in vars(item)]
            for where, member in members:
                text = inspect.getdoc(member) or ""
                if ">>>" in text and not where.endswith("__doc__"):
                    yield doctest.DocTestParser().get_doctest(text, {**names}, where, None, 0)


@pytest.mark.parametrize("example", [e for e in examples() if e.examples], ids=lambda e: e.name)
def test_docstring_examples(example):
    report = []
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    runner.run(example, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)


def test_all_names_have_docstrings_and_stubs():
    package = pathlib.Path(polydraft.__file__).parent
    assert (package / "py.typed").exists()
    stubs = (package / "_native.pyi").read_text()
    for name, item in vars(_native).items():
        if name.startswith("_"):
            continue
        assert f"class {name}" in stubs or f"def {name}" in stubs or f"{name}:" in stubs, name
        if inspect.isclass(item) or inspect.isroutine(item):
            assert inspect.getdoc(item), name
        if inspect.isclass(item):
            body = stubs[stubs.index(f"class {name}") :].split("\nclass ")[0]
            for member in vars(item):
                if not member.startswith("_"):
                    assert f"def {member}(" in body or f"    {member}:" in body, f"{name}.{member}"


def test_lists_of_names_are_valid():
    assert "nested-priority" in polydraft.VERIFIERS and "priority" in polydraft.RULES
    assert "iid" in polydraft.DRAFTINGS and "paths:2,3" in polydraft.TREES
    assert polydraft.__version__.count(".") == 2
    for verifier in polydraft.VERIFIERS:
        assert polydraft.Verifier(verifier).name == verifier
    assert {"3,2,1", "binary", "3-ary", "sequoia:16"} < set(polydraft.TREES)
    for tree in polydraft.TREES:
        acceptance = [0.6, 0.2] if "sequoia" in tree else None
        assert polydraft.Tree(tree, acceptance=acceptance).nodes > 0


def modules(package):
    """Maps the names of a package's modules, including the native one, to their files; a package maps to its `__init__`."""
    found = {}
    for file in sorted([*package.rglob("*.py"), *package.rglob("*.pyi")]):
        parts = [package.name, *file.relative_to(package).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imported(name, file, known):
    """Returns the modules of `known` that a file imports, also in functions, but not for types only."""
    home = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    found, left = set(), [ast.parse(file.read_text())]
    while left:
        node = left.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            left += node.orelse
            continue
        left += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = home[: len(home) + 1 - node.level] if node.level else []
            origin = ".".join([*above, *(node.module or "").split(".")]).strip(".")
            # A module of the package, or a name in the package.
            found |= {own if (own := f"{origin}.{alias.name}") in known else origin for alias in node.names}
    return (found & set(known)) - {name}


def import_cycles(package):
    """Returns the groups of modules that import each other."""
    known = modules(package)
    uses = {name: imported(name, file, known) for name, file in known.items()}
    reached = {}
    for name in uses:
        seen, left = set(), list(uses[name])
        while left:
            if (module := left.pop()) not in seen:
                seen.add(module)
                left += uses[module]
        reached[name] = seen
    return sorted({tuple(sorted(n for n in reached[m] if m in reached[n])) for m in reached if m in reached[m]})


def test_no_import_cycles():
    package = pathlib.Path(polydraft.__file__).parent
    assert {"polydraft", "polydraft.gpu.kernels.launch"} <= set(modules(package))
    assert import_cycles(package) == []


def test_import_cycles_are_detected(tmp_path):
    package = tmp_path / "one"
    (package / "deep").mkdir(parents=True)
    files = {
        "__init__": "from .a import x", "a": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b import y",
        "b": "from .a import x\nimport json", "deep/__init__": "", "deep/c": "from ..b import y",
    }  # fmt: skip
    for name, text in files.items():
        (package / f"{name}.py").write_text(text + "\n")
    assert import_cycles(package) == []
    for planted in ("from .deep import c", "import one.deep.c", "from one.deep.c import z"):
        (package / "a.py").write_text(f"def late():\n    {planted}\n")
        assert import_cycles(package) == [("one.a", "one.b", "one.deep.c")]
    (package / "a.py").write_text("from . import z\n")
    assert import_cycles(package) == [("one", "one.a")]


def test_rng_shows_its_seed_and_position():
    rng = polydraft.Rng(7)
    assert repr(rng) == "Rng(7)"
    rng.coin(0.5)
    assert repr(rng).startswith("<Rng(7) after ") and repr(rng).endswith(" words>")
    assert repr(polydraft.Rng.every()) == "Rng.every()"


@pytest.mark.parametrize("extra", ["transformers", "gpu"])
def test_missing_packages_are_named_with_their_extra(extra):
    code = f"import sys; sys.modules['torch'] = None; import polydraft.{extra}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 1
    assert f"ImportError: polydraft.{extra} needs torch" in run.stderr
    assert f"pip install 'polydraft[{extra}]'" in run.stderr


def test_pairs_of_numpy_arrays_need_no_torch():
    code = """if True:
        import sys; sys.modules['torch'] = None
        import numpy as np, polydraft
        tokens, logits = np.array([[[0, 1]]]), np.zeros((1, 1, 2, 3), dtype=np.float16)
        print(polydraft.verify((tokens, logits), np.zeros((1, 3, 3), dtype=np.float16), 1).tokens.shape)
    """
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "(1, 3)\n", run.stderr
