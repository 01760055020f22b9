"""All pipelines of the project, by explicit names; nothing is discovered."""

from kedro.pipeline import Pipeline

from grpo_pipeline.pipelines.audit.gradient_flow import create_pipeline as create_flow
from grpo_pipeline.pipelines.audit.reward_audit import create_pipeline as create_reward_audit
from grpo_pipeline.pipelines.audit.self_check import create_pipeline as create_self_check
from grpo_pipeline.pipelines.compare.pipeline import create_pipeline as create_compare
from grpo_pipeline.pipelines.cross_validation.pipeline import create_pipeline as create_cross_validation
from grpo_pipeline.pipelines.data import attention as attention_data
from grpo_pipeline.pipelines.data import dialogue as dialogue_data
from grpo_pipeline.pipelines.data import molecules as molecules_data
from grpo_pipeline.pipelines.evaluation.pipeline import create_pipeline as create_evaluation
from grpo_pipeline.pipelines.prediction.pipeline import create_pipeline as create_prediction
from grpo_pipeline.pipelines.reporting.pipeline import create_pipeline as create_reporting
from grpo_pipeline.pipelines.step.pipeline import create_pipeline as create_step
from grpo_pipeline.pipelines.training.attention import create_pipeline as prepare_attention
from grpo_pipeline.pipelines.training.dialogue import create_pipeline as prepare_dialogue
from grpo_pipeline.pipelines.training.molecules import ARMS as MOLECULE_ARMS
from grpo_pipeline.pipelines.training.molecules import OWN as MOLECULE_OWN
from grpo_pipeline.pipelines.training.molecules import create_pipeline as prepare_molecules
from grpo_pipeline.pipelines.training.pipeline import create_pipeline as create_arm

ATTENTION_ARMS = ("supervised", "grpo")
DIALOGUE_ARMS = ("supervised", "reinforce", "grpo")


def register_pipelines() -> dict[str, Pipeline]:
    """Return name -> pipeline; ``__default__`` is the attention task end to end."""
    data = attention_data.create_pipeline()
    train = sum((create_arm("attention", arm) for arm in ATTENTION_ARMS), start=prepare_attention())
    train += create_reward_audit("attention")
    evaluate = create_evaluation("attention", ATTENTION_ARMS) + create_reporting("attention", ATTENTION_ARMS)
    attention = data + train + evaluate
    talk_data = dialogue_data.create_pipeline()
    talk_prepare = talk_data + prepare_dialogue()
    talk_train = sum((create_arm("dialogue", arm) for arm in DIALOGUE_ARMS), start=prepare_dialogue())
    talk_evaluate = create_evaluation("dialogue", DIALOGUE_ARMS) + create_reporting("dialogue", DIALOGUE_ARMS)
    talk_train += create_reward_audit("dialogue")
    graph_data = molecules_data.create_pipeline()
    graph_prepare = graph_data + prepare_molecules()
    own = {arm: MOLECULE_OWN.get(arm, ()) for arm in MOLECULE_ARMS}
    graph_train = sum((create_arm("molecules", arm, own=own[arm]) for arm in MOLECULE_ARMS), start=prepare_molecules())
    graph_train += create_reward_audit("molecules")
    graph_evaluate = create_evaluation("molecules", MOLECULE_ARMS)
    graph_evaluate += create_reporting("molecules", MOLECULE_ARMS, showcase_arm="grpo")
    return {
        "__default__": attention,
        "attention": attention,
        "attention_data": data,
        "attention_train": train,
        "attention_evaluate": evaluate,
        "attention_predict": create_prediction(),
        "attention_step": create_step(),
        "compare": data + create_compare("attention"),
        "dialogue": talk_data + talk_train + talk_evaluate,
        "dialogue_compare": talk_data + create_compare("dialogue"),
        "dialogue_data": talk_data,
        "dialogue_gradient_flow": sum((create_flow("dialogue", arm) for arm in DIALOGUE_ARMS), start=talk_prepare),
        "dialogue_reward_audit": talk_prepare + create_reward_audit("dialogue"),
        "dialogue_train": talk_train,
        "dialogue_evaluate": talk_evaluate,
        "cross_validate": data + create_cross_validation("attention"),
        "molecules": graph_data + graph_train + graph_evaluate,
        "molecules_data": graph_data,
        "molecules_gradient_flow": sum(
            (create_flow("molecules", arm, own=own[arm]) for arm in MOLECULE_ARMS), start=graph_prepare
        ),
        "molecules_reward_audit": graph_prepare + create_reward_audit("molecules"),
        "molecules_train": graph_train,
        "molecules_evaluate": graph_evaluate,
        "gradient_flow": sum((create_flow("attention", arm) for arm in ATTENTION_ARMS), start=data + prepare_attention()),
        "reward_audit": data + prepare_attention() + create_reward_audit("attention"),
        "self_check": create_self_check(),
    }
