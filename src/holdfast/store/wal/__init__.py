"""The write-ahead log of a store: one for all channels, so that one sync commits what many callers sent.

| file | purpose |
|---|---|
| alike.py | small messages of one layout, joined column by column |
| codec.py | what stands in its records |
| references.py | bytes that the log only refers to: finding them, and telling a torn frame from a damaged one |
| log.py | writing: schema notes before first use, floors at the start of each file, rotation |
"""
