"""Everything Holdfast knows about disks, and nothing about what is kept on them.

Promise: a caller of this package names a file, bytes and a moment ("synced"), and gets either that or an exception.
Every format above it is made of the records below, every log is the one append log, and every byte passes through one
seam that tests can cut the power of.

| file | purpose |
|---|---|
| filesystem.py | the seam: what we call on a disk and what each call promises after a power cut |
| local.py | the real disk of Linux, macOS and Windows: files, locks, SQLite; the only caller of fsync and rename |
| stamp.py | a checksum over a whole SQLite file, while nobody has it open |
| sqlitelog.py | what SQLite's own log beside a database must say: a tear at its end, or damage |
| checksum.py | CRC32C, the one checksum |
| records.py | one checksummed record: length, checksum, kind, file identity, position |
| appendlog.py | the one log: rotated, pre-allocated files of records, with scan, recovery and trim |
| smallfiles.py | small files, read and replaced as a whole |
| openfiles.py | open read-only files, kept for reuse up to a soft limit |
"""
