"""`ispine simulate`: the real scheduler on a measured fleet, beside simpler policies."""

from pathlib import Path
from typing import Annotated

import typer

from ispine.cli.options import AsJson
from ispine.cli.output import guarded, print_json, print_table
from ispine.protocol.errors import ConfigError

DEFAULT_MODEL = "mobilenetv2_w1"


@guarded
def simulate(
    profile: Annotated[
        Path | None, typer.Option(help="Fleet profile; a made-up one without it.")
    ] = None,
    model: Annotated[str, typer.Option(help="Which measured model.")] = "",
    seconds: Annotated[int, typer.Option(min=8, max=3600, help="Simulated, per load.")] = 120,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Runs per load, averaged.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Compare the scheduler with round robin, shortest queue, power of two and plain ECT."""
    from ispine.cli import replay, replay_profile

    fleet = replay_profile.load(profile)
    known = fleet.models()
    chosen = model or (DEFAULT_MODEL if DEFAULT_MODEL in known else known[0])
    if chosen not in known:
        raise ConfigError(f"expected --model out of {', '.join(known)}; got {model!r}")
    table = replay.compare(fleet, chosen, seconds, seeds)
    if as_json:
        print_json({"model": chosen, "seconds": seconds, "seeds": seeds, "policies": table})
        return
    print_table(
        ("policy", "load", "on time", "p50 ms", "p99 ms", "extra work"),
        (
            (
                policy,
                load,
                f"{n['on_time']:.2%}",
                n["p50_ms"],
                n["p99_ms"],
                f"{n['extra_work']:.2%}",
            )
            for policy, loads in table.items()
            for load, n in loads.items()
        ),
        f"{chosen}, deadline {replay.DEADLINE_MS} ms, second-fastest device silent half the time",
    )
