"""The write-ahead log of a store: one for all channels, so that one sync commits what many callers sent.

| file | purpose |
|---|---|
| codec.py | what stands in its records |
| log.py | writing: schema notes before first use, floors at the start of each file, rotation |
"""
