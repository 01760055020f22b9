"""Score stories by TF-IDF and two towers of word vectors, with an index that is encoded anew every few steps.

    score[p, s] = tfidf[p, s] + <q[p], d[s]>,  q[p] = sum_w x[p, w] Q[w],  d[s] = sum_w y[s, w] D[w]

x and y are word counts of length 1. Q begins at 0, so that the start is TF-IDF itself. Stories are chosen by the index: copies of
Q and D, and with them every d[s]. Only a new index changes what is read, never an update inside a step.

Source of rewards that teach a retriever: Huang et al., LAPDOG, arXiv 2406.18847, section 3. How this differs: the towers are word
vectors and no language model; the index is encoded anew by count of steps; chance brings new stories among the candidates.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from grpo_pipeline.core.rng import drawn_on_the_cpu
from grpo_pipeline.tasks.dialogue.retriever.params import LearnedRetriever
from grpo_pipeline.tasks.dialogue.retriever.shelf import Asked, StoryShelf
from grpo_pipeline.tasks.dialogue.retriever.word_table import WordRows, word_rows


class Retriever(nn.Module):
    """A retriever of S stories; its weights, its index and its count of steps are its state.

    Args:
        params: sizes and rhythm.
        shelf: the stories.
        seed: of the first weights.
    """

    steps: Tensor
    last_draw: Tensor
    index_queries: Tensor
    index_stories: Tensor

    def __init__(self, params: LearnedRetriever, shelf: StoryShelf, *, seed: int) -> None:
        super().__init__()
        self.params, self.shelf = params, shelf
        shape = (params.buckets, params.width)
        with drawn_on_the_cpu(seed):
            stories = torch.randn(shape) * params.width**-0.5
        self.queries, self.stories = nn.Parameter(torch.zeros(shape)), nn.Parameter(stories)
        self.register_buffer("index_queries", torch.zeros(shape))
        self.register_buffer("index_stories", stories.clone())
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("last_draw", torch.full((), -1, dtype=torch.int64))
        self._encoded: tuple[tuple[int, int], Tensor] | None = None

    @torch.no_grad()
    def begin_step(self, draw: int) -> None:
        """Count a training step, and encode the index anew in its rhythm; the same draw is the same step, and does nothing."""
        if draw == int(self.last_draw):
            return
        self.last_draw.fill_(draw)
        every = self.params.index_every
        if every is not None and int(self.steps) % every == 0:
            self.index_queries.copy_(self.queries)
            self.index_stories.copy_(self.stories)
        self.steps += 1

    @torch.no_grad()
    def index_scores(self, asked: Sequence[Asked]) -> np.ndarray:
        """Score every story by the index, float64 [P, S]; -inf for the speakers' own stories."""
        vectors = self._vectors(self._queries_of(asked), self.index_queries)  # [P, width]
        learned = vectors @ self._encoded_stories().T  # [P, S]
        return np.asarray(self.shelf.similarities(asked) + learned.double().cpu().numpy())

    def scores(self, asked: Sequence[Asked], stories: Tensor) -> Tensor:
        """Score these stories, int64 [P, m], by the present weights, float32 [P, m]; with gradient."""
        words = self.shelf.words(self.params.buckets)
        chosen = WordRows(*(part[stories.flatten().cpu()] for part in words))  # [P * m, W]
        found = self._vectors(chosen, self.stories).view(*stories.shape, -1)  # [P, m, width]
        vectors = self._vectors(self._queries_of(asked), self.queries)  # [P, width]
        learned = (vectors[:, None] * found).sum(dim=-1)  # [P, m]
        known = torch.from_numpy(self.shelf.similarities(asked)).to(learned)
        return known.gather(1, stories) + learned

    def choose(self, asked: Sequence[Asked]) -> Tensor:
        """Choose the ``top_n`` best stories of the index, int64 [P, n], best first; equal scores go by story id."""
        return best(self.index_scores(asked), self.shelf.params.top_n).to(self.queries.device)

    def candidates(self, asked: Sequence[Asked], draws: Tensor | None) -> Tensor:
        """Choose the stories whose replies are rewarded, int64 [P, m]: the best of the index, then others drawn by chance.

        Args:
            asked: P queries.
            draws: int64 [P], the only source of randomness; P seeds. Without them no story is drawn, and all are the best.

        Raises:
            ValueError: if fewer than ``candidates`` stories are left for a prompt.
        """
        scores = self.index_scores(asked)
        left = int(np.isfinite(scores).sum(axis=1).min())
        if left < self.params.candidates:
            raise ValueError(
                f"dialogue.prompt.retriever.candidates must be at most {left}, the stories left for a persona, got "
                f"{self.params.candidates}; lower it"
            )
        if draws is None:
            return best(scores, self.params.candidates).to(self.queries.device)
        first = best(scores, self.params.candidates - self.params.explored)  # [P, m - e]
        chance = np.stack(
            [np.random.default_rng(int(draw)).random(scores.shape[1]) for draw in draws]
        )
        chance[np.isneginf(scores)] = -np.inf
        np.put_along_axis(chance, first.numpy(), -np.inf, axis=1)
        drawn = best(chance, self.params.explored)  # [P, e]
        return torch.cat((first, drawn), dim=1).to(self.queries.device)

    def _queries_of(self, asked: Sequence[Asked]) -> WordRows:
        return word_rows([one.query for one in asked], buckets=self.params.buckets)

    def _vectors(self, words: WordRows, table: Tensor) -> Tensor:
        """Add up the word vectors of T texts, [T, width]."""
        rows, weights = (part.to(table.device) for part in words)
        return functional.embedding_bag(
            rows, table, per_sample_weights=weights.to(table.dtype), mode="sum"
        )

    def _encoded_stories(self) -> Tensor:
        """Encode the stories by the index, [S, width]; kept until its table changes."""
        key = (id(self.index_stories), self.index_stories._version)
        if self._encoded is None or self._encoded[0] != key:
            words = self.shelf.words(self.params.buckets)
            self._encoded = key, self._vectors(words, self.index_stories)
        return self._encoded[1]


def best(scores: np.ndarray, n: int) -> Tensor:
    """Choose the n highest scores of each row, int64 [P, n], best first; the first of equal ones wins."""
    return torch.from_numpy(np.argsort(-scores, axis=1, kind="stable")[:, :n].copy())
