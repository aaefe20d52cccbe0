"""The wheel, built and installed into an environment that has only our dependencies, not our source tree."""

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
CHECK = """
import autodropout as ad, pathlib, sys
home = pathlib.Path(ad.__file__).parent
assert home.is_relative_to(sys.prefix), home
assert (home / "py.typed").exists()
policy = ad.ConvSpace(groups=((8, 8),)).sample(seed=0)
policy.save("policy.json")
assert ad.load("policy.json") == policy
"""


def test_the_wheel_installs_and_imports(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=200)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert all(name.startswith(("autodropout/", "autodropout-")) for name in names), "nothing but the package"
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    site = next((tmp_path / "env" / "lib").glob("python*/site-packages"))
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, timeout=200)
    # The dependencies come from here; a path in a .pth file brings no .pth files of its own, so no editable install.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    subprocess.run([python, "-I", "-c", CHECK], check=True, timeout=200, cwd=tmp_path)
