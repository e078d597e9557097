"""Dataflow: a graph of receivers, persistence and exporters, from one YAML file.

    OTLP ──► receiver ──► intake ──► persistence (a store) ──┬──► subscriber ──► exporter: OTLP
             answered after the commit                       ├──► subscriber ──► exporter: Parquet
                                                             ├──► subscriber ──► exporter: console
                                                             └──► subscribers ─► Spark: a pipeline

Promise: a request is answered as accepted only after its data is committed, or, without persistence, taken by the
destinations. Each exporter is a subscriber of its own: a slow one holds no other up, each has its own progress across
restarts, what may pass is tried again without end, what never will goes to the dead-letter channel with the reason.

| file | purpose |
|---|---|
| graph.py | the graph of a file: recognise, load, all problems |
| nodes.py | one node, read and checked |
| plugins.py | which kinds of nodes there are, and where their code is |
| settings.py | settings of nodes |
| reading.py | from the values of a file to nodes |
| joints.py | how nodes may be joined |
| picture.py | a graph drawn for people |
| sinks.py | where the rows of a receiver go |
| persistence.py | the persistence node |
| running.py | a graph that runs, from its first file to its last answer |
| places.py | which of several processes this one is, its stores, and the ports they share |
| cores.py | one graph in several processes: the supervisor that keeps them alive |
| coresadmin.py | metrics and health of all of them |
| sparknode.py | the Spark node: a pipeline that reads the stores, in a process of its own |
| serving.py | the OTLP receiver at the doors of a running server |
| admin.py | metrics and health of a running graph, and the HTTP of its store |
| pages.py | the reference pages, printed from what they describe |
| metrics.py | what a running graph counts |
| receivers/ | what comes in |
| exporters/ | what goes out |
"""
