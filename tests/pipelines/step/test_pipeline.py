from grpo_pipeline.pipelines.step.pipeline import create_collect_pipeline, create_pipeline, create_update_pipeline


def test_only_the_declared_values_come_in_and_go_out():
    body = create_pipeline()
    assert body.inputs() == {"task", "state", "batch", "params:algorithm", "params:training"}
    assert body.outputs() == {"next_state", "step_metrics"}
    assert create_collect_pipeline().inputs() == {"task", "state", "batch", "replayed", "params:algorithm", "params:training"}
    assert create_collect_pipeline().outputs() == {"experience"}
    assert create_update_pipeline().inputs() == {
        "task", "state", "experience", "update_epoch", "params:algorithm", "params:training",
    }  # fmt: skip


def test_the_order_of_the_nodes_is_that_of_the_algorithm():
    names = [node.name for node in create_pipeline().nodes]
    order = ["encode_batch", "sample_rollouts", "decode_rollouts", "compute_rewards", "compute_advantages", "collect_experience",
             "policy_loss", "hybrid_loss", "apply_update"]  # fmt: skip
    assert [name for name in names if name in order] == order
