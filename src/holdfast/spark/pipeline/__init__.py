"""Pipelines: channels in, steps, outputs out, from YAML or from a program, run by Spark.

    file ──► reading ──► checking ──► building ──► running ──► board ──► people, metrics
             keys        names,       Spark's      start, watch,
                         cycles       analyser     restart, stop

Everything up to `checking` knows nothing of Spark. The page docs/reference/pipelines.md has the keys.

| file | purpose |
|---|---|
| pipeline.py | the face for programs: `Pipeline` and its builder |
| model.py | a pipeline as values |
| fields.py | taking a mapping apart, with the place of each problem |
| reading.py | from YAML to values |
| checking.py | whether the parts fit together |
| decoders.py | what `decode` knows: OTLP, and what programs register |
| picture.py | a pipeline drawn with text |
| building.py | from values to DataFrames that Spark has analysed |
| shipping.py | the user's Python files on executors |
| outputs.py | the query of one output |
| restarting.py | pauses between tries, and when to give up |
| running.py | queries started, watched, started again, stopped |
| board.py | how each output is doing |
| listening.py | Spark's progress reports for the board |
| metrics.py | the board for Prometheus |
"""

from holdfast.spark.pipeline.board import OutputStatus
from holdfast.spark.pipeline.decoders import register_decoder
from holdfast.spark.pipeline.pipeline import Builder, Pipeline

__all__ = ["Builder", "OutputStatus", "Pipeline", "register_decoder"]
