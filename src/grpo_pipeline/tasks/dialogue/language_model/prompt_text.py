"""Compose what a language model reads, and what it should reply: texts, and their tokens.

Source of the wording: the input of Fusion-in-Decoder (Izacard and Grave, arXiv 2007.01282, section 3).
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from grpo_pipeline.tasks.dialogue.language_model.tokens import Tokenizer
from grpo_pipeline.tasks.dialogue.params import PromptParams

Message = Mapping[str, str]
ModelKind = Literal["seq2seq", "causal"]
REPLY_CUE = " reply:"


def story_text(title: str, text: str) -> str:
    """Write a story in the form that the model reads."""
    return f"title: {title} story: {text}"


def prompt_texts(question: str, stories: Sequence[str], *, kind: ModelKind) -> list[str]:
    """Compose the texts of a prompt.

    A seq2seq language model reads each story in a text of its own, with the question after it, and fuses them in its decoder. A
    causal language model reads a single text: all stories, the question once, and a cue after which the reply begins. The
    question stands last, so that ``too_long: keep_end`` cuts stories first.

    Args:
        question: "persona: … context: …".
        stories: results of ``story_text``; without stories, the question stands alone.
        kind: kind of the language model.
    """
    if kind == "causal":
        return [" ".join([*stories, question]) + REPLY_CUE]
    return [f"{story} {question}" for story in stories] or [question]


def frame_of(
    tokenizer: Tokenizer, prompt: PromptParams, *, kind: ModelKind
) -> tuple[list[int], list[int]]:
    """List the tokens before and after each text of a prompt; a chat template writes its own."""
    if prompt.template is not None:
        return [], []
    return [*tokenizer.begin_ids], [tokenizer.eos_id] if kind == "seq2seq" else []


def prompt_ids(
    tokenizer: Tokenizer,
    question: str,
    stories: Sequence[str],
    *,
    kind: ModelKind,
    prompt: PromptParams,
    messages: Sequence[Message] = (),
) -> list[list[int]]:
    """Tokenise the texts of a prompt, uncut and without the tokens of ``frame_of``.

    Args:
        tokenizer: of the language model.
        question: see ``prompt_texts``.
        stories: see ``prompt_texts``.
        kind: kind of the language model.
        prompt: with ``template: chat`` the prompt is a conversation in the template's form, at the model's turn.
        messages: that conversation; empty: the stories and the question are its only message, the user's.

    Raises:
        ValueError: if the tokenizer has no chat template, or the template refuses the messages.
    """
    if prompt.template is None:
        return [tokenizer.encode(text) for text in prompt_texts(question, stories, kind=kind)]
    return [tokenizer.encode_chat(messages or [_told(question, stories)])]


def reply_ids(
    tokenizer: Tokenizer,
    reply: str,
    question: str,
    stories: Sequence[str],
    messages: Sequence[Message] = (),
    *,
    prompt: PromptParams,
) -> list[int]:
    """Tokenise a reply, uncut and without its end, as the language model would write it behind its prompt.

    In a chat template's form it is what the template adds to the prompt. Arguments and errors as ``prompt_ids``.

    Raises:
        ValueError: also if the conversation with the reply does not begin with the prompt (names the first token that differs).
    """
    if prompt.template is None:
        return tokenizer.encode(reply)
    asked = messages or [_told(question, stories)]
    before = tokenizer.encode_chat(asked)
    whole = tokenizer.encode_chat(asked, reply=reply)
    _refuse_change(tokenizer, before, whole, after="the reply")
    rest = whole[len(before) :]
    ends = [place for place, token in enumerate(rest) if token in tokenizer.end_ids]
    return rest[: ends[0]] if ends else rest


def answer_ids(tokenizer: Tokenizer, text: str, *, prompt: PromptParams) -> list[int]:
    """Tokenise what an environment says after a reply, with what leads to the next reply.

    Without a template the text is a line of its own. A chat template decides itself what stands between two replies: all that it
    adds, behind the end of a reply, for a message of the user.

    Raises:
        ValueError: if the template does not end a reply, or changes what was said before (names the first token that differs).
    """
    if prompt.template is None:
        return tokenizer.encode(f"\n{text}\n")
    asked = _told("?", [])
    said = tokenizer.encode_chat([asked], reply="?")
    places = [place for place, token in enumerate(said) if token in tokenizer.end_ids]
    if not places or places[-1] < len(tokenizer.encode_chat([asked])):
        raise ValueError(
            "the chat template must end a reply with a token that ends one, got none; repair the template, or train with "
            "dialogue.prompt.template: null"
        )
    before = said[: places[-1] + 1]
    later = [asked, {"role": "assistant", "content": "?"}, {"role": "user", "content": text}]
    whole = tokenizer.encode_chat(later)
    _refuse_change(tokenizer, before, whole, after="what an environment says")
    return whole[len(before) :]


def _refuse_change(
    tokenizer: Tokenizer, before: list[int], whole: list[int], *, after: str
) -> None:
    """Refuse a template that writes a beginning otherwise when something follows.

    Raises:
        ValueError: with the first token that differs.
    """
    if whole[: len(before)] == before:
        return
    same = zip(before, whole, strict=False)
    place = next((p for p, (one, other) in enumerate(same) if one != other), len(whole))
    got, wanted = (tokenizer.decode(ids[place : place + 1]) for ids in (whole, before))
    raise ValueError(
        f"the chat template must leave a prompt as it was when {after} follows, got token {place} {got!r} instead of "
        f"{wanted!r}; repair the template, or train with dialogue.prompt.template: null"
    )


def _told(question: str, stories: Sequence[str]) -> Message:
    return {"role": "user", "content": " ".join([*stories, question])}
