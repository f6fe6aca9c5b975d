"""What a folder holds, for tests that compare it before and after."""

from pathlib import Path


def content(folder: Path) -> dict[str, bytes]:
    """Every file but locks, by name."""
    paths = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    return {str(name): path.read_bytes() for name, path in paths.items() if path.name != "lock"}
