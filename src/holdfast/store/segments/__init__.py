"""Segments: immutable files of consecutive events of one channel, which any Arrow reader can open and map.

| file | purpose |
|---|---|
| metadata.py | what a segment says of itself: whose, which events, when |
| runs.py | which frame brought which rows; system columns are computed from it |
| combine.py | many small batches into few, all dictionaries of a column into one |
| footer.py | finding our entries in an Arrow footer without trusting its bytes |
| writer.py | batches to a published file |
| growing.py | a file that is filled while its events are committed |
| reader.py | a file back to batches, and the proof that it is undamaged |
| partial.py | the same of a part of a file that lies elsewhere |

A segment is a plain Arrow IPC file of format 1. Everything of ours is in the custom metadata of its footer:

    "ARROW1\\0\\0"
    schema message               the channel's columns, nothing added
    dictionary batches           one per dictionary: the file format allows no second
    record batch 0 … n-1         8-byte aligned, so that a map of the file is the arrays; or lz4, zstd
    end of stream
    footer (flatbuffer)          schema, positions of the batches, custom metadata:
        holdfast.format          "1"
        holdfast.<field>         one text per field of SegmentMeta; absent when None
        holdfast.compression     "none", "lz4" or "zstd"
        holdfast.batch_rows      rows of each batch, in decimal, separated by commas
        holdfast.runs            run table (runs.py)
        holdfast.blocks          per batch 16 hex digits end offset + 8 hex digits CRC32C of the file up to there;
                                 then 8 hex digits CRC32C of the digits before: tells where damage is
        holdfast.filled_as       the number by which the log refers to it, if commits wrote into the file
        holdfast.crc32c          8 hex digits, CRC32C of the whole file with these 8 digits as "00000000"
    footer length, int32         little-endian
    "ARROW1"

So a file proves itself without the catalog, and the catalog proves that it is *this* file (CRC32C of all its bytes).
Publishing: `<name>.tmp` -> write -> sync -> rename -> sync the directory; a name ending in `.arrow` is complete.
"""
