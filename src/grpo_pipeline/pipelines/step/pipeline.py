"""Wiring of the loop body: collect once per batch, update K times."""

from kedro.pipeline import Node, Pipeline

from grpo_pipeline.pipelines.step import nodes

ALGORITHM, TRAINING = "params:algorithm", "params:training"


def create_collect_pipeline() -> Pipeline:
    """Wire task, state and batch -> experience: encode, replicate, sample, decode, reward, compare."""
    return Pipeline(
        [
            Node(nodes.encode_batch, ["task", "state", "batch"], "context", name="encode_batch"),
            Node(nodes.replicate_batch, [TRAINING, "task", "batch"], "replicated", name="replicate_batch"),
            Node(
                nodes.sample_rollouts,
                [ALGORITHM, TRAINING, "task", "state", "context"],
                ["rollouts", "temperature"],
                name="sample_rollouts",
            ),
            Node(
                nodes.decode_rollouts,
                ["task", "state", "context", "rollouts", "replicated"],
                "outcomes",
                name="decode_rollouts",
            ),
            Node(nodes.compute_rewards, ["task", "replicated", "rollouts", "outcomes"], "rewards", name="compute_rewards"),
            Node(nodes.compute_advantages, [TRAINING, "rewards"], "advantages", name="compute_advantages"),
            Node(
                nodes.score_reference,
                [ALGORITHM, "task", "state", "replicated", "rollouts", "temperature"],
                "reference",
                name="score_reference",
            ),
            Node(
                nodes.collect_experience,
                ["replicated", "context", "rollouts", "temperature", "outcomes", "rewards", "advantages", "reference"],
                "experience",
                name="collect_experience",
            ),
        ],
        tags="collect",
    )


def create_update_pipeline() -> Pipeline:
    """Wire task, state, experience and update_epoch -> next_state and step_metrics."""
    return Pipeline(
        [
            Node(
                nodes.policy_terms,
                [ALGORITHM, TRAINING, "task", "state", "experience", "update_epoch"],
                ["policy_losses", "diagnostics"],
                name="policy_loss",
            ),
            Node(
                nodes.supervised_term,
                ["task", "state", "experience", "update_epoch"],
                "supervised_losses",
                name="supervised_loss",
            ),
            Node(
                nodes.mix_losses,
                [ALGORITHM, "task", "state", "policy_losses", "supervised_losses", "diagnostics"],
                "losses",
                name="hybrid_loss",
            ),
            Node(
                nodes.apply_update,
                [TRAINING, "task", "state", "losses", "experience", "update_epoch"],
                ["next_state", "step_metrics"],
                name="apply_update",
            ),
        ],
        tags="update",
    )


def create_pipeline() -> Pipeline:
    """Wire the whole body with its first update epoch: task, state and batch -> next_state and step_metrics."""
    first = Node(nodes.first_update_epoch, None, "update_epoch", name="first_update_epoch", tags="update")
    return create_collect_pipeline() + create_update_pipeline() + Pipeline([first])
