"""The words every part shares, as types without I/O.

| file | purpose |
|---|---|
| names.py | which channel names are allowed |
| positions.py | seq, committed_id, fsn, segment_seq, log position as types |
| intervals.py | a set of integers kept as ranges: confirmed seqs, seen fsns |
| frame.py | what a producer hands over and what it gets back |
| schema.py | the rules for schemas and batches, as the store asks them |
| columns.py | which columns may be stored |
| evolution.py | how a channel's schema grows |
| backoff.py | how long to wait before the next attempt |
| jsonvalues.py | values of columns as JSON can say them |
| times.py | texts that are times |
"""
