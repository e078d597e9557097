"""Receivers: what comes in, and when it is answered.

| file | purpose |
|---|---|
| otlp.py | the OTLP receiver: doors and intake |
| settings.py | its settings |
| grpcdoor.py | OTLP over gRPC |
| httpdoor.py | OTLP over HTTP |
| inflating.py | compressed bodies, bounded by what comes out |
| intake.py | from requests to rows in a sink, in groups, on a thread |
"""
