"""Python files of the user on the executors of a cluster. Functions of a pipeline run on the driver, but what they hand
to Spark (UDFs, `mapInArrow`) runs where the data is."""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

from pyspark.sql import SparkSession

from holdfast.errors import BadRequest


def ship(spark: SparkSession, path: Path) -> None:
    """A module, an archive, or a folder with packages and modules."""
    if not path.exists():
        raise BadRequest(f"py_files: {path} does not exist; give modules, archives or folders")
    if path.is_dir():
        path = _zipped(path, Path(tempfile.mkdtemp(prefix="holdfast-py-files-")))
    spark.sparkContext.addPyFile(str(path))


def _zipped(folder: Path, target: Path) -> Path:
    archive_path = target / f"{folder.name or 'files'}.zip"
    with zipfile.ZipFile(archive_path, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*.py")):
            archive.write(path, path.relative_to(folder))
    return archive_path
