"""The word lists that stories and lead-ins draw from."""

from __future__ import annotations

GIRLS = (
    "Mira Ada Lena Nora Tilda Ruby Ivy Hazel Juna Pia Rosa Selma Wanda Zoe Clara Dora Elsa Fern "
    "Greta Hanna Ines Kaya Lotte Maya Nell Olga Petra Runa Stella Tess Una Vera Willa Yara Amina "
    "Bea Carla Dalia Edith Freya Goldie Holly Iris Judith Kira Luna Marta Noor Opal Poppy"
).split()

BOYS = (
    "Bruno Max Oscar Theo Finn Hugo Otto Emil Jonas Karl Leo Milo Nils Omar Paul Rudi Sam Timo "
    "Ugo Viktor Walt Xaver Yusuf Zeno Anton Boris Caspar Dario Edgar Felix Gustav Henry Igor Jack "
    "Kofi Lars Marek Nico Oleg Pedro Quentin Rafi Sven Toby Uri Vito Wim Abel Ben Cosmo"
).split()

ANIMALS = (
    "fox rabbit bear mouse owl hedgehog squirrel badger otter frog turtle duck goose cat dog wolf "
    "deer beaver mole sparrow raven robin crab whale dolphin penguin seal elephant monkey lion "
    "tiger giraffe zebra camel donkey goat sheep pony hen rooster bat snail ant bee spider "
    "butterfly cricket lizard parrot heron"
).split()

GIRL_ROLES = (
    "girl, princess, queen, painter, baker, sailor, gardener, fisherwoman, doctor, "
    "seamstress, teacher, shepherdess, inventor, singer, witch, astronomer, farmer, postwoman, "
    "pilot, carpenter, mermaid, robot, dragon, giantess, librarian, clockmaker"
).split(", ")

BOY_ROLES = (
    "boy, prince, king, painter, baker, sailor, gardener, fisherman, doctor, tailor, "
    "teacher, shepherd, inventor, singer, wizard, astronomer, farmer, postman, pilot, carpenter, "
    "miller, robot, dragon, giant, librarian, clockmaker"
).split(", ")

TRAITS = (
    "shy, brave, curious, clever, lazy, kind, proud, cheerful, quiet, stubborn, gentle, restless, "
    "careful, forgetful, hungry, sleepy, lonely, merry, patient, noisy, tiny, tall, young, bold, "
    "grumpy, thoughtful, honest, dreamy, busy, friendly"
).split(", ")

ELDERS = (
    "old owl, old turtle, grey wolf, blind mole, wise raven, old fisherman, old woman, ferryman, "
    "night watchman, old sailor, travelling musician, old bear, white goose, miller, beekeeper, "
    "old king, tall stranger, lighthouse keeper, old shepherd, quiet monk, map maker, blacksmith, "
    "old clockmaker, river spirit, snow queen, toad under the bridge"
).split(", ")
WOMEN_ELDERS = frozenset({"old woman", "snow queen", "white goose", "old owl", "river spirit"})

PLACES = (
    "the forest, the village, the valley, the little town, the harbour, the old castle, the "
    "meadow, the desert, the island village, the marsh, the orchard, the city, the garden, the hills, the "
    "kingdom, the jungle, the market town, the snowy north, the moon base, the barn by the river, "
    "the street of lanterns, the cave village, the mill by the stream, the big library"
).split(", ")

FAR_PLACES = (
    "the blue mountain, the dark wood, the far shore, the glass lake, the ruined tower, the edge "
    "of the world, the windy pass, the silver river, the lost island, the deep cave, the valley of "
    "mist, the red cliffs, the frozen sea, the singing dunes, the northern lighthouse, the hollow "
    "hill, the old mine, the hidden garden, the end of the railway, the palace of mirrors"
).split(", ")

HIDING_PLACES = (
    "under a root, behind the oven, in a hollow tree, under the bed, at the bottom of the well, in "
    "an empty nest, between two stones, in the pocket of an old coat, under a pile of leaves, on "
    "top of the cupboard, inside the big clock, behind the waterfall, in a basket of apples, under "
    "the bridge, in the grass beside the path, beneath the stairs, in a flower pot, on the roof"
).split(", ")

THING_ADJECTIVES = (
    "silver golden red blue green tiny old wooden round shiny broken magic glass copper white "
    "black heavy little strange bright yellow warm crooked painted"
).split()

THINGS = (
    "key lantern bell ring drum book map kite boat hat clock button spoon feather stone shell "
    "mirror ball coin cup whistle flute umbrella blanket scarf box compass star needle crown wagon "
    "bicycle candle acorn egg pearl violin letter basket rope telescope teapot ladder seed coat "
    "chair marble paintbrush bottle pebble"
).split()

DISHES = (
    "plum cake, apple pie, honey bread, mushroom soup, pumpkin stew, cherry tart, carrot cake, "
    "onion soup, pancake, blueberry pudding, cheese pie, chestnut bread, rice pudding, lemon cake"
).split(", ")

SNACKS = (
    "roasted nuts, warm bread, red apples, honey, berries, cheese, dried figs, pears, hot soup, "
    "biscuits, plums, toast and jam, cold potatoes, sweet tea, cherries"
).split(", ")

COLOURS = "red blue green yellow white black purple orange grey pink brown silver golden".split()

SEASONS = ("spring", "summer", "autumn", "winter")

WISHES = (
    "to see the sea, to fly, to learn to sing, to find a friend, to see the stars up close, to "
    "have a garden, to climb the tower, to hear the oldest song, to learn to read, to taste snow, "
    "to sail around the world, to make the queen laugh, to sleep without bad dreams, to know "
    "where the river begins, to build a house, to see the sun at midnight, to dance, to speak "
    "with the moon, to be brave, to ride the night train"
).split(", ")

CONTESTS = (
    "a race, a singing contest, a kite contest, a cooking contest, a swimming race, a boat race, "
    "a dancing contest, a riddle contest, a climbing contest, a painting contest"
).split(", ")

INVENTIONS = (
    "a flying chair, a talking clock, a machine that peels apples, a lamp that never goes out, "
    "a boat with wheels, a bed that rocks itself, a hat that keeps off the rain, a bell that rings "
    "when soup is ready, a pair of walking shoes that walk alone, a machine for catching dreams, "
    "a broom that sweeps by itself, a bridge that folds, a kite with a seat, a music box as big "
    "as a house"
).split(", ")

SYLLABLES = (
    "ba be bi bo bra da dex do dri fa fen fi flo ga gle go ha hu ja jin ka kel ki kra la lee lo "
    "ma mi mo nar ne nix no o pa pel pi qua ra rel ri ro sa shi so sta ta tel ti tor tra u va vel "
    "vo wa wix xa ya yor za zel zi zo"
).split()

# Everyday and technical words that a prompt may hold and a story would not.
TOPICS = (
    "france japan africa berlin london paris china india europe america mars jupiter python "
    "java rust linux docker kubernetes server database network internet computer laptop phone "
    "email password file folder keyboard screen video game football tennis chess guitar piano "
    "music movie photo news politics president election tax money bank price dollar euro market "
    "company office meeting project manager customer report summary table graph model data "
    "training inference transformer attention memory cache block token sequence batch queue "
    "scheduler engine gpu cpu kernel matrix vector equation number integer algebra geometry "
    "physics quantum energy gravity light atom chemistry biology cell virus vaccine doctor health "
    "sleep exercise diet coffee pizza pasta rice chicken salad milk eggs butter sugar flour salt "
    "onions tomatoes bananas soap batteries train bus car airport ticket hotel holiday beach "
    "climate weather history war peace love life death happiness philosophy language english "
    "german spanish poem essay novel joke recipe homework school student teacher university"
).split()

VERBS = (
    "write explain summarise translate list describe compare fix sort compute build make find "
    "show give tell draw design optimise rewrite review plan solve prove classify debug improve"
).split()

FILLER = (
    "the of and to in a is it you that for on with as at this but by from or one have an they "
    "which all were when there can your how each she do their if will up other about out many "
    "then them so some her would make like him into time has look two more go see no way could "
    "my than first been who now people over did down only long little very after words called "
    "just where most know get through back much before good new used me man too any day same "
    "right think also around another came come work three because does part even place well such "
    "here take why things help put years different away again off went old great tell men say "
    "small every found still between name should home big give set own under read last never us "
    "left end along while might next sound below saw something thought both few those always"
).split()

FOREIGN = (
    "hola, ¿cómo estás hoy?|bonjour, je voudrais une histoire|guten Morgen, wie geht es dir|"
    "buongiorno a tutti|olá, tudo bem?|привет, как дела|你好,今天天气很好|请给我讲一个故事|こんにちは、元気ですか|"
    "안녕하세요|مرحبا كيف حالك|שלום לך|γεια σου κόσμε|hej, hur mår du|cześć, co słychać|"
    "merhaba dünya|xin chào các bạn|नमस्ते दुनिया|Es war einmal ein König|Il était une fois|"
    "Había una vez un gato|C'era una volta|der Hund schläft im Garten|où est la gare|"
    "el perro duerme|mañana será otro día|Die Straße ist naß|świat jest piękny|какая сегодня погода|"
    "从前有一座山|昔々あるところに|옛날 옛적에"
).split("|")
