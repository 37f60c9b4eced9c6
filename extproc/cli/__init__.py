"""The command line. Each command imports what it needs when it runs, so that `--help` is there at once."""

import click

from extproc.cli.checking import check
from extproc.cli.common import Commands
from extproc.cli.correlating import correlate
from extproc.cli.draining import drain
from extproc.cli.offline import count, replay, simulate
from extproc.cli.planning import plan
from extproc.cli.rendering import render
from extproc.cli.reporting import agent
from extproc.cli.running import demo, emulate, serve


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="extproc")
def main() -> None:
    """LLM-aware load balancing for Envoy.

    \b
    See it work, all on this machine:        extproc demo
    Beside Envoy:                            extproc serve --config extproc.yaml
    Beside an inference engine:              extproc agent --router 10.0.0.1:9004 --node-id gpu-1 \\
                                               --engine http://127.0.0.1:8000 --host 10.0.0.2:8000
    What is wrong with a configuration:      extproc check extproc.yaml
    Envoy's own configuration:               extproc render bootstrap --node 10.0.0.2:8000
    What an agent would report:              extproc agent … --print
    Before an engine is stopped:             extproc drain --wait 60
    Strategies side by side, simulated:      extproc simulate --trace generated:heavy --load 0.6,0.75
    How many nodes a trace needs:            extproc plan --trace azure.csv --ttft 2s --share 0.95
    What another policy would have chosen:   extproc replay extproc.journal --strategy round-robin
    Which signals tell anything, on a fleet: extproc correlate extproc.journal
    An engine that needs no GPU:             extproc emulate --listen 127.0.0.1:8000
    """


for _command in (serve, check, count, agent, drain, demo, emulate, simulate, plan, replay, correlate, render):
    main.add_command(_command)
