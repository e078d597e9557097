"""An example or more of every command, for its help and for the reference page.

Promise: every command that can be called has an entry, and every entry is a command; a test compares.
"""

from __future__ import annotations

from typing import Any

EXAMPLES: dict[str, tuple[str, ...]] = {
    "demo": ("holdfast demo", "holdfast demo --seconds 60 --keep"),
    "serve": ("holdfast serve --data /var/lib/holdfast", "holdfast serve -c holdfast.yaml"),
    "send": (
        "holdfast send trades trades.ndjson",
        "echo '{\"price\": 1.5}' | holdfast send trades",
        'holdfast send trades day.parquet --conf "ws::addr=10.0.0.5:9000;"',
    ),
    "tail": (
        "holdfast tail trades",
        "holdfast tail trades --from first --limit 10",
        "holdfast tail trades --durable audit >> audit.ndjson",
    ),
    "top": ("holdfast top", "holdfast top --addr http://10.0.0.5:9001 --token-file token"),
    "query": (
        "holdfast query 'select symbol, sum(qty) from trades group by symbol'",
        "holdfast query 'select * from \"logs.web\"' -o web.parquet",
    ),
    "doctor": ("holdfast doctor --data /var/lib/holdfast", "holdfast doctor -c holdfast.yaml"),
    "bench": ("holdfast bench --quick commit ingest",),
    "inspect": ("holdfast inspect data", "holdfast inspect data/wal/wal-00000001.log --limit 0"),
    "verify": ("holdfast verify data", "holdfast verify data --remote s3://bucket"),
    "repair": ("holdfast repair data", "holdfast repair data --apply"),
    "restore": (
        "holdfast restore --tier s3://bucket --data data",
        "holdfast restore -c holdfast.yaml --data copy --at 2026-01-31T12:00:00Z",
    ),
    "compact": ("holdfast compact trades --addr http://127.0.0.1:9001", "holdfast compact trades --data data"),
    "export": (
        "holdfast export trades lake --addr http://127.0.0.1:9001",
        "holdfast export 'logs.*' lake --data data --from 2026-01-01T00:00:00Z",
    ),
    "replay": ("holdfast replay trades --data data --to-addr http://10.0.0.5:9001 --to-channel trades",),
    "stats": ("holdfast stats --data data", "holdfast stats 'logs.*' --addr http://127.0.0.1:9001"),
    "channels ls": ("holdfast channels ls --data data",),
    "channels show": ("holdfast channels show trades", "holdfast channels show -c holdfast.yaml"),
    "channels rm": ("holdfast channels rm trades --data data --yes",),
    "subscribers ls": ("holdfast subscribers ls --data data",),
    "subscribers show": ("holdfast subscribers show billing",),
    "subscribers rm": ("holdfast subscribers rm billing --data data",),
    "subscribers reset": (
        "holdfast subscribers reset billing --to first",
        "holdfast subscribers reset billing --to seq:17",
    ),
    "segments ls": ("holdfast segments ls", "holdfast segments ls trades --json"),
    "segments show": ("holdfast segments show 17",),
    "slots ls": ("holdfast slots ls /var/lib/app",),
    "slots show": ("holdfast slots show /var/lib/app/app-1",),
    "slots drain": ('holdfast slots drain /var/lib/app --conf "ws::addr=10.0.0.5:9000;"',),
    "slots export": ("holdfast slots export /var/lib/app/app-1 rescued",),
    "token create": ("holdfast token create sensor-1 --expires 90d --data data",),
    "token ls": ("holdfast token ls --data data",),
    "token revoke": ("holdfast token revoke sensor-1 --data data",),
    "token hash-password": ("holdfast token hash-password",),
    "pipeline run": ("holdfast pipeline run trades.yaml", "holdfast pipeline run collector.yaml --cores 2"),
    "pipeline validate": ("holdfast pipeline validate trades.yaml --plan",),
    "pipeline graph": ("holdfast pipeline graph trades.yaml",),
    "completion": ("holdfast completion bash > ~/.local/share/bash-completion/completions/holdfast",),
}

EXIT_CODES = (
    "Exit codes of all commands: 0 done; 1 the answer is no; 2 bad usage or configuration; 3 refused to start; "
    "4 input/output failure."
)


def attach(app: Any, prefix: str = "") -> None:
    """Put the examples under the help of every command of a Typer application."""
    for info in app.registered_commands:
        name = prefix + (info.name or info.callback.__name__)
        info.epilog = "\n\n".join(["Examples:", *(f"  {line}" for line in EXAMPLES.get(name, ()))])
    for group in app.registered_groups:
        attach(group.typer_instance, f"{prefix}{group.name} ")
