"""The commands of the palette (Ctrl+P)."""

import re
from collections.abc import Mapping

from textual.command import DiscoveryHit, Hit, Hits
from textual.content import Content
from textual.system_commands import SystemCommandsProvider

_WORD = re.compile(r"[^\W_]+")

KEYWORDS: Mapping[str, str] = {
    "screen.sequences": "requests list table rows",
    "screen.blocks": "kv cache memory pages prefix",
    "screen.timeline": "latency phases queued prefill decode",
    "screen.steps": "batch iterations scheduler tokens graph slow",
    "screen.checks": "errors problems wrong warnings alerts",
    "screen.overview": "bottleneck throughput charts kv slow preemptions speculative drafts",
    "screen.fleet": "ranks replicas fleet",
    "screen.block": "kv cache",
    "look.detail": "why explain request text parameters draft speculative acceptance",
    "look.waits": "why blocked stuck queue bottleneck deadlock holders",
    "look.latency": "ttft itl tpot e2e percentiles p99 slow",
    "look.slo": "objectives goodput ttft itl tpot",
    "look.part-after": "why slow ttft",
    "look.tokens": "logprobs probabilities",
    "look.misses": "kv cache hits",
    "look.copy": "export clipboard",
    "time.what-if": "advise advice bottleneck tune capacity predict",
    "time.compare": "difference ab",
    "time.mark": "compare difference",
    "time.step": "jump",
    "time.condition": "search when",
    "find.group": "lora tenants users",
    "find.filter": "find lora",
    "find.search": "find",
    "engine.submit": "send request",
    "engine.abort": "cancel kill stop",
    "engine.record": "export",
    "app.share": "export",
    "app.help": "keys",
}
"""Words that people type for a command, beside those of its title, by the id of its binding."""


class PaletteCommands(SystemCommandsProvider):
    """The app's commands, in the app's order until something is typed.

    Textual's own class lists them alphabetically, which puts what is seldom wanted first, and finds
    letters that are scattered over a title. Here each typed word has to begin a word of the title
    or one of `KEYWORDS`.
    """

    async def discover(self) -> Hits:
        for title, about, callback, is_listed in self.app.get_system_commands(self.screen):
            if is_listed:
                yield DiscoveryHit(title, callback, help=about)

    async def search(self, query: str) -> Hits:
        ids = {
            active.binding.tooltip or active.binding.description: active.binding.id
            for active in self.screen.active_bindings.values()
        }
        for title, about, callback, _ in self.app.get_system_commands(self.screen):
            keywords = KEYWORDS.get(ids.get(title) or "", "")
            if score := match(query, title, keywords):
                yield Hit(score, _marked(query, title), callback, help=about, text=title)


def match(query: str, title: str, keywords: str) -> float:
    """Returns how well a command matches what was typed: 0 for not at all, at most 1.

    Args:
        query: The typed words.
        title: The title of the command.
        keywords: Other words for the command.
    """
    typed = _words(query)
    in_title, others = _words(title), _words(keywords)
    total = 0.0
    for word in typed:
        if any(each == word for each in in_title):
            total += 1
        elif any(each == word for each in others):
            total += 0.9
        elif any(each.startswith(word) for each in in_title):
            total += 0.8
        elif any(each.startswith(word) for each in others):
            total += 0.7
        else:
            return 0.0
    return total / len(typed) if typed else 0.0


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def _marked(query: str, title: str) -> Content:
    """Returns the title, with the beginnings that were typed in bold."""
    content, typed = Content(title), _words(query)
    for found in _WORD.finditer(title):
        sizes = [len(word) for word in typed if found.group().lower().startswith(word)]
        if sizes:
            content = content.stylize("bold", found.start(), found.start() + max(sizes))
    return content
