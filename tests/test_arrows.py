"""Who may import whom, read off the source: the design's arrows. And what importing the package must not do."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import autodropout

ROOT = Path(autodropout.__file__).parent
ARROWS = {  # each package, and those it may import
    "spaces": {"policies"},  # `load` finds bundled policies there
    "policies": set(),
    "patterns": {"spaces"},
    "layers": {"spaces", "patterns"},
    "attach": {"spaces", "patterns", "layers"},
    "report": {"spaces", "patterns", "policies", "search"},
    "search": {"spaces"},
    "tables": {"spaces", "search"},
    "controller": {"spaces", "search"},  # the records that proposers and the search exchange are the search's
    "models": {"spaces", "patterns", "layers"},
    "data": set(),
    "training": {"spaces", "patterns", "layers", "attach", "models", "data"},
    "recipes": {"spaces", "patterns", "layers", "attach", "models", "data", "training", "controller", "search"},
    "cli": {
        "spaces",
        "search",
        "data",
        "controller",
        "layers",
        "training",
        "recipes",
        "report",
        "policies",
        "study",
        "running",
    },
}
WITHOUT_TORCH = ("spaces", "search", "tables", "policies")


def imports(path: Path) -> set[str]:
    """Every module a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return found


def test_every_package_has_its_arrows() -> None:
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == set(ARROWS)


@pytest.mark.parametrize("package", ARROWS)
def test_arrows(package: str) -> None:
    allowed = ARROWS[package] | {package, "lazy"}
    for path in (ROOT / package).rglob("*.py"):
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == "autodropout" and len(parts) > 1:
                assert parts[1] in allowed, f"{path.relative_to(ROOT)} imports {name}"
            if package in WITHOUT_TORCH:
                assert parts[0] != "torch", f"{path.relative_to(ROOT)} imports {name}"


def test_what_studies_share_knows_none_of_them() -> None:
    """`studies.search` is of text no more than of images; benchmarks are scripts, and reach no package beside them."""
    root = Path(__file__).parents[1]
    shared = {path.stem: imports(path) for path in (root / "studies").glob("*.py")}
    for name in ("pieces", "in_turn", "candidates", "proxy", "search", "finalists", "honest", "comparing"):
        assert not [of for of in shared[name] if of.startswith(("studies.ptb", "studies.cifar"))], name
    for path in (*(root / "benchmarks").glob("*.py"), *ROOT.rglob("*.py")):
        assert not [of for of in imports(path) if of.split(".")[0] == "studies"], path


def test_importing_leaves_optional_packages_and_the_generator_alone() -> None:
    code = (
        "import sys, torch; before = torch.get_rng_state(); import autodropout; from autodropout import recipes\n"
        "[getattr(autodropout, name) for name in autodropout.__all__], recipes.get('digits')\n"
        "assert torch.equal(before, torch.get_rng_state())\n"
        "optional = {'lightning', 'matplotlib', 'ray', 'sklearn', 'timm', 'torchvision', 'transformers'}\n"
        "assert not optional & set(sys.modules), optional & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
