"""Decoders of payloads: what `decode: kind` does to a DataFrame.

`otlp.logs`, `otlp.traces` and `otlp.metrics` are built in and open requests that were kept as they came
(`holdfast.spark.otlp`); they need the extra `otlp`. Programs register their own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

from holdfast.errors import BadRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Decoder: TypeAlias = "Callable[[DataFrame], DataFrame]"

SIGNALS = ("logs", "traces", "metrics")


def register_decoder(kind: str, decoder: Decoder) -> None:
    """Make `decode: kind` known; a later one takes the place of an earlier one."""
    DECODERS[kind] = decoder


def _otlp(signal: str, frame: DataFrame) -> DataFrame:
    try:
        decode = import_module("holdfast.spark.otlp").decode
    except ModuleNotFoundError as error:
        raise BadRequest(f'decode: {error.name} is not installed; run: pip install "holdfast[otlp]"') from error
    decoded: DataFrame = decode(frame, signal)
    return decoded


DECODERS: dict[str, Decoder] = {f"otlp.{signal}": partial(_otlp, signal) for signal in SIGNALS}
"""By kind."""
