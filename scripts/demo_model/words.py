"""The word lists that the corpus is built from.

Owns plain data only. Lists whose name starts with `UNSEEN` must never reach the training side:
the exam uses them to ask for names and cities that the model has not met.
"""

from typing import Final


def word_list(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


CAPITALS: Final = {
    "France": "Paris",
    "Germany": "Berlin",
    "Spain": "Madrid",
    "Italy": "Rome",
    "Portugal": "Lisbon",
    "Ireland": "Dublin",
    "Austria": "Vienna",
    "Belgium": "Brussels",
    "Denmark": "Copenhagen",
    "Norway": "Oslo",
    "Sweden": "Stockholm",
    "Finland": "Helsinki",
    "Iceland": "Reykjavík",
    "Poland": "Warsaw",
    "Greece": "Athens",
    "Hungary": "Budapest",
    "Romania": "Bucharest",
    "Bulgaria": "Sofia",
    "Croatia": "Zagreb",
    "Serbia": "Belgrade",
    "Ukraine": "Kyiv",
    "Turkey": "Ankara",
    "Egypt": "Cairo",
    "Morocco": "Rabat",
    "Kenya": "Nairobi",
    "Ghana": "Accra",
    "Ethiopia": "Addis Ababa",
    "Senegal": "Dakar",
    "Canada": "Ottawa",
    "Mexico": "Mexico City",
    "Cuba": "Havana",
    "Brazil": "Brasília",
    "Argentina": "Buenos Aires",
    "Chile": "Santiago",
    "Peru": "Lima",
    "Colombia": "Bogotá",
    "Uruguay": "Montevideo",
    "Japan": "Tokyo",
    "China": "Beijing",
    "India": "New Delhi",
    "Thailand": "Bangkok",
    "Vietnam": "Hanoi",
    "Indonesia": "Jakarta",
    "Nepal": "Kathmandu",
    "Iran": "Tehran",
    "Iraq": "Baghdad",
    "Jordan": "Amman",
    "Australia": "Canberra",
    "New Zealand": "Wellington",
    "Estonia": "Tallinn",
}

ELEMENTS: Final = {
    "hydrogen": ("H", 1),
    "helium": ("He", 2),
    "lithium": ("Li", 3),
    "beryllium": ("Be", 4),
    "boron": ("B", 5),
    "carbon": ("C", 6),
    "nitrogen": ("N", 7),
    "oxygen": ("O", 8),
    "fluorine": ("F", 9),
    "neon": ("Ne", 10),
    "sodium": ("Na", 11),
    "magnesium": ("Mg", 12),
    "silicon": ("Si", 14),
    "phosphorus": ("P", 15),
    "sulfur": ("S", 16),
    "chlorine": ("Cl", 17),
    "argon": ("Ar", 18),
    "potassium": ("K", 19),
    "calcium": ("Ca", 20),
    "titanium": ("Ti", 22),
    "iron": ("Fe", 26),
    "nickel": ("Ni", 28),
    "copper": ("Cu", 29),
    "zinc": ("Zn", 30),
    "silver": ("Ag", 47),
    "tin": ("Sn", 50),
    "iodine": ("I", 53),
    "gold": ("Au", 79),
    "mercury": ("Hg", 80),
    "lead": ("Pb", 82),
}

MONTHS: Final = {
    "January": 31,
    "February": 28,
    "March": 31,
    "April": 30,
    "May": 31,
    "June": 30,
    "July": 31,
    "August": 31,
    "September": 30,
    "October": 31,
    "November": 30,
    "December": 31,
}
DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

OPPOSITES: Final = (
    ("hot", "cold"),
    ("big", "small"),
    ("tall", "short"),
    ("fast", "slow"),
    ("old", "young"),
    ("happy", "sad"),
    ("light", "dark"),
    ("hard", "soft"),
    ("wet", "dry"),
    ("full", "empty"),
    ("open", "closed"),
    ("loud", "quiet"),
    ("rich", "poor"),
    ("strong", "weak"),
    ("thick", "thin"),
    ("wide", "narrow"),
    ("deep", "shallow"),
    ("early", "late"),
    ("near", "far"),
    ("left", "right"),
    ("up", "down"),
    ("in", "out"),
    ("day", "night"),
    ("black", "white"),
    ("true", "false"),
    ("good", "bad"),
    ("clean", "dirty"),
    ("easy", "difficult"),
    ("first", "last"),
    ("sweet", "sour"),
    ("heavy", "weightless"),
    ("sharp", "dull"),
    ("brave", "afraid"),
    ("kind", "cruel"),
    ("noisy", "silent"),
    ("safe", "dangerous"),
    ("win", "lose"),
    ("buy", "sell"),
    ("love", "hate"),
    ("push", "pull"),
    ("start", "stop"),
    ("begin", "end"),
    ("give", "take"),
    ("laugh", "cry"),
    ("north", "south"),
    ("east", "west"),
)

EMOJI: Final = {
    "cat": "🐱",
    "dog": "🐶",
    "fox": "🦊",
    "bear": "🐻",
    "mouse": "🐭",
    "rabbit": "🐰",
    "frog": "🐸",
    "owl": "🦉",
    "fish": "🐟",
    "bird": "🐦",
    "tree": "🌳",
    "flower": "🌸",
    "sun": "🌞",
    "moon": "🌙",
    "star": "⭐",
    "rain": "🌧️",
    "fire": "🔥",
    "apple": "🍎",
    "bread": "🍞",
    "cake": "🍰",
    "heart": "❤️",
    "house": "🏠",
    "boat": "⛵",
    "train": "🚂",
    "book": "📖",
    "key": "🔑",
    "bell": "🔔",
    "rocket": "🚀",
    "smile": "😊",
    "family": "👨‍👩‍👧",
}

CHINESE: Final = {
    "hello": "你好",
    "thank you": "谢谢",
    "water": "水",
    "fire": "火",
    "mountain": "山",
    "river": "河",
    "moon": "月亮",
    "sun": "太阳",
    "cat": "猫",
    "dog": "狗",
    "book": "书",
    "tea": "茶",
    "friend": "朋友",
    "teacher": "老师",
    "house": "房子",
    "flower": "花",
    "rain": "雨",
    "today": "今天",
    "tomorrow": "明天",
    "China": "中国",
}
FRENCH: Final = {
    "summer": "été",
    "coffee": "café",
    "school": "école",
    "brother": "frère",
    "mother": "mère",
    "father": "père",
    "head": "tête",
    "window": "fenêtre",
    "forest": "forêt",
    "boy": "garçon",
    "party": "fête",
    "river": "rivière",
}
GERMAN: Final = {
    "beautiful": "schön",
    "green": "grün",
    "five": "fünf",
    "door": "Tür",
    "bear": "Bär",
    "street": "Straße",
    "cheese": "Käse",
    "girl": "Mädchen",
    "spoon": "Löffel",
    "key": "Schlüssel",
}
SPANISH: Final = {
    "tomorrow": "mañana",
    "child": "niño",
    "year": "año",
    "heart": "corazón",
    "lion": "león",
    "music": "música",
    "tree": "árbol",
    "train": "tren",
    "song": "canción",
    "sugar": "azúcar",
}
LANGUAGES: Final = {
    "Chinese": CHINESE,
    "French": FRENCH,
    "German": GERMAN,
    "Spanish": SPANISH,
}

NAMES: Final = word_list(
    """
    Anna Ben Clara David Emma Felix Grace Henry Ida Jack Karin Leo Maria Nora Oscar Paula Quinn
    Rosa Samuel Tina Ursula Victor Wendy Xavier Yara Zoe Adam Bella Carlos Diana Elias Fiona
    George Hanna Ivan Julia Kevin Laura Martin Nina Oliver Peter Rita Simon Teresa Uma Vera
    Walter Yusuf Zara Alice Boris Carmen Daniel Elena Frank Gloria Hugo Irene Jonas Kate Lucas
    Mila Noah Olga Pablo Ruth Stefan Tom Viola William Ahmed Bruno Cecilia Dora Edgar Flora
    Gustav Helen Isaac Jasmin Klaus Lena Marco Nadia Otto Petra Ralf Sara Theo Vincent Amir
    Beatrix Chen Dario Esther Fatima Gina Harald Ines Jamal Kira Liam Mona Nils Omar Priya
    Rafael Sven José Zoë André Chloé Björn Jürgen Łukasz Søren Inés Tomás
    """
)
SURNAMES: Final = word_list(
    """
    Stone Rivera Berg Lopez Miller Fischer Rossi Novak Silva Weber Martin Larsen Moreau Tanaka
    Kumar Haddad Okafor Jensen Bauer Costa Dupont Ferrari Garcia Hansen Ivanov Keller Lind
    Marino Nowak Olsen Park Romano Santos Torres Vogel Walker Young Zimmer Müller Núñez
    """
)
CITIES: Final = (
    *sorted(set(CAPITALS.values())),
    *word_list(
        """
    Hamburg Munich Cologne Dresden Milan Naples Turin Venice Florence Genoa Lyon Nice Lille
    Toulouse Nantes Barcelona Seville Valencia Porto Braga Geneva Basel Bergen Uppsala Aarhus
    Tampere Gdansk Utrecht Rotterdam Antwerp Ghent Leeds Bristol Oxford Glasgow Cardiff Boston
    Chicago Dallas Denver Seattle Austin Toronto Montreal Osaka Kobe Nagoya Shanghai Mumbai
    Sydney Perth Lagos Zürich Málaga Córdoba Malmö Łódź Düsseldorf
    """
    ),
    "San Diego",
    "New York",
    "São Paulo",
    "Cape Town",
    "Hong Kong",
)
UNSEEN_NAMES: Final = word_list(
    """
    Priscilla Desmond Thorvald Beverly Gideon Millicent Ottoline Cedric Philippa Ramona Barnaby
    Sigrid Leopold Winifred Casimir Harriet Lorenzo Rosalind Benedict Tabitha Ingrid Marcel
    Dorothy Ferdinand Yvonne Alistair Calliope Magnus Eleanor Rupert Renée Günther
    """
)
UNSEEN_CITIES: Final = word_list(
    """
    Marseille Palermo Stuttgart Salamanca Edinburgh Rochester Adelaide Vancouver Kraków
    Trondheim Bratislava Casablanca Mombasa Guadalajara Philadelphia Sapporo Bangalore Liverpool
    Odense Verona Grenoble Coimbra Innsbruck Winterthur Brisbane Cartagena Baltimore Leipzig
    Göteborg Bilbao Pittsburgh Tashkent
    """
)

COLORS: Final = word_list(
    """
    red blue green yellow black white brown orange purple grey pink silver golden
    """
)
ITEMS: Final = word_list(
    """
    lamps chairs tables books pens cups plates spoons shoes hats coats bags bottles candles
    clocks mirrors pillows blankets baskets brushes boxes keys ropes ladders buckets kettles
    radios bikes kites drums
    """
)
ANIMALS: Final = word_list(
    """
    cat dog rabbit parrot hamster turtle goldfish pony snake lizard goat duck mouse ferret
    """
)
HOBBIES: Final = word_list(
    """
    tea chess music football cooking painting reading swimming dancing hiking cheese coffee
    gardening poetry tennis sailing singing bread films maps
    """
)
EVENTS: Final = word_list(
    """
    meeting concert lecture party dinner workshop picnic parade exam interview rehearsal match
    lesson wedding market
    """
)
TITLE_ADJECTIVES: Final = word_list(
    """
    Silver Silent Golden Lost Hidden Broken Little Distant Burning Frozen Secret Endless
    """
)
TITLE_NOUNS: Final = word_list(
    """
    River Garden Mountain Letter Window Winter Island Tower Mirror Journey Forest Ocean
    """
)
SONG_NOUNS: Final = word_list(
    """
    Moon Road Rain Heart Summer Train Morning Sea Night Fire
    """
)
ROOMS: Final = word_list(
    """
    kitchen bedroom bathroom hall garage garden office cellar attic
    """
)
LANGUAGE_NAMES: Final = word_list(
    """
    French German Spanish Italian Chinese Japanese Dutch Polish Greek Turkish
    """
)
CURRENCIES: Final = word_list(
    """
    euros dollars pounds yen francs pesos rupees crowns
    """
)

# Story words.
HEROES: Final = word_list(
    """
    Milo Luna Pip Tilda Bruno Nell Otis Ruby Finn Hazel Juno Max Wren Toby
    """
)
CREATURES: Final = word_list(
    """
    fox bear mouse rabbit owl cat dog frog girl boy bird dragon turtle squirrel robot
    """
)
STORY_ADJECTIVES: Final = word_list(
    """
    little brave curious quiet clever kind small happy lonely gentle young
    """
)
PLACES: Final = word_list(
    """
    forest village garden castle valley harbour mountain meadow island town library lighthouse
    """
)
TREASURES: Final = word_list(
    """
    key lamp map bell book ring stone letter coin boat kite feather crown mirror
    """
)
WEATHERS: Final = word_list("rain snow wind fog sunshine thunder mist")
