"""The header strip: which engine, how it is connected, how fast it goes, how full its cache is."""

from functools import lru_cache

from seqtop import format as fmt
from seqtop.connection import ConnectionState
from seqtop.sanitize import safe_line
from seqtop.sequence import SequenceStatus
from seqtop.tui import position_text
from seqtop.tui.feed import Feed
from seqtop.tui.rates import kv_use
from seqtop.tui.rendering.bars import bar, row, sparkline, spread
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.rendering.style import PLAIN, Line, fitted, line_width

BADGES = {
    ConnectionState.CONNECTING: ("◌ CONNECTING", "badge-wait"),
    ConnectionState.SYNCING: ("↻ SYNCING", "badge-wait"),
    ConnectionState.LIVE: ("● LIVE", "badge-live"),
    ConnectionState.LOST: ("✗ LOST", "badge-alert"),
    ConnectionState.STOPPED: ("■ STOPPED", "badge-alert"),
    ConnectionState.INCOMPATIBLE: ("≠ INCOMPATIBLE", "badge-alert"),
    ConnectionState.REFUSED: ("✗ REFUSED", "badge-alert"),
    ConnectionState.REPLAY: ("▷ REPLAY", "badge-paused"),
}
PAUSED = ("‖ PAUSED", "badge-paused")

SENTENCES = {
    ConnectionState.CONNECTING: "Waiting for the engine's first message.",
    ConnectionState.SYNCING: "Fetching the engine's whole state.",
    ConnectionState.LIVE: "",
    ConnectionState.LOST: "The engine has gone silent; what you see is the last that was heard.",
    ConnectionState.STOPPED: "The engine has stopped; what you see is its last state.",
    ConnectionState.INCOMPATIBLE: "What answers there does not speak seqtop's protocol.",
    ConnectionState.REFUSED: "The engine does not accept this viewer's key.",
    ConnectionState.REPLAY: "",
}


class Header(LineView):
    """The strip at the top, one to three lines as there is room."""

    def __init__(self, feed: Feed, *, title: str) -> None:
        super().__init__(id="header")
        self._feed = feed
        self._title = title

    def update(self) -> None:
        """Call it under the feed's lock."""
        if not self.size:
            return
        width = max(self.size.width - 2, 1)
        lines = (
            identity(self._feed, width, self._title),
            throughput(self._feed, width),
            cache(self._feed, width),
        )
        self.set_lines([((" ", PLAIN), *line) for line in lines[: self.size.height]])

    def on_resize(self) -> None:
        with self._feed.lock:
            self.update()


def badges(feed: Feed) -> Line:
    """What the picture is, in words that leave no doubt."""
    taping = _taping(feed)
    text, ink = BADGES[feed.source.link.state]
    if feed.source.link.state is ConnectionState.LOST:
        text += f" {fmt.growing(float(int(feed.silence)))}"
    if not feed.paused:
        return (*taping, (f" {text} ", ink))
    paused = (f" {PAUSED[0]} ", PAUSED[1])
    # A pause hides whether data goes on only if the link is as it should be.
    if feed.source.link.state is ConnectionState.LIVE:
        return (*taping, paused)
    return (*taping, paused, (f" {text} ", ink))


def _taping(feed: Feed) -> Line:
    """Whether what arrives is being written down, and how much of it there is."""
    if feed.taper is None or (size := feed.taper.num_bytes) is None:
        return ()
    if feed.taper.error is not None:
        return ((" ✗ REC ENDED ", "badge-alert"), (" ", PLAIN))
    return ((f" ● REC {fmt.size(size)} ", "badge-alert"), (" ", PLAIN))


def sentence(feed: Feed, step_keys: str) -> str:
    """Which moment is shown, and why the picture is not live; empty if it is."""
    link = feed.source.link
    reason = link.detail or SENTENCES[link.state] if link.state is not ConnectionState.LIVE else ""
    if feed.replay is not None:
        remark = feed.missed or feed.remark
        return " ".join(
            filter(None, (position_text.replayed(feed.replay, remark, step_keys), reason))
        )
    return (
        " ".join(filter(None, (position_text.held(feed, step_keys), reason)))
        if feed.paused
        else reason
    )


def identity(feed: Feed, width: int, title: str) -> Line:
    """Engine, model, number format and device; at the right how the connection stands."""
    right = badges(feed)
    room = width - line_width(right) - 2
    info = feed.state.info
    if info is None:
        left = row(
            [(0, ((title, "title"),)), (1, ((safe_line(feed.source.link.endpoint), "dim"),))], room
        )
        return spread(fitted(left, max(room, 1)), right, width)
    left = _names(
        info.engine_id,
        info.model,
        info.dtype,
        info.device,
        info.engine,
        info.block_size,
        feed.source.link.endpoint,
        room,
    )
    return spread(left, right, width)


@lru_cache(maxsize=16)
def _names(
    engine_id: str,
    model: str,
    dtype: str,
    device: str,
    engine: str,
    block_size: int,
    endpoint: str,
    room: int,
) -> Line:
    """What an engine says of itself, as far as there is `room`; it seldom says anything else."""
    texts = (
        (0, engine_id, "title"),
        (1, model, "strong"),
        (2, dtype, "dim"),
        (2, device, "dim"),
        (3, engine, "dim"),
        (4, f"block size {block_size}", "dim"),
        (5, endpoint, "dim"),
    )
    left = row([(rank, ((safe_line(text), ink),)) for rank, text, ink in texts if text], room)
    return fitted(left, max(min(room, line_width(left)), 1))


def throughput(feed: Feed, width: int) -> Line:
    """Steps, tokens per second and how many sequences are in which state."""
    state, rates = feed.state, feed.rates
    counts = state.num_by_status
    swaps = state.stats is not None and state.stats.num_swapped is not None
    spark = sparkline(rates.out_history, min(max(width - 108, 0), 60))
    silent = (
        feed.source.link.state in {ConnectionState.LOST, ConnectionState.STOPPED}
        and not feed.paused
    )
    ink = "dim" if silent else "strong"  # rates of what no longer goes on
    step = fmt.count(state.step) if state.step >= 0 else fmt.UNKNOWN
    return row(
        [
            (0, _figure("step", step)),
            (5, ((fmt.rate(rates.steps), ink), (" steps/s", "dim"))),
            (
                1,
                (
                    ("in/out ", "dim"),
                    (fmt.rate(rates.tokens_in), ink),
                    ("/", "dim"),
                    (fmt.rate(rates.tokens_out), ink),
                    (" tok/s", "dim"),
                ),
            ),
            (0, _count("●", "running", counts[SequenceStatus.RUNNING], "running")),
            (0, _count("○", "waiting", counts[SequenceStatus.WAITING], "waiting")),
            (4, _count("⇄", "swapped", counts[SequenceStatus.SWAPPED], "swapped"))
            if swaps or counts[SequenceStatus.SWAPPED]
            else (9, ()),
            (2, _count("✓", "finished", state.num_finished, "finished")),
            (8, (("tok/s ", "dim"), (spark, "running")) if spark else ()),
        ],
        width,
        gap=2 if width < 110 else 3,
    )


def cache(feed: Feed, width: int) -> Line:
    """The KV cache as a bar with its numbers, then hits, preemptions and whatever went wrong."""
    state, link = feed.state, feed.source.link
    stats, info = state.stats, state.info
    troubles = [
        (rank, ((f"{text} {fmt.count(number)}", "alert"),))
        for rank, text, number in (
            (1, "missed", link.num_missed),
            (1, "errors", link.num_errors),
            (2, "anomalies", state.num_anomalies),
            (1, "checks:", feed.review.num_findings if feed.review else 0),
        )
        if number
    ]
    if stats is None or info is None:
        return row([(0, (("KV", "dim"), (" ", PLAIN), ("no step yet", "dim"))), *troubles], width)
    total = info.num_gpu_blocks
    used, cached = stats.num_used_blocks, stats.num_cached_blocks
    size = min(max(width // 5, 8), 40)
    parts = ((used, "computed", "━"), (cached, "cached", "═"))
    free = fmt.count(stats.num_free_blocks)
    # What is cached makes way for whoever needs a block: a pool is full only without both.
    numbers: Line = ((f"{fmt.count(used)} used  {free} free + {fmt.count(cached)} cached", PLAIN),)
    of_all: Line = ((f" of {fmt.count(total)}", "dim"),)
    short: Line = ((f"{fmt.count(used)} used", PLAIN), *of_all)
    spark = sparkline(feed.rates.kv_history, min(max(width - 142, 0), 60), ceiling=1.0)
    hits = fmt.percent(stats.prefix_cache_hits, stats.prefix_cache_queries)
    line: Line = ()
    for figures in ((*numbers, *of_all), numbers, short):  # as much of them as there is room for
        items: list[tuple[int, Line]] = [
            (
                0,
                (
                    ("KV ", "dim"),
                    *bar(size, total, parts),
                    (f" {fmt.percent(kv_use(state))}", "strong"),
                ),
            ),
            (3, figures),
            (4, _figure("prefix hits", hits)),
            (2, _figure("preempted", fmt.count(stats.num_preemptions))),
            *troubles,
            (8, (("KV use ", "dim"), (spark, "computed")) if spark else ()),
        ]
        line = row(items, width, gap=2 if width < 110 else 3)
        if figures[0] in line:
            break
    return line


def _figure(label: str, value: str, unit: str = "", ink: str = "strong") -> Line:
    spans: Line = ((f"{label} ", "dim"), (value, ink))
    return (*spans, (f" {unit}", "dim")) if unit else spans


def _count(sign: str, ink: str, number: int, word: str) -> Line:
    return (
        (sign, ink if number else "dim"),
        (f" {fmt.count(number)}", "strong" if number else "dim"),
        (f" {word}", "dim"),
    )
