"""Receivers: what comes in, and when it is answered.

| file | purpose |
|---|---|
| otlp.py | the OTLP receiver: doors and intake |
| otap.py | the OTAP receiver |
| otapstreams.py | its streams: batches in, statuses out |
| settings.py | settings of both |
| grpcdoor.py | a gRPC server, and OTLP over it |
| httpdoor.py | OTLP over HTTP |
| guards.py | who may send: one token for all, or the callers of a server |
| inflating.py | compressed bodies, bounded by what comes out |
| intake.py | from requests to rows in a sink, in groups, on a thread |
"""
