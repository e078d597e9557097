"""The command `holdfast`.

Promise: every command takes `--json` and then prints exactly one JSON document. Exit codes are fixed: 0 done, 1 the
answer is no, 2 bad usage or configuration, 3 refused to start, 4 input/output failure. An error is one line that says
what to do next.

| file | purpose |
|---|---|
| main.py | the commands and their options |
| examples.py | an example or more of every command |
| progress.py | how far long work is: bars on a terminal |
| completion.py | `holdfast completion`: the script for a shell |
| bench.py | `holdfast bench`: the benchmarks of the source |
| groups.py | the commands of channels, subscribers, segments and token, and their options |
| producing.py | the commands `send`, `tail` and `slots`, and their options |
| send.py | `holdfast send`: a file or lines to a channel |
| query.py | `holdfast query`: SQL over channels |
| top.py | `holdfast top`: a running server in the terminal, live |
| doctor/ | `holdfast doctor`: is this machine fit to run a server |
| tail.py | `holdfast tail`: events of a channel as they come |
| slots.py | `holdfast slots`: what senders' slots hold; sending it |
| slotexport.py | `holdfast slots export`: what a slot has to send, as Arrow files |
| answer.py | exit codes, the error line, the JSON envelope |
| serverat.py | the server of `--addr`, and the credential for it |
| extras.py | modules that need an extra of the package; settings from a file |
| display.py | the console, and numbers, sizes and damage for people |
| serve.py | `holdfast serve`: the server as a process, its signals, how it ends |
| inspect.py | `holdfast inspect`: tables of what is in a file |
| verify.py | `holdfast verify`: findings and the verdict |
| reloading.py | SIGHUP: the settings are read again beside the loop, and taken as a whole or not at all |
| repair.py | `holdfast repair`: what is wrong, what would be done, what is lost |
| restore.py | `holdfast restore`: a store out of its object store; `verify --remote` |
| channels.py | `holdfast channels`: what each holds, its limits; remove one |
| subscribers.py | `holdfast subscribers`: how far each is, what it is owed and lost; remove one |
| segments.py | `holdfast segments`: which there are, and who still needs them |
| token.py | `holdfast token`: make, list and revoke tokens; hash a password |
| jobsgroup.py | the commands `compact`, `export`, `replay` and `stats`, and their options |
| jobs.py | what those do, and their progress |
| pipelinegroup.py | the commands of `pipeline`, and their options |
| pipeline.py | `holdfast pipeline`: run, validate, draw; how outputs are doing |
| nodegraph.py | `holdfast pipeline` for node graphs: run, validate, draw |
| cores.py | a node graph on several cores: the supervisor's process, and the order to each core |
| sparkprocess.py | the process of a Spark node of a graph |
| picture.py | a store as it is now, from copies of its files |
| demo/ | `holdfast demo`: a writer is killed in the middle, and the proof that nothing is lost |
"""
