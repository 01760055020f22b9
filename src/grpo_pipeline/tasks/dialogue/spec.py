"""Describe the dialogue task: arms, warm start, metrics and words."""

from grpo_pipeline.rewards.params import PoolParams
from grpo_pipeline.tasks.dialogue.data.generated.params import PersonaParams
from grpo_pipeline.tasks.dialogue.data.params import (
    DialogueDataParams,
    DialogueSplitParams,
    RetrievalParams,
)
from grpo_pipeline.tasks.dialogue.language_model.params import LanguageModelParams, ReplyParams
from grpo_pipeline.tasks.dialogue.params import PredictParams, PromptParams, SupervisedParams
from grpo_pipeline.tasks.dialogue.rewards.params import DialogueReward
from grpo_pipeline.tasks.spec import TaskSpec, Wording

SPEC = TaskSpec(
    name="dialogue",
    arms=("supervised", "reinforce", "grpo"),
    optional_stages=("warm_start",),
    classes="needs",
    one_of_each="grpo_pipeline.tasks.dialogue.data.examples:question_and_answer",
    with_table="grpo_pipeline.tasks.dialogue.data.examples:with_table",
    metrics="grpo_pipeline.tasks.dialogue.evaluation.metrics:build_suite",
    pipelines="grpo_pipeline.tasks.dialogue.pipelines",
    curves={
        "reference/perplexity": "Perplexity of the references",
        "reply/tokens": "Tokens in a reply",
    },
    words=Wording(
        drawn="one sampled reply per example; rewards and accuracy are means over all sampled replies",
        gain="its replies − the start's",
        rules="Other replies; greedy and policy are those of",
        rule="replies",
        others="Other replies",
        caption="Other replies to the same examples",
        explained="Replies of other rules to the same examples",
        choices={
            "greedy": "the likeliest words of the same trained language model",
            "start": "the weights that it began with",
            "constant": "one reply to all, without a model",
        },
        clusters="subject",
        terms={
            "Accuracy": "The share of sampled replies that are right by the terms of the reward that say so: pass@1.",
            "F1": "The words that a reply shares with the right one, as the mean of precision and recall: 1 is the same words.",
            "BLEU": "The share of word sequences of a reply that the right one has, too, less where it is too short.",
            "ROUGE": "The share of the right reply's words, pairs of words or longest sequence that a reply has, too.",
            "Distinct": "The share of different words, or pairs of words, among all: it falls where replies repeat each other.",
            "Self-BLEU": "How alike the replies of one group are by BLEU: a group of equal replies teaches nothing.",
            "perplexity": "How surprised the model is by the right replies: among so many equally likely words it chooses.",
            "persona": "The sentences that say who speaks.",
            "subject": "What examples share that stay in one split: a persona, or a value of the column of groups.",
            "greedy": "The reply of the likeliest word at each place, without chance.",
        },
    ),
    outputs={"greedy": "likeliest reply", "replies": "sampled reply"},
    sections={
        "personas": PersonaParams,
        "data": DialogueDataParams,
        "split": DialogueSplitParams,
        "retrieval": RetrievalParams,
        "language_model": LanguageModelParams,
        "prompt": PromptParams,
        "replies": ReplyParams,
        "reward": DialogueReward,
        "reward_pool": PoolParams,
        "supervised_loss": SupervisedParams,
        "predict": PredictParams,
    },
)
