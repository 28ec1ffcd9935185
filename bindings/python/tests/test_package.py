"""Examples run, types are there, and no panic crosses."""

import doctest
import inspect
import pathlib

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
def test_examples(example):
    report = []
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    runner.run(example, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)


def test_everything_has_a_docstring_and_a_type():
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


def test_names():
    assert "nested-priority" in polydraft.VERIFIERS and "priority" in polydraft.RULES
    assert "iid" in polydraft.DRAFTINGS and "paths:2,3" in polydraft.TREES
    assert polydraft.__version__.count(".") == 2
    for verifier in polydraft.VERIFIERS:
        assert polydraft.Verifier(verifier).name == verifier
    for tree in polydraft.TREES:
        polydraft.Tree(tree)
