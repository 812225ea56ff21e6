"""Drafts by a small network that reads the model's hidden states, and comes with the model.

It is of EAGLE's kind (Li et al., "EAGLE: Speculative Sampling Requires Rethinking Feature
Uncertainty", 2024): from the hidden state that a token was sampled from, and the token, it predicts
the next hidden state, which the model's own projection turns into the next token, and so on.
Instead of EAGLE's attention it has a recurrent memory of one vector. After a draft that was
accepted whole, the memory lacks the draft's last token, because a *bonus* token followed it in the
same step. The memory is therefore updated by that token first, with the hidden state before it.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from engine_stub.model_executor.loader import WeightsError
from engine_stub.model_executor.model import Decoder
from engine_stub.platforms import to_device, to_host
from engine_stub.spec_decode.speculation import Draft, GeneratorOf, SpeculationOutcome
from seqtop.sequence import HiddenStates, SamplingType, SequenceGroupMetadata

FILE_NAME = "draft_head.safetensors"


class DraftHead(nn.Module):
    """One step of the draft network."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.remember = nn.Linear(3 * hidden_size, hidden_size)
        self.guess = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, hidden: Tensor, embedded: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Processes a token; all tensors are ``[N, hidden_size]``.

        Args:
            hidden: The state that the token was sampled from.
            embedded: The token's embedding by the model.
            memory: The memory before the token; zeros in the beginning.

        Returns:
            The predicted state after the token, and the memory after it.
        """
        embedded = F.rms_norm(embedded, embedded.shape[-1:])
        memory = torch.tanh(self.remember(torch.cat((hidden, embedded, memory), dim=-1)))
        return hidden + self.guess(memory), memory


def load_draft_head(
    path: Path, hidden_size: int, *, device: torch.device, dtype: torch.dtype
) -> DraftHead:
    """Loads the draft head in a model's directory.

    Raises:
        FileNotFoundError: There is none.
        WeightsError: The file is not readable, or its tensors have other shapes.
    """
    file = path / FILE_NAME
    if not file.is_file():
        raise FileNotFoundError(
            f"{path} holds no {FILE_NAME}, which speculative='draft-head' needs;"
            " use speculative='ngram', or none"
        )
    try:
        state = {name: tensor.to(device, dtype) for name, tensor in load_file(file).items()}
        with torch.device("meta"):
            head = DraftHead(hidden_size)
        head.load_state_dict(state, assign=True)
    except (SafetensorError, RuntimeError) as error:
        raise WeightsError(f"{file} is no draft head for this model: {error}") from error
    return head.requires_grad_(False).eval()


class DraftHeadProposer:
    """Proposes the tokens of a draft head: the likeliest ones, or drawn ones for samples.

    Args:
        head: The draft head.
        model: The last stage, with its embedding.
    """

    def __init__(self, head: DraftHead, model: Decoder) -> None:
        self._head = head
        self._model = model
        # The states of the sequences that sampled in the last step.
        self._previous: HiddenStates | None = None
        # By sequence id, the memory before its newest token; before the bonus token if one came.
        self._memories: dict[int, Tensor] = {}
        self._with_bonus: set[int] = set()
        # By sequence id, the memory after each token of the draft in progress.
        self._trails: dict[int, list[Tensor]] = {}

    def propose(
        self,
        groups: list[SequenceGroupMetadata],
        generator_of: GeneratorOf,
    ) -> dict[int, Draft]:
        """Returns drafts by sequence id, for sequences that sampled in the last step."""
        self._trails = {}
        if self._previous is None:
            return {}
        self._previous.prune(groups)
        seq_ids = self._previous.seq_ids
        if not seq_ids:
            return {}
        by_seq_id = {group.get_first_seq_id(): group for group in groups}
        groups = [by_seq_id[seq_id] for seq_id in seq_ids]
        hidden, memory = self._add_bonus_tokens(groups)
        newest = [by_seq_id[i].seq_data[i].get_last_token_id() for i in seq_ids]
        token_ids = to_device(newest, hidden.device)
        columns: list[Tensor] = []
        probs: list[Tensor] = []
        for _ in range(max(group.num_speculative_tokens or 0 for group in groups)):
            embedded = self._model.embed_tokens(token_ids)
            hidden, memory = self._head(hidden, embedded, memory)
            drawn_from = self._probs(hidden, groups)
            token_ids = _draw(drawn_from, groups, generator_of)
            columns.append(token_ids)
            probs.append(drawn_from)
            for seq_id, own in zip(seq_ids, memory, strict=True):
                self._trails.setdefault(seq_id, []).append(own)
        drafts: dict[int, Draft] = {}
        (guesses,) = to_host(torch.stack(columns, dim=1))
        for row, (seq_id, group, guess) in enumerate(zip(seq_ids, groups, guesses, strict=True)):
            own = guess[: group.num_speculative_tokens]
            drafts[seq_id] = Draft(
                own, torch.stack([row_probs[row] for row_probs in probs[: len(own)]])
            )
        return drafts

    def observe(self, outcomes: list[SpeculationOutcome]) -> None:
        """Takes the hidden states of a step; see `Proposer.observe`."""
        self._memories, self._with_bonus = {}, set()
        if not outcomes:
            self._previous = None
            return
        empty = outcomes[0].hidden[:0]
        self._previous = HiddenStates(empty, [], empty)
        self._previous.update(
            torch.stack([outcome.hidden[outcome.num_accepted] for outcome in outcomes]),
            [outcome.group for outcome in outcomes],
            torch.stack([outcome.hidden[max(outcome.num_accepted - 1, 0)] for outcome in outcomes]),
        )
        for outcome in outcomes:
            seq_id = outcome.group.get_first_seq_id()
            num_drafted = len(outcome.hidden) - 1
            if num_drafted == 0:
                # The memory lacks this token: it starts from zeros again.
                self._memories[seq_id] = torch.zeros_like(outcome.hidden[0])
                continue
            trail = self._trails[seq_id]
            self._memories[seq_id] = trail[min(outcome.num_accepted, num_drafted - 1)]
            if outcome.num_accepted == num_drafted:
                self._with_bonus.add(seq_id)

    def _add_bonus_tokens(self, groups: list[SequenceGroupMetadata]) -> tuple[Tensor, Tensor]:
        """Returns states and memories before newest tokens, each ``[len(groups), hidden_size]``."""
        assert self._previous is not None
        seq_ids = self._previous.seq_ids
        memory = torch.stack([self._memories[seq_id] for seq_id in seq_ids])
        late = [row for row, seq_id in enumerate(seq_ids) if seq_id in self._with_bonus]
        self._previous.expand_with_bonus_tokens(self._with_bonus)
        hidden = self._previous.hidden_states
        assert hidden is not None
        # The row of each sequence with a bonus token is now preceded by a second one.
        before = [row + number for number, row in enumerate(late)]
        newest = [row for row in range(len(hidden)) if row not in before]
        if late:
            missing = [groups[row].seq_data[seq_ids[row]].get_token_ids()[-2] for row in late]
            embedded = self._model.embed_tokens(to_device(missing, hidden.device))
            rows = to_device(late, hidden.device)
            states = hidden[to_device(before, hidden.device)]
            memory[rows] = self._head(states, embedded, memory[rows])[1]
        return hidden[to_device(newest, hidden.device)], memory

    def _probs(self, hidden: Tensor, groups: list[SequenceGroupMetadata]) -> Tensor:
        """Returns the distributions, ``[len(groups), vocab]``: one token for greedy requests."""
        logits = self._model.compute_logits(hidden)
        certain = torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
        temperatures = [_temperature(group) for group in groups]
        column = to_device(temperatures, logits.device, torch.float32)[:, None]
        drawn = (logits / column.clamp(min=1e-6)).softmax(-1)
        return torch.where(column > 0, drawn, certain)


def _temperature(group: SequenceGroupMetadata) -> float:
    """Returns the temperature of a group's request; 0 for greedy ones."""
    params = group.sampling_params
    assert params is not None
    return 0.0 if params.sampling_type is SamplingType.GREEDY else params.temperature


def _draw(
    probs: Tensor,
    groups: list[SequenceGroupMetadata],
    generator_of: GeneratorOf,
) -> Tensor:
    """Draws a token for each row of ``probs``."""
    noise = torch.ones_like(probs)
    for row, group in enumerate(groups):
        if _temperature(group) > 0:
            noise[row].exponential_(generator=generator_of(group))
    return (probs / noise).argmax(-1)
