"""The pages: their links lead somewhere, and their Python is Python."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as they are shown on the web, and those it sets itself."""
    text = page.read_text()
    heads = (re.sub(r"[^\w\- ]", "", head.strip().lower()) for head in re.findall(r"^#+ (.*)$", text, re.M))
    return {head.replace(" ", "-") for head in heads} | set(re.findall(r'id="([^"]+)"', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_is_python(page: Path) -> None:
    """And takes from the package only what is there."""
    import autodropout as ad

    for code in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ad":
                assert hasattr(ad, node.attr), f"ad.{node.attr}"
