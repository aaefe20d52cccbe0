"""What tests of several commands begin with."""

from pathlib import Path

import pytest
import tiny_recipe


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A fresh ledger, the recipe `tiny`, and a folder of one's own."""
    tiny_recipe.install(monkeypatch.setattr)
    monkeypatch.chdir(tmp_path)
    return f"sqlite:///{tmp_path / 'study.db'}"
