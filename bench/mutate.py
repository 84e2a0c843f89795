"""Break the scheduler's core in many small ways and see whether the tests notice.

    python bench/mutate.py [--json] [--count 120] [--seed 1] [--module placing …]

Each mutant changes one place of one core module (a comparison, a boolean, an arithmetic operator, a
number, a `not`, a statement left out), in a copy of the package. The unit and property tests of the
core run against the copy; a mutant that they pass has survived and is listed. Mutants that cannot
change a decision (text of messages, traces) are not made.
"""

import argparse
import ast
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "scheduler" / "ispine" / "scheduler"
MODULES = (
    "admission",
    "core",
    "device",
    "ending",
    "estimate",
    "learning",
    "ledger",
    "order",
    "placement",
    "placing",
    "quota",
    "replies",
    "rescue",
)
TESTS = (
    "tests/unit/test_scheduler_parts.py",
    "tests/unit/test_scheduler_core.py",
    "tests/property/test_scheduler_machine.py",
)
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
}
SILENT = {"note", "append_log"}
"""Calls whose absence changes what people read, not what is decided."""


def sites(tree: ast.Module) -> list[ast.AST]:
    """Every place that can be changed."""
    found: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
            found.append(node)
        elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            if not isinstance(node.left, ast.JoinedStr) and not isinstance(node.left, ast.Constant):
                found.append(node)
        elif isinstance(node, ast.BoolOp) or (
            isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        ):
            found.append(node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            name = getattr(node.value.func, "attr", getattr(node.value.func, "id", ""))
            if name not in SILENT:
                found.append(node)
    return found


def change(node: ast.AST) -> str:
    """Change one node in place; returns what was done."""
    if isinstance(node, ast.Compare):
        old = type(node.ops[0])
        node.ops[0] = COMPARISONS[old]()
        return f"{old.__name__} -> {COMPARISONS[old].__name__}"
    if isinstance(node, ast.BinOp):
        kind = type(node.op)
        node.op = OPERATORS[kind]()
        return f"{kind.__name__} -> {OPERATORS[kind].__name__}"
    if isinstance(node, ast.BoolOp):
        was_and = isinstance(node.op, ast.And)
        node.op = ast.Or() if was_and else ast.And()
        return "and -> or" if was_and else "or -> and"
    if isinstance(node, ast.UnaryOp):
        node.op = ast.UAdd()
        return "not -> (nothing)"
    assert isinstance(node, ast.Expr)
    text = ast.unparse(node)
    node.value = ast.Constant(None)
    return f"left out: {text}"


def run_tests(folder: Path) -> bool:
    """Whether the tests pass against the copy in `folder`."""
    environment = dict(os.environ, PYTHONPATH=str(folder), HYPOTHESIS_STORAGE_DIRECTORY=str(folder))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout=40"]
        + [str(ROOT / test) for test in TESTS],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        timeout=120,
        check=False,
    )
    return done.returncode == 0


def main() -> None:
    """Make mutants, run the tests on each, report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--module", nargs="*", default=list(MODULES))
    args = parser.parse_args()
    rng = random.Random(args.seed)
    trees = {name: ast.parse((PACKAGE / f"{name}.py").read_text()) for name in args.module}
    places = [(name, index) for name, tree in trees.items() for index in range(len(sites(tree)))]
    rng.shuffle(places)
    survivors: list[str] = []
    tried = 0
    with tempfile.TemporaryDirectory() as scratch:
        portion = Path(scratch) / "ispine"
        for component in ("scheduler", "protocol"):
            shutil.copytree(ROOT / component / "ispine" / component, portion / component)
        if not run_tests(Path(scratch)):
            sys.exit("expected the tests to pass without a mutant; they fail")
        for name, index in places[: args.count]:
            tree = copy.deepcopy(trees[name])
            node = sites(tree)[index]
            line = getattr(node, "lineno", 0)
            what = change(node)
            target = portion / "scheduler" / f"{name}.py"
            original = target.read_text()
            target.write_text(ast.unparse(ast.fix_missing_locations(tree)))
            try:
                survived = run_tests(Path(scratch))
            except subprocess.TimeoutExpired:
                survived = False
            target.write_text(original)
            tried += 1
            if survived:
                survivors.append(f"{name}.py:{line} {what}")
                if not args.json:
                    print(f"survived {survivors[-1]}", flush=True)
    found = {"mutants": tried, "killed": tried - len(survivors), "survivors": survivors}
    print(json.dumps(found) if args.json else f"{found['killed']} of {tried} mutants were noticed")


if __name__ == "__main__":
    main()
