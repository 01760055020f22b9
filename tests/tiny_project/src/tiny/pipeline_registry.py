from kedro.pipeline import Node, Pipeline

from tiny import nodes


def arm(name: str) -> list[Node]:
    path = f"attention.{name}"
    inputs = ["attention.examples", f"{path}.resume_from", "params:attention.training", f"params:{path}.offset", "params:resume"]
    return [
        Node(nodes.probe, "attention.examples", f"{path}.probe_table", name="tabulate", namespace=f"{path}.probe"),
        Node(nodes.train_arm, inputs, [f"{path}.metric_rows", f"{path}.checkpoint"], name="train", namespace=path),
        Node(
            nodes.predict,
            ["attention.examples", f"{path}.checkpoint"],
            f"{path}.predictions",
            name="predict",
            namespace=path,
        ),
    ]


def register_pipelines() -> dict[str, Pipeline]:
    predictions = ["attention.grpo.predictions", "attention.supervised.predictions"]
    shared = [
        Node(nodes.make_examples, None, "attention.examples", name="make_examples", namespace="attention.data"),
        Node(nodes.compare, predictions, "attention.comparison", name="compare", namespace="attention.evaluation"),
        Node(nodes.write_page, "attention.comparison", "attention.report", name="write_page", namespace="attention.report"),
    ]
    everything = Pipeline(shared + arm("grpo") + arm("supervised"))
    return {"__default__": everything, "attention": everything, "attention_data": Pipeline([shared[0]])}
