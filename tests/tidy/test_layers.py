"""The layers hold: the contracts stand in pyproject.toml."""

import ast
import subprocess
import sys

from tests.tidy.tree import ROOT, modules

_LINT = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"


def test_every_import_contract_is_kept() -> None:
    """In a process of its own: the linter turns the logging of the one it runs in upside down."""
    command = [sys.executable, "-c", _LINT, "--no-cache", "--no-logo"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_package_files_hold_a_docstring_and_nothing_else() -> None:
    """The version lives in the top one; the public packages re-export."""
    spared = {"src/driftq/__init__.py", "src/pyspark_driftq/__init__.py"} | {
        f"src/driftq/{public}/__init__.py" for public in ("testing", "client", "pipeline")
    }
    full = [m.name for m in modules("src") if m.is_package and len(m.tree.body) != 1 and m.name not in spared]
    assert not full, "\n".join(full)


def test_no_class_of_http_inherits_from_the_engine_or_a_feature() -> None:
    """A subclass would let the engine call HTTP in a way that neither a layer contract nor a reader can see."""
    inheriting = []
    for module in modules("src/driftq/http"):
        imported = {
            alias.asname or alias.name: node.module or ""
            for node in ast.walk(module.tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for node in ast.walk(module.tree):
            bases = node.bases if isinstance(node, ast.ClassDef) else []
            names = {name.id for base in bases for name in ast.walk(base) if isinstance(name, ast.Name)}
            inheriting += [
                f"{module.name}: {name}"
                for name in names
                if imported.get(name, "").startswith(("driftq.engine", "driftq.features"))
            ]
    assert not inheriting, "\n".join(inheriting)


def test_no_server_code_lets_arrow_parse_messages() -> None:
    """Arrow's readers trust what a message says about itself; `codec/arrow_columns` checks it and uses none of them."""
    remote = ("cli", "client", "pipeline", "testing")
    server = [m for m in modules("src") if not m.name.startswith(tuple(f"src/driftq/{name}/" for name in remote))]
    names = {"ipc", "read_schema", "read_record_batch", "open_stream", "open_file"}
    using = [
        f"{module.name}:{node.lineno}"
        for module in server
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and node.attr in names
    ]
    assert not using, "\n".join(using)


def test_helpers_that_several_kinds_of_tests_use_are_in_support() -> None:
    """`tests/support` imports only itself; nothing imports from the acceptance tests except they themselves."""
    wrong = [
        f"{module.name}: {name}"
        for module in (*modules("tests"), *modules("bench"))
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and (name := node.module or "").startswith("tests.")
        if (name.startswith("tests.acceptance") and not module.name.startswith("tests/acceptance/"))
        or (module.name.startswith("tests/support/") and not name.startswith("tests.support"))
    ]
    assert not wrong, "\n".join(wrong)
