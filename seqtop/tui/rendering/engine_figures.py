"""Figures of the engine as a whole that some engines have: drafts, adapters, graphs, encoder."""

from __future__ import annotations

from seqtop.state import EngineState
from seqtop.text import format as fmt
from seqtop.text.sanitize import safe_text
from seqtop.tui.rendering.bars import rows
from seqtop.tui.rendering.style import PLAIN, Line
from seqtop.wire.messages import EngineInfo, StepStats


def engine_figures(state: EngineState, width: int, *, names_missing: bool = False) -> list[Line]:
    """Returns lines with what the engine reports besides the figures of the header.

    Drafts are those since the first step that was seen, the others are of the last step.

    Args:
        state: The state.
        width: The cells of a line.
        names_missing: Whether it is said that there were no drafts.
    """
    stats = state.stats
    if stats is None:
        return []
    figures = (
        drafts(state),
        cuda_graph(stats),
        encoder(stats, state.info),
        lora_slots(stats, state.info),
        late_blocks(stats),
        parked(state),
    )
    shown = [figure for figure in figures if figure]
    if names_missing and not figures[0]:
        shown.append((("no draft tokens so far", "dim"),))
    return rows(shown, width)


def drafts(state: EngineState) -> Line:
    """Returns the share of the draft tokens that became output, also of the first of each draft."""
    drafted, accepted = sum(state.num_drafted), sum(state.num_accepted)
    if not drafted:
        return ()
    first = ""
    if len(state.num_drafted) > 1 and state.num_accepted:
        share = fmt.percent(state.num_accepted[0], state.num_drafted[0])
        first = f", {share} of first ones"
    text = f"drafts {fmt.percent(accepted, drafted)} of {fmt.count(drafted)} accepted{first}"
    return ((text, PLAIN),)


def cuda_graph(stats: StepStats) -> Line:
    """Returns the mode of the step's CUDA graph, and the padding."""
    graph = stats.cuda_graph
    if graph is None:
        return ()
    padding = graph.num_padded_tokens - graph.num_tokens
    more = f" +{fmt.plural(padding, 'token')} of padding" if padding > 0 else ""
    return ((f"CUDA graph {safe_text(graph.mode)}{more}", PLAIN),)


def encoder(stats: StepStats, info: EngineInfo | None) -> Line:
    """Returns the encoder tokens of the step and in the cache, of those that there may be."""
    if stats.num_encoder_tokens is None or stats.num_used_encoder_slots is None or info is None:
        return ()
    budget, size = info.max_num_encoder_input_tokens, info.encoder_cache_size
    tokens = f"{fmt.count(stats.num_encoder_tokens)} of {fmt.count(budget)} tokens"
    return ((f"encoder {tokens}, cache {fmt.percent(stats.num_used_encoder_slots, size)}", PLAIN),)


def lora_slots(stats: StepStats, info: EngineInfo | None) -> Line:
    """Returns the LoRA adapters that the step used, of those that one step can use."""
    if stats.num_used_loras is None or info is None:
        return ()
    most = fmt.count(info.max_loras)
    return ((f"LoRA {fmt.count(stats.num_used_loras)} of {most}", PLAIN),)


def late_blocks(stats: StepStats) -> Line:
    """Returns the blocks of requests that have ended, such as those that a connector sends."""
    if not stats.num_late_blocks:
        return ()
    return ((f"{fmt.plural(stats.num_late_blocks, 'block')} of ended requests", PLAIN),)


def parked(state: EngineState) -> Line:
    """Returns what sequences wait for instead of their turn, by the engine's names for it."""
    texts = [f"{count:,} {safe_text(name)}" for name, count in state.num_parked.items() if count]
    return ((", ".join(texts), "waiting"),) if texts else ()
