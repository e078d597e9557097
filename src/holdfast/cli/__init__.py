"""The command `holdfast`.

Promise: every command takes `--json` and then prints exactly one JSON document. Exit codes are fixed: 0 done, 1 the
answer is no, 2 bad usage or configuration, 3 refused to start, 4 input/output failure. An error is one line that says
what to do next.

| file | purpose |
|---|---|
| main.py | the commands and their options |
| answer.py | exit codes, the error line, the JSON envelope |
| display.py | the console, and numbers, sizes and damage for people |
| inspect.py | `holdfast inspect`: tables of what is in a file |
| verify.py | `holdfast verify`: findings and the verdict |
| demo/ | `holdfast demo`: a writer is killed in the middle, and the proof that nothing is lost |
"""
