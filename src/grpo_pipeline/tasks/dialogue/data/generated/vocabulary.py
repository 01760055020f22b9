"""List the closed vocabularies and phrasings of the generated dialogues.

No word is in two vocabularies, so that a word says which fact it states. Every value starts with a consonant, so that "a" fits.
"""

import numpy as np

JOBS = (
    "baker", "barber", "butcher", "chemist", "clerk", "cook", "dancer", "doctor", "driver", "farmer", "florist", "gardener",
    "guard", "judge", "lawyer", "mason", "miner", "nurse", "painter", "pilot", "plumber", "porter", "potter", "sailor",
    "singer", "tailor", "teacher", "waiter",
)  # fmt: skip
TOWNS = (
    "berlin", "bogota", "boston", "cairo", "calgary", "chicago", "dakar", "dallas", "delhi", "denver", "dublin", "geneva",
    "hanoi", "houston", "kyoto", "lagos", "lima", "lisbon", "london", "madrid", "miami", "milan", "nairobi", "paris", "prague",
    "seoul", "toronto", "warsaw",
)  # fmt: skip
PETS = (
    "beagle",
    "canary",
    "cat",
    "dog",
    "ferret",
    "gecko",
    "goat",
    "hamster",
    "horse",
    "lizard",
    "parrot",
    "rabbit",
)
FOODS = (
    "bread",
    "cheese",
    "curry",
    "fish",
    "lentils",
    "noodles",
    "pasta",
    "pizza",
    "rice",
    "salad",
    "soup",
    "tacos",
)
HOBBIES = (
    "boxing",
    "chess",
    "cycling",
    "dancing",
    "fishing",
    "hiking",
    "knitting",
    "reading",
    "rowing",
    "sewing",
    "skating",
    "yoga",
)
KIN = tuple(
    f"{count} {kind}"
    for count in ("two", "three", "four", "five", "six")
    for kind in ("brothers", "sisters")
)
VERBS = ("bought", "buried", "burned", "fixed", "found", "lost", "moved", "sold")
COLOURS = ("black", "blue", "brown", "green", "pink", "red", "white", "yellow")
OBJECTS = (
    "basket", "bell", "candle", "carpet", "clock", "coat", "drum", "kite", "ladder", "lamp", "mirror", "ring", "teapot",
    "violin", "wallet", "wheel",
)  # fmt: skip
PLACES = ("bridge", "castle", "church", "harbour", "market", "museum", "river", "station")

VALUES = {"job": JOBS, "town": TOWNS, "pet": PETS, "food": FOODS, "hobby": HOBBIES, "kin": KIN}
STATEMENTS = {
    "job": ("i work as a {}.", "my job is {}."),
    "town": ("i live in {}.", "my town is {}."),
    "pet": ("i have a {}.", "my pet is a {}."),
    "food": ("i eat {}.", "my food is {}."),
    "hobby": ("i love {}.", "my hobby is {}."),
    "kin": ("i have {}.",),
}
QUESTIONS = {
    "job": ("what is your job?", "what do you work as?"),
    "town": ("where do you live?", "which town is yours?"),
    "pet": ("what pet do you have?", "which animal is yours?"),
    "food": ("what do you eat most?", "which food is best?"),
    "hobby": ("what do you do for fun?", "what fills your evenings?"),
    "kin": ("how big is your family?", "do you have siblings?"),
}
# All phrasings of a reply contain its value, so that each answers each question. They contain few other words: a
# reply with the right words around a wrong value must score low.
REPLIES = {
    "job": ("a {}", "i am a {}"),
    "town": ("{}", "home is {}"),
    "pet": ("a {}", "i keep a {}"),
    "food": ("{}", "{} most days"),
    "hobby": ("{}", "i like {}"),
    "kin": ("{}", "i have {}"),
}
STORY_QUESTIONS = ("what happened at work?", "any news in your trade?")
STORY_REPLIES = ("the {job} {verb} a {colour} {object}", "a {colour} {object}, {verb} by the {job}")
HIDDEN_REPLIES = ("{verb} a {colour} {object}", "{verb} the {colour} {object}")
STORY_TITLE = "the {job} of {town}"
STORY_TEXTS = (
    "in {town} the {job} {verb} a {colour} {object} near the {place}.",
    "one day the {job} from {town} {verb} a {colour} {object} by the {place}.",
)
# Of stories whose persona no word finds: job i is badge i, town i is stone i. No persona has any of their words.
BADGES = (
    "badger", "beaver", "bison", "buffalo", "camel", "cobra", "condor", "cougar", "coyote", "dingo", "falcon", "fox",
    "gazelle", "giraffe", "heron", "jackal", "jaguar", "leopard", "lynx", "moose", "panther", "pelican", "puma", "raven",
    "tiger", "walrus", "wolf", "zebra",
)  # fmt: skip
STONES = (
    "basalt", "beryl", "bronze", "chalk", "cobalt", "copper", "coral", "diamond", "flint", "garnet", "granite", "gravel",
    "jade", "jasper", "lapis", "limestone", "marble", "mercury", "nickel", "pearl", "pewter", "platinum", "quartz", "ruby",
    "sapphire", "silver", "topaz", "zircon",
)  # fmt: skip
HIDDEN_TITLE = "{badge} and {stone}"
HIDDEN_TEXTS = ("{verb} a {colour} {object}.", "{verb} the {colour} {object}.")
GREETINGS = (
    ("hello there!", ("hello, how are you today?", "hi, how are you today?")),
    ("nice to meet you!", ("nice to meet you too!", "lovely to meet you too!")),
    ("thank you so much!", ("you are very welcome!", "you are most welcome!")),
    ("goodbye for now!", ("bye, see you soon!", "goodbye, see you soon!")),
)
ACKNOWLEDGEMENTS = ("i see.", "nice.", "oh.", "great.")


def pick(options: tuple[str, ...], rng: np.random.Generator) -> str:
    """Draw one of the options with equal probabilities."""
    return options[int(rng.integers(len(options)))]
