"""Tables that Spark writes through us: each micro-batch is in them once, as a whole, whatever is killed.

    tasks       rows ──► files: Parquet, synced, under names nobody has used before
    driver      commit: the files of all tasks become part of the table at one moment, with (identity, batch)

Until the commit no reader of the table sees the files. A batch that comes again is known by its number and changes
nothing. docs/design/durability.md has the steps and what a crash leaves after each.

| file | purpose |
|---|---|
| commits.py | what a commit is, and the rule that makes a repeat harmless |
| files.py | rows as Parquet files |
| manifest.py | a folder of Parquet files with a manifest, and its readers |
| delta.py | a Delta table |
| iceberg.py | an Iceberg table in a folder |
| folder_catalog.py | the catalog of that folder |
| opening.py | the table that the options name |
| writers.py | what Spark calls |
"""

from holdfast.spark.tables.manifest import TableFiles, read_manifest

__all__ = ["TableFiles", "read_manifest"]
