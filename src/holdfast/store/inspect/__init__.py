"""What is in a file of a store, for people and programs: log, segment, catalog, or the whole directory.

Promise: nothing is written and no lock is taken. A damaged file is described as far as it can be read, and the damage
is part of the answer. A store that another process is using may be looked at; the answer is then a recent picture.
Answers are plain values made of what JSON knows.

Not for the process that has the store open: closing a descriptor of `catalog.db` would drop SQLite's locks on it.

| file | purpose |
|---|---|
| path.py | any path: what it is, and what is in it |
| directory.py | a store: its files, channels, and who has it open |
| logs.py | a file of the write-ahead log, record by record |
| catalogs.py | the catalog, from a copy: SQLite writes even when it reads |
| copies.py | files as copies in memory, and damage as a value |
| events.py | the events of a store, from copies of its log and catalog |
"""

from holdfast.store.inspect.path import inspect_path

__all__ = ["inspect_path"]
