"""The text before a story: the many things that a user may type as a prompt.

Whatever the prompt is, the model should go on with a story, and where it can, with one that picks
up a word of the prompt. So each lead-in names what the story must take over (``given``, see
`stories.cast.draw_cast`) and how the story may react to it (``bridges``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from engine_stub.train.stories import words
from engine_stub.train.stories.cast import invented_word
from engine_stub.train.stories.grammar import expand


@dataclass(frozen=True)
class LeadIn:
    """A prompt, the words that the story takes from it, and sentences that may follow it."""

    text: str
    given: dict[str, str] = field(default_factory=dict)
    bridges: tuple[str, ...] = ()
    opener: str = "\n\n"
    """The text between the prompt and the story."""


def draw_lead_in(rng: Random) -> LeadIn:
    """Draw a lead-in; its text is empty when the story simply begins."""
    kinds = tuple(_WEIGHTS)
    (kind,) = rng.choices(kinds, weights=[_WEIGHTS[kind] for kind in kinds])
    lead_in = kind(rng)
    if lead_in.text and rng.random() < 0.06:
        # Prompts that ramble: something else first, sometimes a lot of it.
        others = "\n".join(rng.choice(kinds)(rng).text for _ in range(rng.randint(1, 5)))
        lead_in = LeadIn(
            f"{others}\n{lead_in.text}", lead_in.given, lead_in.bridges, lead_in.opener
        )
    if lead_in.text and rng.random() < 0.08:
        # A newline or a space left standing at the end of a prompt is common.
        return LeadIn(
            f"{lead_in.text}{rng.choice((' ', chr(10)))}", lead_in.given, lead_in.bridges, ""
        )
    return lead_in


def _any_word(rng: Random) -> str:
    source = rng.random()
    if source < 0.4:
        return rng.choice(words.TOPICS)
    if source < 0.7:
        return invented_word(rng)
    return rng.choice(rng.choice((words.THINGS, words.ANIMALS)))


def _subject(rng: Random) -> tuple[str, dict[str, str]]:
    """Return a phrase such as "a fox and a lantern" and what it fixes in the cast."""
    kind = rng.choice((*words.ANIMALS, *words.GIRL_ROLES)) if rng.random() < 0.6 else _any_word(rng)
    item = rng.choice(words.THINGS) if rng.random() < 0.6 else _any_word(rng)
    name = (
        rng.choice(words.GIRLS + words.BOYS)
        if rng.random() < 0.5
        else invented_word(rng).capitalize()
    )
    place = rng.choice(words.PLACES)
    phrase, given = rng.choice(
        (
            (f"a {kind}", {"kind": kind}),
            (f"a {kind} called {name}", {"kind": kind, "name": name}),
            (f"{name} the {kind}", {"kind": kind, "name": name}),
            (f"a {kind} and a {item}", {"kind": kind, "item": item}),
            (f"a {kind} in {place}", {"kind": kind, "place": place}),
            (f"a {item}", {"item": item}),
            (f"the {item}", {"item": item}),
            (f"a lost {item}", {"item": item}),
            (f"{name}", {"name": name}),
            (f"{name} and the {item}", {"name": name, "item": item}),
            (f"{item}", {"item": item}),
            (f"{_number(rng)} {kind}s", {"kind": kind}),
        )
    )
    return expand(rng, "about {phrase}", {"phrase": phrase})[len("about ") :], given


def _number(rng: Random) -> str:
    return str(rng.choice((rng.randint(0, 12), rng.randint(0, 2100), rng.randint(0, 10**6))))


_REQUESTS = (
    "[Tell me|Please tell me|Can you tell me|Could you tell me] a [|short |long |funny |sad |new |bedtime ]story about {subject}[.|!||, please.]",
    "[Write|Write me|Invent|Make up|Give me|I want|I would like] a [|short |little |nice |strange ]story about {subject}[.||!]",
    "[A story|Something|A tale] about {subject}[, please||.]",
    "What do you know about {subject}?",
    "[Do you know|Have you heard] the [story|one] about {subject}?",
    "Let us talk about {subject}[.|]",
    "{subject}",
    "{subject}[?|!|...]",
)
_SPEAKERS = (
    ("User: ", "Bot:"), ("User: ", "Bot:"), ("User: ", "Bot:"), ("User: ", "Assistant:"),
    ("Human: ", "AI:"), ("Q: ", "A:"), ("<|user|>\n", "<|assistant|>\n"),
    ("### Instruction:\n", "### Response:\n"), ("Child: ", "Grandmother:"), ("Me: ", "You:"),
)  # fmt: skip
_RULES = (
    "You are a [|kind |patient |helpful |famous |wise ][storyteller|assistant|narrator|poet|robot|teacher][| for children| who loves a good {item}].",
    "[Answer|Reply|Always answer] with a [|short |long ]story.",
    "[Keep it short|Be kind|Be brief|Be honest|Do not use hard words|Do not lie|Never be rude|Think step by step].",
    "The [reader|listener|user|child] is {n} years old.",
    "[Never mention|Always mention|Do not forget] the {item}.",
    "Every story [has|needs] a beginning, a middle and an end.",
    "Write in [plain|simple|clear] [English|words|sentences].",
    "If you do not know something, [say so|tell a story|ask].",
    "The date is {n} {season}.",
    "You [were made|are running] in {place}.",
    "Here are the rules.",
    "You speak with [animals|travellers|engineers|visitors] who [are tired|like stories|cannot sleep].",
    "Use at most {n} [words|sentences|characters].",
    "Stay in character.",
)
_BOT_BRIDGES = (
    "[Gladly|Of course|With pleasure|Sure|Certainly|Yes]! [Here is one.|Here it comes.|Listen.|]",
    "[Let me think|One moment]. [Ah, yes.|I know one.]",
)


def _request(rng: Random) -> LeadIn:
    subject, given = _subject(rng)
    text = expand(rng, rng.choice(_REQUESTS), {"subject": subject})
    return LeadIn(text, given, _BOT_BRIDGES)


def _inner(rng: Random) -> LeadIn:
    """Return what a user may say within a dialogue."""
    return rng.choice((_request, _request, _request, _question, _greeting, _salad, _half_sentence))(
        rng
    )


def _dialogue(rng: Random) -> LeadIn:
    asked = _inner(rng)
    user, bot = rng.choice(_SPEAKERS)
    text = f"{user}{asked.text}\n{bot}"
    if rng.random() < 0.1:
        return LeadIn(text[: -len(bot) - 1], asked.given, asked.bridges, f"\n{bot.rstrip()} ")
    return LeadIn(text, asked.given, asked.bridges, "" if text.endswith("\n") else " ")


def _preamble(rng: Random) -> LeadIn:
    scope = {
        "item": rng.choice(words.THINGS), "n": _number(rng), "season": rng.choice(words.SEASONS),
        "place": rng.choice(words.PLACES),
    }  # fmt: skip
    rules = rng.sample(_RULES, k=rng.randint(1, 8))
    joined = rng.choice((" ", "\n", "\n- ")).join(expand(rng, rule, scope) for rule in rules)
    mark = rng.choice(("", "", "System: ", "<|system|>\n", "### System:\n"))
    asked = rng.choice((_dialogue, _dialogue, _request, _silence))(rng)
    gap = rng.choice(("\n", "\n\n"))
    opener = asked.opener if asked.text else ""
    return LeadIn(f"{mark}{joined}{gap}{asked.text}", asked.given, asked.bridges, opener)


def _question(rng: Random) -> LeadIn:
    word = _any_word(rng)
    text = expand(
        rng,
        rng.choice(
            (
                "What is [|a |the ][|capital of |meaning of |best |price of ]{word}?",
                "[How does|How do I|How can you|Why does|When does] {verb} [|a |the ]{word}[| in {other}| with {other}]?",
                "[Who|Where] is [|the |my ]{word}?",
                "Is {word} [better|bigger|older] than {other}?",
                "How [many|much] {word} [is|are there|do I need] [in {other}|for {n}]?",
                "[Can|Could|Will|Should] you {verb} [this|my|the|a] {word}?",
                "[Why|What|Who|When|Where] {word} {other}[?|]",
                "What is {n} [plus|times|minus|+|*] {n2}?",
                "Do you [like|know|see|speak] {word}?",
            )
        ),
        {
            "word": word, "other": _any_word(rng), "verb": rng.choice(words.VERBS),
            "n": _number(rng), "n2": _number(rng),
        },
    )  # fmt: skip
    bridges = (
        "[Good question|Hard to say|Nobody knows]. [But there is a story about it.|Let me tell you a story instead.]",
        '"[What a question|I wish I knew]!" {hero} said.',
        "That was what {hero} asked {friend} [every day|one {weekday}], and this is how they found out.",
    )
    return LeadIn(text, _pick_up(rng, word), bridges)


def _instruction(rng: Random) -> LeadIn:
    word = _any_word(rng)
    text = expand(
        rng,
        "[|Please |Now |Could you |I need you to ]{verb} [the|a|my|this|all the] {word}[| for {other}| in {other}| and {verb2} the {other}| with {n} {other}][.||!|:]",
        {
            "verb": rng.choice(words.VERBS), "verb2": rng.choice(words.VERBS), "word": word,
            "other": _any_word(rng), "n": _number(rng),
        },
    )  # fmt: skip
    bridges = (
        "[I will try|That is work for another day]. [But first, a story.|But listen to this.]",
        '"[That sounds like work|So much to do]," {hero} said.',
    )
    return LeadIn(text, _pick_up(rng, word), bridges)


def _greeting(rng: Random) -> LeadIn:
    name = (
        rng.choice(words.GIRLS + words.BOYS) if rng.random() < 0.6 else _any_word(rng).capitalize()
    )
    text = expand(
        rng,
        rng.choice(
            (
                "[Hello|Hi|Hey|Good morning|Good evening|hello|hi|Dear|Yo|Greetings][| there| you| world| everybody| {name}][.|!||,| :)]",
                "[Hello|Hi], [my name is|I am|this is] {name}[.||!]",
                "[How are you|How is it going|What is up|Are you there][| today|, {name}]?",
                "[Thanks|Thank you|Bye|Good night|ok|yes|no|test|testing|help|please][| {name}][.||!]",
            )
        ),
        {"name": name},
    )
    given = {"name": name} if name in text and name.isalpha() else {}
    bridges = (
        "[Hello|Good day|Welcome][| to you]! [Sit down and listen.|Here is a story.|I was just thinking of something.]",
        '"Hello!" said {friend}. "Hello," {hero} said.',
    )
    return LeadIn(text, given, bridges)


def _listing(rng: Random) -> LeadIn:
    items = [_any_word(rng) for _ in range(rng.randint(2, 12))]
    mark = rng.choice(("- ", "* ", "", "[ ] ", "1. "))
    lines = [
        f"{index}. {item}" if mark == "1. " else f"{mark}{item}"
        for index, item in enumerate(items, 1)
    ]
    if rng.random() < 0.4:
        lines = [f"{line} {_number(rng)}" for line in lines]
    head = rng.choice(("", "Shopping list:", "To do:", "Things to buy:", "Notes:", "Ingredients:"))
    if rng.random() < 0.3:
        body = ", ".join(items)
        text = f"{head} {body}".strip()
    else:
        text = "\n".join(([head] if head else []) + lines)
    bridges = (
        "[That was|This was] what stood on the [list|paper] that {hero} found {hidden}.",
        "{hero} read the list [twice|{n} times]. Then {he} [put it in {his} pocket|showed it to {friend}].",
        '{friend} looked at the list. "[All of that|Is that everything]?" {fhe} asked. "[Yes|And {snack}]!" {hero} said.',
    )
    return LeadIn(text, {"item": rng.choice(items)}, bridges)


def _code(rng: Random) -> LeadIn:
    first, second, third = (_any_word(rng) for _ in range(3))
    number = _number(rng)
    text = rng.choice(
        (
            f"def {first}({second}):\n    return {second} + {number}\n",
            f"def {first}(self, {second}, {third}):\n    if {second} is None:\n        raise ValueError({third})\n",
            f"import {first}\nfrom {second} import {third}\n\nprint({first}.{third}({number}))",
            f"for (int i = 0; i < {number}; i++) {{ {first}[i] = {second}; }}",
            f"function {first}() {{\n  return {second};\n}}",
            f'{{"{first}": {number}, "{second}": ["{third}", null]}}',
            f"SELECT {first} FROM {second} WHERE {third} = {number};",
            f"$ git {first} --{second}\n$ ls -la {third}",
            f"class {first.capitalize()}:\n    {second} = {number}\n    {third} = True\n",
            f'<div class="{first}"><p>{second} {third}</p></div>',
            f"#include <{first}.h>\nint main() {{ {second}({number}); }}",
            f"Traceback (most recent call last):\n  File \"{first}.py\", line {number}\nKeyError: '{second}'",
            f"https://www.{first}.com/{second}?{third}={number}",
            f"{first} = {second} * {number}",
            f"while True:\n    {first}()",
        )
    )
    bridges = (
        "[That was|This was] the spell that {hero} [read on an old stone|had learned by heart].",
        "So it stood on the [screen|paper], and {hero} [scratched {his} head|did not understand a word].",
        'The robot read these lines and said, "I would rather tell a story."',
    )
    return LeadIn(text, _pick_up(rng, first), bridges)


def _numbers(rng: Random) -> LeadIn:
    separator = rng.choice((" ", ", ", " + ", "-", "\n", " = ", ".", ":"))
    text = separator.join(_number(rng) for _ in range(rng.randint(1, 10)))
    bridges = (
        "{hero} counted [once more|on {his} fingers]. It was right.",
        "Those were the numbers on the door, and only {hero} knew what they meant.",
        '"[That is a lot|What a number]!" said {friend}.',
    )
    given = {"word": text} if separator not in text else {}
    return LeadIn(text, given, bridges)


def _salad(rng: Random) -> LeadIn:
    chosen = [
        _any_word(rng) if rng.random() < 0.5 else rng.choice(words.FILLER)
        for _ in range(rng.randint(2, 30))
    ]
    if rng.random() < 0.5:
        chosen[0] = chosen[0].capitalize()
    text = " ".join(chosen) + rng.choice(("", "", ".", "?", "!", " ..."))
    bridges = (
        '"[What strange words|I did not understand that]," {hero} said. "[Say it again|Is it a riddle]," said {friend}.',
        "Those were the words {hero} heard in a dream.",
        "[Be that as it may|That is how it began|It sounds odd, but it is true].",
    )
    return LeadIn(text, _pick_up(rng, max(chosen, key=len)), bridges)


def _few_words(rng: Random) -> LeadIn:
    word = _any_word(rng)
    text = rng.choice(
        (word, word, word.capitalize(), word.upper(), f"{_any_word(rng)} {word}", f"The {word}")
    )
    return LeadIn(text, _pick_up(rng, word))


def _half_sentence(rng: Random) -> LeadIn:
    word = _any_word(rng)
    text = expand(
        rng,
        "[I think|I wonder|Yesterday|My {word} is|In the end|The {word}|We should|It is|If you|Because of|He said that|Today|There is a|She has|Why not|Dear {word}, I|Breaking news:|According to|The quick brown|Chapter|In {n},] [the|a|my|this|{other}] {word}[| and the| of| is| was| that| has| {other}| {other} for|,]",
        {"word": word, "other": _any_word(rng), "n": _number(rng)},
    )
    bridges = (
        "... [But no|Well].",
        "... [But that is not how it began.|Let us begin at the beginning.]",
    )
    return LeadIn(text, _pick_up(rng, word), bridges, rng.choice(("\n\n", "", "")))


def _foreign(rng: Random) -> LeadIn:
    text = rng.choice(words.FOREIGN)
    bridges = (
        '"I do not know that language," {hero} said, "but it sounds like [a song|music|home]."',
        "That is how they [talk|say it] beyond {far}.",
    )
    return LeadIn(text + rng.choice(("", ".", "!", "?")), {}, bridges)


def _noise(rng: Random) -> LeadIn:
    """Return characters of any script, emoji included, that mean nothing."""
    planes = (
        (33, 126),
        (161, 591),
        (913, 1103),
        (0x3041, 0x30FF),
        (0x4E00, 0x9FFF),
        (0x1F300, 0x1F64F),
        (0x2190, 0x22FF),
    )
    first, last = rng.choice(planes)
    text = "".join(chr(rng.randint(first, last)) for _ in range(rng.randint(1, 24)))
    bridges = (
        "[Nobody could read it.|So it stood on the wall.] But {hero} [liked how it looked|was curious].",
        '"What does it say?" asked {friend}. "[I cannot read it|It is a secret]," {hero} said.',
    )
    return LeadIn(text, {}, bridges)


def _silence(rng: Random) -> LeadIn:
    del rng
    return LeadIn("", opener="")


def _pick_up(rng: Random, word: str) -> dict[str, str]:
    """Return one way in which a story may take over `word`."""
    if not word.isalpha() or word.lower() in _NO_NOUNS:
        return {"word": word}
    return rng.choice(({"item": word}, {"word": word}, {"kind": word}, {"name": word.capitalize()}))


_NO_NOUNS = frozenset((*words.FILLER, *words.VERBS))

_WEIGHTS: dict[Callable[[Random], LeadIn], float] = {
    _silence: 28,
    _dialogue: 18,
    _preamble: 10,
    _request: 9,
    _question: 6,
    _instruction: 4,
    _greeting: 4,
    _listing: 4,
    _code: 4,
    _numbers: 2,
    _salad: 3,
    _few_words: 4,
    _half_sentence: 3,
    _foreign: 2,
    _noise: 2,
}
