"""Plot skeletons: what can happen in a story, as templates for `stories.grammar`.

A plot is a list of beats in order; each beat offers alternatives of one or a few sentences. The
narrator may be the hero ("I"), so the hero never stands in a possessive other than ``{his}``,
verbs about the hero are in the past tense, and others address the hero by ``{name}``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Beat:
    """One thing that happens; `chance` is how likely a story of medium length tells it."""

    tellings: tuple[str, ...]
    chance: float = 1.0


@dataclass(frozen=True)
class Plot:
    """A sequence of beats with titles and morals that suit it."""

    name: str
    titles: tuple[str, ...]
    beats: tuple[Beat, ...]
    morals: tuple[str, ...]


def must(*tellings: str) -> Beat:
    """Return a beat that every telling of the plot needs."""
    return Beat(tellings)


def may(*tellings: str) -> Beat:
    """Return a beat that shorter tellings leave out."""
    return Beat(tellings, chance=0.5)


LOST_AND_FOUND = Plot(
    "lost and found",
    ("The Lost {item}", "Where Is the {item}?", "{name} and the {thing}", "The {thing}"),
    (
        must(
            "{hero} had a {thing}, and {he} [carried it everywhere|loved it more than anything|never went to sleep without it].",
            "the most precious thing {hero} had was a {thing}. [It had belonged to {his} grandmother.|It had been a gift from the {elder_kind}.|{friend} had given it to {him} in {season}.]",
            "on {his} birthday {hero} got a {thing}. [It was not big, but it was beautiful.|{he} could not stop looking at it.]",
        ),
        must(
            "but one [morning|evening|{weekday}] the {item} was gone. {hero} looked [in every corner|under the table and behind the door|everywhere], but {he} could not find it.",
            "then one day, [on the way home|after a long walk|in the middle of a game], {hero} put a hand in {his} pocket and the {item} was not there.",
            "one {weekday} {hero} woke up and [the {item} had disappeared|the {item} was missing]. {he} [sat down and cried|felt cold all over|did not know what to do].",
        ),
        must(
            '"[What is wrong|Why are you so sad|What happened], {name}?" asked {friend}. "I have lost my {item}," {hero} [said|whispered|answered]. "Then we will [look for it|find it] together," said {friend}.',
            '{friend} saw {him} searching in the grass. "Have you lost something?" {fhe} asked. "My {thing}," {hero} said. {friend} [rolled up {fhis} sleeves|nodded|did not wait a moment] and began to search too.',
            '{hero} told {friend} about the {item}. "Think," said {friend}. "Where did you have it last?" {hero} thought [very hard|for a long time], but {he} could not remember.',
        ),
        may(
            "first {they} looked [in the kitchen|by the well|under the old tree], but {they} only found a {colour} [sock|leaf|ribbon] and [three beetles|a sleeping cat|a rusty nail].",
            '{they} asked the {elder_kind}. "I have seen many things today," said the {elder_kind}, "but I have not seen a {item}."',
            "{they} walked all the way to {far} and back. {they} looked [left and right|up and down], and {friend} even looked [in the stream|up in the trees].",
        ),
        may(
            'it began to [get dark|rain], and {hero} wanted to give up. {friend} [took {his} hand|shook {fhis} head]. "Just one more place," {fhe} said.',
            '"Maybe somebody took it," {hero} said. "Maybe," said {friend}, "but [maybe it is only hiding|I think it is waiting for us]."',
        ),
        must(
            "then {friend} [laughed|shouted|jumped up]. There, {hidden}, [lay the {thing}|something was shining]. It was the {item}!",
            "at last {hero} looked {hidden}. [And there it was|There lay the {item}], a little dusty but not broken.",
            'suddenly the {elder_kind} came along the path. "Is this yours?" {ehe} asked, and held up the {thing}. "I found it {hidden}."',
        ),
        must(
            "{hero} [hugged {friend}|danced around {friend}] and held the {item} tight. [From then on {he} took better care of it.|That night {he} put it beside {his} pillow.]",
            '"Thank you," {hero} said. {he} was so happy that {he} gave {friend} [half of {his} {snack}|the biggest piece of {dish}]. The {item} never got lost again.',
            "{hero} tied the {item} to a {colour} string and wore it around {his} neck. {friend} smiled, and {they} walked home together.",
        ),
    ),
    (
        "What is lost is often closer than we think.",
        "Four eyes see more than two.",
        "Take care of the things you love.",
    ),
)

QUEST = Plot(
    "quest",
    ("The Road to {far}", "{name} Goes to {far}", "A Long Way", "The {thing} of {far}"),
    (
        must(
            "{hero} had one great wish: {wish}.",
            "more than anything, {hero} wanted {wish}.",
            "every night {hero} [lay awake|looked out of the window] and dreamed. {he} wanted {wish}.",
        ),
        must(
            '"You must go to {far}," said the {elder_kind}. "There you will find a {thing}. It [can grant a wish|will show you the way|knows the answer]."',
            "one day a {elder_kind} told {him} about a {thing}. It was kept at {far}, and [nobody had ever brought it back|whoever held it could make one wish].",
            'in an old book {hero} read about a {thing}. "It lies {hidden}, near {far}," said the book. "[Only a brave heart|Only a friend] can find it."',
        ),
        must(
            'so {hero} packed [some {snack}|{snack} and a blanket] and set out. {friend} [came along|would not stay behind|ran after {him}]. "[I am coming too|You need somebody to talk to]," said {friend}.',
            'the next morning {friend} and {hero} [left before the sun was up|said goodbye and began to walk]. "[Are you afraid|Is it far]?" asked {friend}. "A little," {hero} said.',
        ),
        may(
            "{they} walked for {n} days. {they} crossed {n} [rivers|hills|bridges], and at night {they} slept under the stars.",
            'on the way {they} met a {elder_kind} [who was hungry|who was cold|who had hurt a foot]. {hero} [shared {his} {snack}|gave {ehim} {his} scarf]. "You are kind," said the {elder_kind}. "[Remember this word|Here is a secret word]: {word}."',
            "the road was [long and stony|steep and narrow]. {friend} sang [a funny song|a song about {snack}], and that made it shorter.",
        ),
        must(
            'but before {far} there was a [deep river|high wall|gate without a handle]. {hero} tried to [climb over|go around|push], but it was no use. Then {friend} said, "[Let us do it together|Look, there is another way]."',
            'at last {they} came to {far}. A [great lion|giant|dragon] stood in the way. "Nobody may pass," it said, "unless you [tell me a story|make me laugh|answer a riddle]." {hero} [thought for a while|took a deep breath] and [told the best one {he} knew|did it].',
            'near {far} the fog came down and {they} [lost the path|could not see a thing]. "Hold my hand," {hero} said to {friend}. Step by step {they} went on until the air was clear.',
        ),
        must(
            "and there, {hidden}, lay the {thing}. {hero} [picked it up|held it to the light] and felt [warm|brave|light as a feather].",
            "behind a little door {they} found the {thing}. It was [smaller than {hero} had thought|covered with dust], but it [shone like the moon|hummed softly].",
        ),
        must(
            "{hero} closed {his} eyes and wished, and the wish came true. [Nobody in {place} believed it, but {friend} knew.|All the way home {he} could not stop smiling.]",
            'then {hero} laughed. "I wanted {wish}," {he} said, "but the best part was walking with you." {friend} [laughed too|turned red].',
            "when {they} came home, [everybody wanted to hear the story|there was a feast with {dish}]. {hero} put the {item} on the shelf, [and it shines there still|where everybody could see it].",
        ),
    ),
    (
        "The longest road begins with one step.",
        "A road is shorter with a friend.",
        "Kindness opens doors that keys cannot.",
    ),
)

QUARREL = Plot(
    "quarrel",
    ("The Quarrel", "Two Friends and One {item}", "{name} and {friend}", "Sorry"),
    (
        must(
            "{friend} and {hero} were best friends. {they} [did everything together|played together every day|lived next door to each other].",
            "nobody had ever seen {friend} without {him}. {they} [shared everything|laughed at the same jokes].",
        ),
        must(
            'one {weekday} {they} found a {thing} {hidden}. "It is mine," {hero} said. "I saw it first!" "No, it is mine," said {friend}. [{they} pulled and pulled.|{they} both held on to it.]',
            'one day {friend} [borrowed|took] the {thing} without asking. When {hero} saw it, {he} [was very angry|turned red]. "You are a thief!" {he} shouted.',
            'one afternoon {they} were making {dish}. "[More sugar|More salt]!" said {friend}. "No, [less|not so much]!" {hero} said. Soon {they} were shouting about everything, even about the {thing} on the shelf.',
        ),
        must(
            '{friend} [slammed the door|ran away|turned around] and went home. {hero} sat down [under a tree|on a stone|on the floor] and said, "I do not need {fhim}."',
            '"I will never speak to you again," said {friend}. "Good," {hero} said. And for {n} days {they} did not say a word.',
        ),
        may(
            "but the days were long. The {snack} tasted of nothing, and [games were no fun alone|there was nobody to laugh with].",
            "{hero} tried to play alone with the {item}, but it was [boring|not the same]. {he} kept thinking of {friend}.",
            "it was {season}, and outside [the wind sang|the rain fell softly]. {hero} looked at {friend}'s window. There was a light in it.",
        ),
        must(
            'the {elder_kind} saw {him} sitting there. "A {item} is a small thing," {ehe} said, "and a friend is a big one." {hero} [thought about that|said nothing for a while].',
            "then {hero} had an idea. {he} [baked some {dish}|wrote a letter|took the {item}] and went to {friend}'s door. {his} heart beat fast.",
            "in the night there was a storm. {hero} heard somebody call for help. It was {friend}! {he} [did not think about the quarrel at all|ran out into the rain at once].",
        ),
        must(
            '"I am sorry," {hero} said. "I am sorry too," said {friend}. [{they} looked at each other and began to laugh.|Then {they} both talked at the same time.]',
            '"Please forgive me," {hero} said [softly|at last]. {friend} [smiled|opened {fhis} arms]. "I missed you," {fhe} said.',
        ),
        must(
            "from that day on the {item} belonged to both of {them}: [on Mondays to one and on Tuesdays to the other|one week here and one week there].",
            "{they} put the {item} [on the wall|in the middle of the table], so that both could see it. [And then {they} ate {snack} until it was dark.|It stayed there for years.]",
            "after that {they} still quarrelled now and then, but never for longer than [an hour|a cup of tea].",
        ),
    ),
    (
        "A friend is worth more than being right.",
        "It takes courage to say sorry.",
        "What is shared is never lost.",
    ),
)

INVENTION = Plot(
    "invention",
    ("{name} the Inventor", "The Machine", "An Idea at Night", "How {name} Built It"),
    (
        must(
            "{hero} liked to build things. {his} room was full of [screws and springs|wheels and wires|string and glue].",
            "one night {hero} could not sleep because {he} had an idea. {he} wanted to build {invention}.",
            "{hero} [hated hard work|was always late|liked to be comfortable], so {he} decided to invent {invention}.",
        ),
        must(
            "{he} took [an old wheel|a kitchen pot|a broken clock], {n} [nails|buttons|springs] and a {thing}, and started to work. [Bang, bang, bang went the hammer.|The light burned in {his} window all night.]",
            'for {n} days {hero} [hammered and sawed|drew and measured]. {friend} [brought {snack}|held the lamp]. "What will it be?" asked {friend}. "{invention}!" {hero} said.',
        ),
        must(
            "at last the {device} was ready. {hero} pulled the {colour} lever. It [coughed|shook|whistled], and then [it fell apart|it ran out of the door|there was a loud bang].",
            'everybody in {place} came to look. {hero} pressed the button. Nothing happened. Somebody [laughed|giggled]. "It will never work," said the {elder_kind}.',
            "the first time, it went [backwards|much too fast|up in smoke]. {hero} ended up {hidden}, with [soot on {his} nose|a {colour} bruise].",
        ),
        must(
            '"Do not give up," said {friend}. "[What if you turn this part around|Maybe it needs oil|Maybe it only wants a friendly word]?" {hero} looked at the {device} [again|from all sides].',
            '{hero} wanted to throw it all away. But {friend} picked up the {thing} and [put it in the middle|held it up]. "You forgot this," {fhe} said.',
            "{hero} sat down and thought. Then {he} saw it: the {item} was [upside down|in the wrong place]!",
        ),
        may(
            "{they} tried once. {they} tried twice. {they} tried {n} times. Each time it went a little better.",
            '"One more time," {hero} said. {friend} [crossed {fhis} fingers|closed {fhis} eyes|stood a little further away].',
        ),
        must(
            "this time it [hummed|purred like a cat] and it worked! {friend} [clapped|threw {fhis} hat in the air], and the whole of {place} heard about it before supper.",
            "and it worked. It really was {invention}! The {elder_kind} [took off {ehis} hat|wanted one too].",
        ),
        must(
            "{hero} built one for {friend} as well. [The {item} is still inside.|{they} painted it {colour}.]",
            "soon everybody wanted one. But {hero} was already thinking about something new: {another_invention}.",
            "later {hero} used it every day, except on {weekday}s, when it had to rest.",
        ),
    ),
    (
        "Every mistake is a step.",
        "Whoever tries again has not failed.",
        "Good ideas need patience.",
    ),
)

STRANGER = Plot(
    "stranger",
    ("The Stranger", "A Knock at the Door", "The Guest", "Who Is There?"),
    (
        must(
            "one {season} evening there was a knock at the door. Outside stood a {elder_kind}, [wet and tired|covered with dust|with a {colour} sack].",
            "one {weekday} a stranger came to {place}. It was a {elder_kind} with a {thing}. [Nobody knew where {ehe} came from.|Dogs barked and windows closed.]",
        ),
        must(
            '"May I [come in|stay for one night|sit by your fire]?" asked the {elder_kind}. {hero} [was a little afraid|looked at {friend}]. "[Yes|Of course]," {he} said, "there is {snack} on the table."',
            'nobody wanted to let {ehim} in. "We do not know you," they said. Only {hero} [opened the door|went up to {ehim}]. "You can sit with me," {he} said.',
        ),
        may(
            "the {elder_kind} ate [slowly|everything] and told {them} about {far}, where [the snow is {colour}|the birds can talk|the houses have wheels].",
            '{friend} whispered, "I do not trust {ehim}. What is in that bag?" "Wait and see," {hero} said.',
            "the {elder_kind} did not say much, but {ehe} [mended the roof|chopped the wood|played with the children] and smiled.",
        ),
        must(
            'in the morning the {elder_kind} was gone. On the table lay a {thing} and a note. The note said, "{word}."',
            'before {ehe} left, the {elder_kind} gave {him} a {thing}. "When you are in trouble, hold it and say {word}," {ehe} said.',
        ),
        must(
            'soon after that, trouble came. [The river rose|The well ran dry|A great storm blew], and [everybody was afraid|nobody knew what to do]. {hero} remembered the {item}. {he} held it up and said, "{word}!"',
            'for a long time nothing happened. Then one night {friend} got [lost|very ill]. {hero} took the {item} and [whispered|said] the word: "{word}."',
        ),
        must(
            "the {item} began to glow. [The water went back|A warm wind came|A path of light opened], and all was well again.",
            'there was a sound like [bells|a soft laugh], and the {elder_kind} stood there again. "You shared with me," {ehe} said, "so now I [share with you|help you]."',
        ),
        must(
            "after that, every stranger who came to {place} was given {snack} and a chair by the fire.",
            '"I was wrong about {ehim}," said {friend}. {hero} [smiled|only nodded] and put a lamp in the window, [for the next guest|just in case].',
            "the {elder_kind} never came back, but each {season} somebody leaves [a flower|a bag of nuts] at {his} door.",
        ),
    ),
    (
        "An open door brings luck.",
        "Kindness comes back.",
        "Do not judge a guest by the coat.",
    ),
)

WEATHER = Plot(
    "weather",
    ("The Great Storm", "When the {weather} Came", "No More {weather}", "The Cloud"),
    (
        must(
            "that {season} the {weather} came and did not stop. It went on for {n} days and {n} nights.",
            "one {weekday} the {weather} was stronger than ever. [The roofs shook.|The trees bent down to the ground.|Nobody could see a hand before their eyes.]",
        ),
        must(
            '"{friend} is still out there!" somebody cried. {hero} [put on {his} coat|took the {thing}] and ran outside.',
            '"If this goes on, [the bridge will break|we will have nothing to eat|the mill will fall down]," said {friend}. "Somebody must do something." Everybody looked at {him}.',
            "{friend} and {hero} had to stay inside. First {they} played, then {they} told stories, and then [{they} were out of {snack}|the lamp went out].",
        ),
        may(
            "{he} could hardly walk. {he} held on to [a fence|the trees] and shouted, but the {weather} was louder.",
            '{they} climbed up to {far} to ask the {elder_kind}. "The {weather} is only [sad|lonely|angry because nobody thanks it]," {ehe} said. "Sing to it."',
        ),
        must(
            "then {hero} had an idea. {he} [lit the {thing}|tied a rope around the {thing}|held up the {thing}], so that [everybody could see it from far away|nobody would get lost].",
            '{hero} stood on the hill and [sang|called out]: "{weather}, {weather}, go to sleep! [The night is long, the sea is deep|The hills are high, the snow is deep]." [And the wind listened.|For a moment all was quiet.]',
            "so they all worked together. [They carried stones and sacks of sand|They held hands and made a long chain], and the smallest of them, {hero}, went first.",
        ),
        must(
            "slowly, very slowly, the sky grew [light|blue]. {friend} came [out of the mist|down the path], wet but [laughing|safe].",
            "in the morning the {weather} was over. A [rainbow|pale sun] stood above {place}, and [every drop shone|the birds began to sing].",
        ),
        must(
            "{they} all sat down and ate {dish} together. {hero} fell asleep [at the table|with the spoon in {his} hand].",
            "the {item} [hangs over the door|stands by the window] to this day, and when the {weather} comes, nobody is afraid.",
            '"Were you not afraid?" asked {friend}. "[I was|Very much]," {hero} said, "but [you were out there|I thought about tomorrow]."',
        ),
    ),
    (
        "After every storm comes a morning.",
        "Together we are stronger than the wind.",
        "Being brave means being afraid and going on.",
    ),
)

CONTEST = Plot(
    "contest",
    ("The Contest", "{name} Wants to Win", "The Prize", "First and Last"),
    (
        must(
            "every {season} there was {contest} in {place}. The prize was a {thing}, and {hero} wanted it badly.",
            'a notice hung on the wall: "On {weekday} there will be {contest}. The winner gets a {thing}." {hero} read it [twice|{n} times].',
        ),
        must(
            '{friend} wanted to win too. "May the better one win," said {friend}, and {they} shook hands.',
            '"You? You are much too [small|slow|{trait}]," [laughed|said] the {elder_kind}. {hero} [said nothing|went home quietly], but {he} practised every day.',
            "{hero} practised in the morning and in the evening. {friend} helped {him} and counted [the minutes|the mistakes].",
        ),
        must(
            "then the day came. [Flags were flying|Drums were beating|There were {snack} for everybody], and {n} [others|strangers] had come to take part.",
            'when the bell rang, {hero} [felt {his} knees shake|took a deep breath]. "[Good luck|You can do it], {name}!" called {friend}.',
        ),
        must(
            "at first all went well, and {hero} was [in front|doing better than ever]. But then {he} saw that {friend} had [fallen|hurt {fhis} foot]. {hero} looked at the {item}, and {he} looked at {friend}. Then {he} turned back.",
            "at first {he} was last. The others [laughed|were already far ahead]. But {hero} did not stop, and one after another [they grew tired|they gave up].",
            "somebody cheated. It was the {elder_kind}! {ehe} had hidden [a helper|the answer] {hidden}. {hero} saw it, but {he} only tried harder.",
        ),
        must(
            "in the end {hero} did not win, but [everybody clapped for {him}|nobody clapped louder than {friend}]. The winner came over and [gave {him} the {item}|shook {his} hand].",
            "and so {hero} won! {he} held up the {item}, and {friend} [jumped for joy|carried {him} around {place}].",
            'the judges whispered. Then one of them said, "The prize goes to {name}, [for a good heart|who never gave up]."',
        ),
        must(
            "that evening {they} cut the {dish} into two pieces, and {hero} gave {friend} the bigger one.",
            "{hero} put the {item} on the window sill. [It reminds {him} of that day.|But {he} looked at it less often than at {friend}.]",
        ),
    ),
    (
        "A good heart wins more than quick feet.",
        "Slow and steady goes far.",
        "Some prizes cannot be carried home.",
    ),
)

SECRET = Plot(
    "secret",
    ("The Secret", "Do Not Tell", "The Secret of {far}", "Behind the Door"),
    (
        must(
            "{hero} had a secret. Nobody knew about it, not even {friend}. {hidden}, {he} kept a {thing}.",
            "one {weekday} {hero} found a little door {hidden}. It was locked, and on it stood a single word: {word}.",
        ),
        must(
            '"[What are you hiding|Where do you go every evening]?" asked {friend}. "Nothing," {hero} said. But {his} ears [turned red|were hot].',
            "{friend} noticed that something was going on. {fhe} followed {him} [on tiptoe|through the grass|at night].",
        ),
        must(
            'in the end {hero} could not keep it any longer. "Promise not to tell," {he} said. "I promise," said {friend}. Then {hero} showed {fhim} the {item}.',
            '{hero} turned around, and there stood {friend}. "So this is it!" {fhe} said. "A {thing}! Why did you not tell me?" "I was afraid you would laugh," {hero} said.',
        ),
        may(
            'when you held the {item} to your ear, you could hear [the sea|a far song|somebody breathing]. It said, "{word}, {word}."',
            "the {item} was no common {item}. At night it [glowed {colour}|sang|grew warm], and whoever held it could understand the {animals}.",
        ),
        must(
            'but the {elder_kind} had been listening. "That {item} belongs to {far}," {ehe} said. "It has been missing for {n} years." {hero} grew very quiet.',
            'the next day everybody in {place} was talking about it. {hero} was [sad|angry]. "You told {them}!" {he} said. "No," said {friend}, "[it was the wind|I swear it was not me]." And it was true: [a parrot had heard {them}|{hero} had been talking in {his} sleep].',
        ),
        must(
            '{friend} and {hero} took the {item} back to {far}. [A light went on in the window.|A door opened.] "Thank you," said a voice. "Now I can sleep."',
            "so {hero} showed it to everybody. Nobody laughed. [Some of them had tears in their eyes.|They only asked if they might hold it once.]",
        ),
        must(
            "now {friend} and {hero} had a secret together, and that [was twice as nice|weighs only half as much].",
            '"Do you have any more secrets?" asked {friend}. "Only one," {hero} said. "But [that is another story|I will tell you tomorrow]."',
        ),
    ),
    (
        "A shared secret is lighter.",
        "Whoever trusts finds friends.",
        "What belongs to another brings no luck.",
    ),
)

BAKING = Plot(
    "baking",
    ("Too Much {dish}", "The {dish}", "{name} in the Kitchen", "A Pinch of Salt"),
    (
        must(
            "it was {friend}'s birthday, and {hero} wanted to make {dish}. {he} had never done it before.",
            'guests were coming, {n} of them, and there was nothing in the house but {snack}. "I will make {dish}," {hero} said.',
            '{hero} found an old recipe for {dish} {hidden}. "[Take what you have|Stir it with love]," it said, and the rest was smudged.',
        ),
        must(
            "{he} took flour, {n} eggs and a spoon of [sugar|honey]. But [the sugar was salt|the honey was soap|the spoon was as big as a shovel].",
            "{he} stirred and stirred. Then {he} put in a little of the powder from the {thing}. [It smelled of {season}.|It fizzed.]",
        ),
        must(
            'the dough grew and grew. It [climbed over the bowl|lifted the lid|filled the kitchen] and [crept out of the door|ran down the steps]. "Help!" {hero} cried.',
            "soon there was a smell of smoke. {hero} opened the oven, and out came something as [black as coal|hard as a stone|flat as a plate].",
        ),
        must(
            '{friend} came running. "What is that?" {fhe} asked. "It was going to be {dish}," {hero} said [sadly|in a small voice].',
            'the {elder_kind} looked through the window. "[Too hot and too fast|You forgot to read to the end]," {ehe} said. "Come, I will show you."',
        ),
        may(
            "{they} began again. One of them measured and the other one stirred, and [{they} got flour in their hair|nobody was in a hurry].",
            "they called everybody in {place}. They came with spoons, with {snack} and with good advice.",
        ),
        must(
            "and in the end there was {dish} for all of {place}. Everybody ate until they could not move. [Even the {elder_kind} asked for more.|There was a bit left over for the birds.]",
            "the second {dish} was [round and golden|not pretty, but it tasted wonderful]. {friend} ate {n} pieces.",
        ),
        must(
            '"Next time," said {friend}, "we will start with [soup|something smaller]." And {they} laughed and washed the dishes.',
            '{hero} wrote on the recipe: "[Not so much powder|Look twice before you stir|Wait]!" and put it back {hidden}.',
        ),
    ),
    (
        "Patience is the best spice.",
        "Even a burnt cake can make a good day.",
        "Read to the end before you begin.",
    ),
)

NIGHT = Plot(
    "night journey",
    ("A Night at {far}", "The Light in the Dark", "Under the Moon", "{name} Cannot Sleep"),
    (
        must(
            "one night {hero} could not sleep. [The moon was too bright.|Something was tapping at the window.] {he} got up and went outside.",
            "in the middle of the night {hero} heard a sound. It was [soft|sad|like somebody singing], and it came from {far}.",
        ),
        must(
            'outside sat {friend}. "You hear it too?" {fhe} whispered. "Yes," {hero} said. "[Let us go and see|It sounds like a {item}]."',
            '{he} took a {thing} and woke {friend}. "Come," {he} whispered, "I want to show you something."',
        ),
        must(
            "{they} went through {place}, past the sleeping houses. [{their} shadows were long.|Only a cat saw them.] The grass was [cold and wet|silver].",
            'it was so dark that {they} held hands. "What was that?" asked {friend}. "[Only an owl|Only the wind|Only my stomach]," {hero} said.',
        ),
        may(
            "a [shooting star|bat|white moth] flew over them. {they} stood still and [made a wish|watched it go].",
            '"Tell me something," said {friend}, "so that I am not afraid." So {hero} told {fhim} about {wish_about}.',
        ),
        must(
            'at {far} {they} saw a light. Around a small fire sat the {elder_kind} and {n} [mice|little people|fireflies], and they were [singing|dancing]. "We have been waiting for you," said the {elder_kind}.',
            'at {far} sat a {elder_kind}, all alone, and cried. "I have lost the [way home|stars|song]," {ehe} said. "Without it the night cannot end."',
            "then {they} saw it: the moon had fallen down! It lay {hidden}, no bigger than a {item}, and [shivered|shone sadly].",
        ),
        must(
            '{hero} held up the {thing}, and [it grew light|everything began to glow]. "Oh!" said {friend}. {they} [sang|danced|laughed] until the stars grew pale.',
            "{hero} knew what to do. {he} [took it in both hands|climbed onto {friend}'s shoulders|threw it as high as {he} could], and [up it went|the sky was bright again].",
        ),
        must(
            'in the morning {hero} woke up in {his} own bed. "Was it a dream?" {he} asked. But [there was grass on {his} feet|in {his} hand was a {thing}|{friend} was yawning too].',
            "{they} came home when the sun rose. {they} never told anybody, but sometimes, [at full moon|when the night is clear], {they} [look at each other and smile|go back].",
        ),
    ),
    (
        "The dark is full of small lights.",
        "Nobody is alone who has a friend awake.",
        "Not every night is made for sleeping.",
    ),
)

RESCUE = Plot(
    "rescue",
    ("Help for {friend}", "The Rescue", "{name} to the Rescue", "A Call for Help"),
    (
        must(
            'one {weekday} {hero} heard a cry. "Help! Help!" It came from {far}.',
            "{friend} did not come to play that day. {hero} waited [an hour|until noon], and then {he} went to look for {fhim}.",
        ),
        must(
            "it was {friend}. {fhe} had [fallen into a deep hole|been caught in a net|climbed too high] and could not get [out|free|down].",
            'there sat {friend} in the middle of the [river|marsh|ice], on a very small stone. "I only wanted the {thing}," {fhe} said, "and now I cannot get back."',
        ),
        must(
            '"Hold on!" {hero} called. {he} pulled with all {his} strength, but {he} was not strong enough.',
            "{hero} tried [a branch|a rope|{his} long scarf], but it [broke|was too short]. {friend} began to [cry|shiver].",
        ),
        must(
            'so {hero} ran to get help. {he} asked the {elder_kind}, who [was busy|was asleep|had no time]. {he} asked {n} [ants|neighbours], and they said, "[We are small, but we are many|Of course we will come]."',
            "{he} looked around and saw a {thing}. {hero} had an idea! {he} [tied it to the rope|used it as a hook|put it under a big stone].",
            'the {elder_kind} came by. "Why pull," {ehe} said, "when you can think?" {hero} stopped and thought.',
        ),
        must(
            "one, two, three, and with a loud [plop|snap|splash] {friend} was free! {they} both [fell over|rolled in the grass] and laughed.",
            "little by little, with [everybody pulling|the help of the {item}], {friend} came [up|out|closer], until {hero} could take {fhis} hand.",
        ),
        must(
            '"You saved me," said {friend}. "You would do the same," {hero} said. [And it was true: the next {season} {fhe} did.|{they} shared {snack} and were quiet for a while.]',
            '{friend} gave {him} the {thing}. "It is not much," {fhe} said. But for {him} it was [more than enough|the finest thing in {place}].',
        ),
    ),
    (
        "Small helpers can do great things.",
        "Think first, then pull.",
        "A friend in need finds friends indeed.",
    ),
)

QUESTION = Plot(
    "question",
    ("The Big Question", "Why?", "{name} Asks", "What Does {word} Mean?"),
    (
        must(
            'one day {hero} heard a word that nobody could explain: "{word}." {he} thought about it all day.',
            "{hero} asked questions all day long. But there was one that nobody in {place} could answer: [what is {word}|what does {word} mean|who made {word}]?",
        ),
        must(
            '{he} asked {friend} first. "{word}?" said {friend}. "I think it is something to eat, like {snack}." But {fhe} was not sure.',
            '"{word} is a kind of {item}," said {friend}, who [always knew everything|did not like to say no]. {hero} did not believe {fhim}.',
        ),
        must(
            'then {they} asked the {elder_kind}. "When I was young, everybody knew {word}," {ehe} said. "It is [a place near {far}|what you say to somebody you like|the name of a star]. I think."',
            'the {elder_kind} scratched {ehis} head. "Go to {far}," {ehe} said. "There is a {thing} with something written on it."',
        ),
        may(
            "{they} asked a [baker|soldier|child], and {they} asked the {animals}. Everybody said something different.",
            "{they} looked in {n} books. In the first there were only [numbers|maps], and the last one had been eaten by mice.",
        ),
        must(
            'at {far} {they} found a {thing}. On it somebody had written: "{word} is what you have been looking for together."',
            'in the evening {they} sat on a wall, tired and happy, and ate {snack}. "Maybe," {hero} said slowly, "maybe this is {word}."',
        ),
        must(
            'From that day on {they} said "{word}" whenever [{they} were happy|something was good], and soon all of {place} said it too.',
            '{friend} laughed. "Then we have had it all day," {fhe} said. [And {they} had.|The moon came up over {place}.]',
        ),
    ),
    (
        "A good question is worth a long walk.",
        "Some answers have to be lived.",
        "Ask, and you will see the world.",
    ),
)

GIFT = Plot(
    "gift",
    ("The Gift", "A {thing} for {friend}", "What {friend} Wanted", "The Best Present"),
    (
        must(
            "tomorrow was {friend}'s birthday, and {hero} had no present yet. {his} pockets were empty [except for a button|as the moon].",
            "{hero} wanted to give {friend} something. It had to be [the best present in the world|better than {dish}].",
        ),
        must(
            'in the market there was a {thing}. "It costs {n} coins," said the {elder_kind}. {hero} had only [one|two].',
            '"What does {friend} like?" {he} asked the {elder_kind}. "{fhe} once saw a {thing} at {far}," {ehe} said, "and has talked about it ever since."',
        ),
        must(
            "so {hero} worked. {he} [swept the street|carried water|picked apples|washed {n} windows] from morning until evening.",
            "{hero} traded [{his} hat for a rope|{his} kite for a wheel], and the [rope|wheel] for a [goose|jar of honey], and at last that for the {item}.",
        ),
        may(
            "on the way home [a beggar|a small bird|a child] was crying. {hero} [could not walk past|gave away half of what {he} had]. Now there was even less.",
            "but on the way home {he} stumbled, and the {item} [got a crack|fell in the mud]. {hero} could have cried.",
        ),
        must(
            '{hero} wrapped it in {colour} paper and knocked at {friend}\'s door. "It is only a small thing," {he} said.',
            'on the day itself {hero} stood there with [red ears|empty hands]. "I wanted to bring you a {thing}," {he} said, and told the whole story.',
        ),
        must(
            '{friend} [was quiet for a moment|opened {fhis} eyes wide]. "Nobody ever [did so much|walked so far] for me," {fhe} said. "That is the best present."',
            "{friend} laughed out loud. {fhe} had bought the same {thing} for {him}! Now {they} had two, [one each|one for each pocket].",
        ),
        must(
            "then there was {dish}, and {they} [sang|danced|told stories] until midnight.",
            "the {item} is old now, but {friend} still [has it|shows it to everybody].",
        ),
    ),
    (
        "It is not the price that makes a gift.",
        "Time is the best present.",
        "Giving makes two people happy.",
    ),
)

VISITOR_ANIMAL = Plot(
    "small creature",
    (
        "The Small {animal}",
        "{name} and the {animal}",
        "Someone Very Small",
        "The {animal} That Stayed",
    ),
    (
        must(
            "one {weekday} {hero} found a very small {animal} {hidden}. It was [cold|hungry|hurt] and looked at {him} with big eyes.",
            "there was something {hidden}. It moved. It was a small {animal}, and it [was all alone|had a broken leg|had lost its mother].",
        ),
        must(
            "{hero} wrapped it in a {colour} scarf and gave it {snack}. It [sneezed|squeaked|fell asleep at once].",
            '"May I keep it?" {hero} asked. "Only until it is well again," said the {elder_kind}. "A {animal} belongs outside."',
        ),
        may(
            "{they} called it {word}. It [slept in a shoe|hid the {thing}|ate the curtains], and it followed {him} everywhere.",
            "{friend} came every day to see it. {fhe} [taught it to dance|built it a little house|told it stories].",
        ),
        must(
            "as the weeks went by the {animal} grew. It grew and grew, until it [did not fit through the door|was as big as a wagon|ate {n} loaves a day].",
            'when {season} came, the {animal} stood at the window and looked out. It did not eat. "It wants to go home," said {friend}.',
        ),
        must(
            "{hero} did not want to let it go. {he} [cried a little|could not sleep]. But in the morning {he} opened the door [wide|and stepped aside].",
            'so {they} took it to {far}. "Go," {hero} said softly. The {animal} [looked back once|put its nose in {his} hand] and was gone.',
        ),
        must(
            "each {season} the {animal} came back, with [{n} little ones|a {thing} for {him}], and stayed [for a day|until the moon was full].",
            "sometimes, at night, {hero} [heard it call|saw two eyes in the dark]. Then {he} waved, and {friend} waved too.",
        ),
    ),
    (
        "Loving means letting go.",
        "Whatever you care for stays with you.",
        "Small guests leave large footprints.",
    ),
)

PLOTS = (
    LOST_AND_FOUND,
    QUEST,
    QUARREL,
    INVENTION,
    STRANGER,
    WEATHER,
    CONTEST,
    SECRET,
    BAKING,
    NIGHT,
    RESCUE,
    QUESTION,
    GIFT,
    VISITOR_ANIMAL,
)

OPENINGS = (
    "Once upon a time, in {place}, there [lived|was] {intro}. [Next door lived {fintro}.|{his} best friend was {fintro}.|{he} had a friend called {friend}, a {fkind}.]",
    "Once upon a time there was {intro}. {he} lived in [a small house|a {colour} house|an old tower] [near|not far from] {place}, and {his} friend {friend}, a {ftrait} {fkind}, lived close by.",
    "In {place} lived {intro}. [Everybody knew {him}.|{he} was not like the others.] {his} [best|only] friend was {fintro}.",
    "There was once {intro} who had a friend, {fintro}.",
    "A long time ago, when [wishes still came true|animals could talk|the world was young], {intro} lived in {place} with {fintro}.",
    "It was a [cold|bright|quiet|windy] {season} [morning|evening|day] in {place}. {hero} was {intro_bare}, and {friend} was {fintro_bare}. [{they} were friends.|{they} had known each other for {n} years.]",
    "{hero} was {intro_bare} who lived in {place}. {friend} was {fintro_bare}, and {they} were friends.",
    "Far away, beyond {far}, lies {place}. That is where {hero} lived, {intro_bare}, together with {friend}, {fintro_bare}.",
    '"[Wait for me|Come quickly|Wake up], {name}!" called {friend}. {friend} was {fintro_bare}, and {hero} was {intro_bare}. [Nobody in {place} was ever bored when those two were around.|{they} lived in {place}.]',
    '"Nothing ever happens in {place}," {hero} said. {hero} was {intro_bare}. "Just wait," said {friend}, who was {fintro_bare}.',
    "Everybody in {place} said that {hero} was the most {trait} {kind} of all. Only {friend}, {fintro_bare}, knew better.",
    "This is the story of {intro}. It began in {place}, on a {weekday} in {season}, when {he} was out with {friend}, {fintro_bare}.",
    "The {weather} had come to {place}. {hero}, {intro_bare}, sat at the window with {friend}, {fintro_bare}.",
)

# Told between beats where a story takes its time; true in any plot.
DIGRESSIONS = (
    "[Outside|In the distance] a bell rang {n} times.",
    "The shadows [grew long|were long and blue], and [somewhere a door closed|the air was cool].",
    "{friend} had brought {snack}, so {they} sat down and ate. [It tasted better than at home.|Not a crumb was left.]",
    '"Are you tired?" asked {friend}. "[Not at all|A little]," {hero} said. [{they} rested for a while.|But {he} yawned.]',
    '"Do you know what I like about you, {name}?" said {friend}. "You [never give up|always listen|make me laugh]."',
    "The wind smelled of [rain|snow|hay|{season}|the sea].",
    "{hero} was {trait}, as everybody knew, [but not that day|and that day more than ever].",
    "A {animal} [watched {them}|ran across the path|sat on the fence], and then it was gone.",
    '{they} [sang|hummed] a little song: "[One for the sun and two for the sea|Over the hill and under the tree], {n} for you and none for me!"',
    "{friend} told a joke about a {animal} and a {another_item}. {hero} laughed until {his} stomach hurt.",
    "Nobody said anything for a while. [It was a good silence.|Only the clock went tick, tock.]",
    "{hero} thought of [the {elder_kind}|{his} grandmother|home], and that [made {him} brave|helped a little].",
    "It was {season}, and the [leaves|roofs|fields] were {colour}.",
    '"Listen!" said {friend}. {they} listened, but it was only [the rain|an old door|a {animal}].',
)

ENDINGS = (
    "[And that is the end of the story.|The end.|That is how it was.]",
    "[And if {they} have not moved away, {they} still live in {place}.|And {they} lived happily for many years.]",
    "[That night {they} both slept well.|{hero} never forgot that day.|And {they} were friends for ever.]",
    '"[What shall we do tomorrow?" asked {friend}. "Nothing at all|Shall we do it again tomorrow?" asked {friend}. "Yes|And tomorrow?" asked {friend}. "Let us sleep first]," {hero} said.',
    "And if you ever come to {place}, ask for {him}. [{friend} will show you the way.|Everybody there knows the story.]",
    "",
    "",
)
