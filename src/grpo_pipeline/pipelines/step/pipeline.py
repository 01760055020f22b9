"""Wiring of the loop body: collect once per batch, update K times."""

from kedro.pipeline import Node, Pipeline

from grpo_pipeline.pipelines.step import accumulate, collect, update

ALGORITHM, TRAINING = "params:algorithm", "params:training"


def _box(name: str, nodes: list[Node]) -> Pipeline:
    """Draw nodes as one box of the graph; their datasets keep their names."""
    return Pipeline(nodes, namespace=name, prefix_datasets_with_namespace=False)


def create_collect_pipeline() -> Pipeline:
    """Wire task, state, batch and replayed -> experience: encode, replicate, sample, decode, reward, compare."""
    return _sampling() + _judging()


def create_update_pipeline() -> Pipeline:
    """Wire task, state, experience and update_epoch -> next_state and step_metrics."""
    losses = [
        Node(
            update.policy_terms,
            [ALGORITHM, TRAINING, "task", "state", "experience", "update_epoch"],
            ["policy_losses", "diagnostics"],
            name="policy_loss",
        ),
        Node(
            update.supervised_term,
            ["task", "state", "experience", "update_epoch"],
            "supervised_losses",
            name="supervised_loss",
        ),
        Node(
            update.mix_losses,
            [ALGORITHM, "task", "state", "policy_losses", "supervised_losses", "diagnostics"],
            "losses",
            name="hybrid_loss",
        ),
    ]
    apply = Node(
        update.apply_update,
        [ALGORITHM, TRAINING, "task", "state", "losses", "experience", "update_epoch"],
        ["next_state", "step_metrics"],
        name="apply_update",
    )
    return Pipeline([_box("loss", losses), apply], tags="update")


def create_accumulating_pipelines() -> tuple[Pipeline, Pipeline, Pipeline]:
    """Wire an update from micro-batches: cut the experience; losses and gradient of each micro-batch; one step of the optimiser.

    The losses of a micro-batch are computed by the nodes of the update pipeline.
    """
    cut = Node(
        accumulate.cut_experience,
        [ALGORITHM, TRAINING, "task", "experience"],
        "micro_batches",
        name="cut_experience",
    )
    micro_batch = [
        Node(
            accumulate.attach_micro_batch,
            ["task", "state", "micro_batch", "update_epoch"],
            "attached",
            name="attach_micro_batch",
        ),
        Node(
            accumulate.micro_batch_terms,
            [ALGORITHM, TRAINING, "task", "state", "attached", "update_epoch"],
            ["policy_losses", "micro_batch_scores"],
            name="policy_loss",
        ),
        Node(
            update.supervised_term,
            ["task", "state", "attached", "update_epoch"],
            "supervised_losses",
            name="supervised_loss",
        ),
        Node(
            accumulate.mix_micro_batch,
            [ALGORITHM, "task", "state", "policy_losses", "supervised_losses"],
            "losses",
            name="hybrid_loss",
        ),
        Node(
            accumulate.accumulate_gradient,
            [
                ALGORITHM,
                TRAINING,
                "task",
                "state",
                "losses",
                "micro_batch_scores",
                "attached",
                "update_epoch",
            ],
            "micro_batch_report",
            name="accumulate_gradient",
        ),
    ]
    apply = Node(
        accumulate.apply_accumulated,
        [ALGORITHM, TRAINING, "task", "state", "experience", "micro_batch_reports", "update_epoch"],
        ["next_state", "step_metrics"],
        name="apply_accumulated",
    )
    return (
        Pipeline([cut], tags="update"),
        Pipeline(micro_batch, tags="update"),
        Pipeline([apply], tags="update"),
    )


def create_pipeline() -> Pipeline:
    """Wire the whole body with its first update epoch: task, state and batch -> next_state and step_metrics."""
    start = [
        Node(
            update.first_update_epoch,
            None,
            "update_epoch",
            name="first_update_epoch",
            namespace="loss",
            tags="update",
        ),
        Node(
            collect.nothing_replayed,
            None,
            "replayed",
            name="nothing_replayed",
            namespace="sample",
            tags="collect",
        ),
    ]
    return create_collect_pipeline() + create_update_pipeline() + Pipeline(start)


def _sampling() -> Pipeline:
    """Wire batch -> rollouts and outcomes."""
    replicate = Node(
        collect.replicate_batch, [TRAINING, "task", "batch"], "replicated", name="replicate_batch"
    )
    sample = _box(
        "sample",
        [
            Node(collect.encode_batch, ["task", "state", "batch"], "context", name="encode_batch"),
            Node(
                collect.sample_rollouts,
                [ALGORITHM, TRAINING, "task", "state", "context"],
                ["sampled", "temperature"],
                name="sample_rollouts",
            ),
            Node(
                collect.dynamic_sampling,
                [
                    ALGORITHM,
                    TRAINING,
                    "task",
                    "state",
                    "context",
                    "replicated",
                    "sampled",
                    "temperature",
                ],
                "resampled",
                name="dynamic_sampling",
            ),
            Node(
                collect.replay_groups,
                [ALGORITHM, "task", "state", "context", "resampled", "replayed", "temperature"],
                ["rollouts", "importance"],
                name="replay_groups",
            ),
            Node(
                collect.decode_rollouts,
                ["task", "state", "context", "rollouts", "replicated"],
                "outcomes",
                name="decode_rollouts",
            ),
        ],
    )
    return Pipeline([replicate, sample], tags="collect")


def _judging() -> Pipeline:
    """Wire rollouts and outcomes -> experience."""
    bundle = [
        "replicated",
        "context",
        "rollouts",
        "temperature",
        "outcomes",
        "rewards",
        "advantages",
        "reference",
        "baseline",
    ]
    reward = _box(
        "reward",
        [
            Node(
                collect.compute_rewards,
                ["task", "replicated", "rollouts", "outcomes"],
                "measured",
                name="compute_rewards",
            ),
            Node(
                collect.credit_decisions,
                [ALGORITHM, "task", "state", "context", "rollouts", "replicated", "measured"],
                "credited",
                name="credit_decisions",
            ),
            Node(
                collect.score_reference,
                [ALGORITHM, "task", "state", "batch", "rollouts", "temperature"],
                "reference",
                name="score_reference",
            ),
            Node(
                collect.penalise_kl,
                [ALGORITHM, "state", "credited", "rollouts", "reference"],
                "rewards",
                name="penalise_kl",
            ),
        ],
    )
    advantage = _box(
        "advantage",
        [
            Node(
                collect.predict_values,
                [ALGORITHM, "task", "state", "context", "rollouts", "temperature"],
                "baseline",
                name="predict_values",
            ),
            Node(
                collect.compute_advantages,
                [ALGORITHM, "task", "replicated", "rewards", "baseline", "importance"],
                "advantages",
                name="compute_advantages",
            ),
            Node(
                collect.collect_experience,
                [*bundle, "resampled", "importance", "batch"],
                "experience",
                name="collect_experience",
            ),
        ],
    )
    return Pipeline([reward, advantage], tags="collect")
