"""Whether an event may be committed.

| file | purpose |
|---|---|
| judging.py | what a validator is; the one that takes everything |
| tree.py | tree mode: actions on the documents of partitions |
| actions.py | what the actions do (pure) |
| shapes.py | what their payloads hold (pure) |
| model.py | model mode: JSON Schemas by type and version |
"""

from holdfast.sync.validation.judging import AnyEvent, Validator
from holdfast.sync.validation.model import ModelValidator, read_schemas
from holdfast.sync.validation.tree import Kept, Key, TreeValidator

__all__ = ["AnyEvent", "Kept", "Key", "ModelValidator", "TreeValidator", "Validator", "read_schemas"]
