"""`holdfast doctor`: is this machine fit to run a server, and what to change if not.

| file | purpose |
|---|---|
| run.py | the command: all checks, a table, the verdict |
| finding.py | what a check finds |
| disk.py | the data directory: room, kind of file system, whether and how fast it syncs |
| system.py | limits, memory, clock, ports |
| software.py | what is installed: extras, Java; whether the settings hold |
"""
