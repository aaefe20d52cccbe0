"""Engines by name, as `--engine` and `ad.search(engine=...)` take them. Ray is imported when it is asked for."""

from autodropout.search.jobs import Child, Engine, Judge
from autodropout.search.local import LocalEngine

ENGINES = ("local", "ray")
"""The names: `local` runs children in processes of this machine, `ray` on the nodes of a cluster."""


def check_engine(name: str) -> None:
    if name not in ENGINES:
        raise ValueError(f"{name!r} is not an engine; there are {', '.join(ENGINES)}")


def make_engine(
    name: str,
    child: Child,
    *,
    workers: int | None,
    most: int,
    deadline: float | None,
    judge: Judge | None,
    cpus_per_child: float,
    gpus_per_child: float,
) -> Engine:
    """An engine for `workers` children at a time, but `most` at most: more jobs there will never be.

    `workers=None` is one on `local`, as many as fit into the cluster on `ray`.
    """
    check_engine(name)
    if name == "local":
        if (cpus_per_child, gpus_per_child) != (1, 0):
            raise ValueError(
                "cpus_per_child and gpus_per_child are for the engine 'ray', which shares machines out; "
                f"on 'local' all children share this one, got {cpus_per_child:g} and {gpus_per_child:g}"
            )
        return LocalEngine(child, 1 if workers is None else workers, deadline, judge)
    try:
        from autodropout.search.ray_engine import RayEngine
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ModuleNotFoundError("the engine 'ray' needs Ray: pip install 'autodropout[ray]'", name="ray") from None
    return RayEngine(
        child, workers, deadline, judge, cpus_per_child=cpus_per_child, gpus_per_child=gpus_per_child, most=most
    )
