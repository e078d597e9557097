"""QWP1, the message of QuestDB clients, to and from Arrow batches.

    0   4  magic "QWP1"
    4   1  version, 1
    5   1  flags: 0x01 defer commit, 0x04 Gorilla timestamps, 0x08 delta dictionary
    6   2  tables
    8   4  bytes that follow; exactly the rest of the message
    12     [delta dictionary] table block*

    delta dictionary   varint start | varint count | count × (varint bytes, UTF-8)
    table block        varint name bytes | name | varint rows | varint columns | per column: varint name bytes, name,
                       u8 type | then per column: u8 null flag, [bitmap, 1 = null], values

Little-endian; a varint is an unsigned LEB128. A table is a channel of the same name. How each type becomes an Arrow
type stands in `docs/reference/wire.md`.

| file | purpose |
|---|---|
| decode.py | a message to entries |
| encode.py | entries to a message |
| values.py | an Arrow array to the values of a column |
| reader.py | a message's bytes: every read checked, every array counted |
| slots.py | which rows of a column have a value |
| columns.py | the values of each type to an Arrow array |
| arrays.py | n-dimensional arrays to nested lists |
| gorilla.py | timestamps as differences of differences |
| symbols.py | the symbol dictionary of a connection |
| types.py | type codes, flags, sentinels |
"""

from holdfast.wire.qwp.decode import QwpMessage, decode
from holdfast.wire.qwp.encode import catch_up, encode
from holdfast.wire.qwp.symbols import SymbolDictionary

__all__ = ["QwpMessage", "SymbolDictionary", "catch_up", "decode", "encode"]
