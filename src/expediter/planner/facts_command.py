"""What `expediter plan facts` shows: everything that is built in, and who says so."""

from rich.console import Console

from expediter.planner.command import TABLE_WIDTH
from expediter.planner.links import LINKS
from expediter.planner.units import big, size, speed
from expediter.results.cells import empty
from expediter.simulation.models import model_names, named_model
from expediter.simulation.roofline import GPUS


def run_facts() -> None:
    """A table each of GPUs, links and models."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = TABLE_WIDTH
    gpus = empty("GPUs", words=("name", "source"), figures=("memory", "a second", "TFLOP/s"))
    for gpu in GPUS.values():
        figures = (size(gpu.memory_bytes), speed(gpu.memory_bandwidth), f"{gpu.flops / 1e12:,.0f}")
        gpus.add_row(gpu.name, gpu.source, *figures)
    links = empty("Links, one way", words=("name", "source"), figures=("a second",))
    for link in LINKS.values():
        links.add_row(link.name, link.source, speed(link.bytes_per_second))
    models = empty(
        "Models",
        words=("name", "source"),
        figures=("parameters", "layers", "heads", "KV heads", "KV a token"),
    )
    for name in model_names():
        facts = named_model(name)
        spec = facts.spec
        shape = (str(spec.num_layers), str(facts.num_heads), str(spec.num_kv_heads))
        count = f"{big(facts.num_params / 1e6)} M"
        models.add_row(name, facts.source, count, *shape, size(spec.kv_bytes_per_token))
    for table in (gpus, links, models):
        console.print(table)
