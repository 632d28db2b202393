"""Word lists of the English normaliser: data alone."""

from __future__ import annotations

MONTHS = ("January February March April May June July August September October November December").split()
MONTH_ABBREVIATIONS = {month[:3]: month for month in MONTHS} | {"Sept": "September"}
WEEKDAYS = {
    "Mon": "Monday",
    "Tue": "Tuesday",
    "Tues": "Tuesday",
    "Wed": "Wednesday",
    "Thu": "Thursday",
    "Thur": "Thursday",
    "Thurs": "Thursday",
    "Fri": "Friday",
    "Sat": "Saturday",
    "Sun": "Sunday",
}

# Said in full wherever they stand; the dot goes with them.
ABBREVIATIONS = {
    "Mr.": "Mister",
    "Mrs.": "Missus",
    "Ms.": "Miz",
    "Mx.": "Mix",
    "Prof.": "Professor",
    "Rev.": "Reverend",
    "Hon.": "Honorable",
    "Gen.": "General",
    "Sgt.": "Sergeant",
    "Capt.": "Captain",
    "Lt.": "Lieutenant",
    "Col.": "Colonel",
    "Cpl.": "Corporal",
    "Sen.": "Senator",
    "Rep.": "Representative",
    "Gov.": "Governor",
    "Pres.": "President",
    "Mt.": "Mount",
    "Ft.": "Fort",
    "vs.": "versus",
    "vs": "versus",
    "v.s.": "versus",
    "e.g.": "for example,",
    "eg.": "for example,",
    "i.e.": "that is,",
    "ie.": "that is,",
    "approx.": "approximately",
    "incl.": "including",
    "excl.": "excluding",
    "misc.": "miscellaneous",
    "min.": "minutes",
    "max.": "maximum",
    "avg.": "average",
    "est.": "estimated",
    "esp.": "especially",
    "cf.": "compare",
    "al.": "al",
    "ca.": "circa",
    "w/": "with",
    "w/o": "without",
    "b/c": "because",
    "c/o": "care of",
    "a/c": "A C",
    "O.K.": "okay",
    "Nº": "number",
    "n/a": "not available",
    "N/A": "not available",
    "&c.": "et cetera",
    "km/h": "kilometers per hour",
    "m/s": "meters per second",
    "Wi-Fi": "wye fye",
    "wi-fi": "wye fye",
    "Ph.D.": "P H D",
    "Ph.D": "P H D",
    "TL;DR": "T L D R",
    "B.Sc.": "B S C",
    "M.Sc.": "M S C",
}

# Abbreviations that may end a sentence: the dot stays before a capitalized word or at the end of the text.
CLOSING_ABBREVIATIONS = {
    "a.m.": "A M",
    "p.m.": "P M",
    "a.k.a.": "also known as",
    "etc.": "et cetera",
    "Inc.": "Incorporated",
    "Corp.": "Corporation",
    "Co.": "Company",
    "Ltd.": "Limited",
    "Jr.": "Junior",
    "Sr.": "Senior",
    "Ave.": "Avenue",
    "Blvd.": "Boulevard",
    "Rd.": "Road",
    "Ln.": "Lane",
    "Hwy.": "Highway",
    "Pkwy.": "Parkway",
    "Apt.": "Apartment",
    "Dept.": "Department",
    "dept.": "department",
    "Bros.": "Brothers",
    "hrs.": "hours",
    "mins.": "minutes",
    "secs.": "seconds",
    "yrs.": "years",
    "lbs.": "pounds",
}

# Said in full only in front of a number.
NUMBERED_ABBREVIATIONS = {
    "No.": "number",
    "no.": "number",
    "Nos.": "numbers",
    "nos.": "numbers",
    "p.": "page",
    "pp.": "pages",
    "vol.": "volume",
    "Vol.": "Volume",
    "ch.": "chapter",
    "Ch.": "Chapter",
    "fig.": "figure",
    "Fig.": "Figure",
    "sec.": "section",
    "Sec.": "Section",
    "art.": "article",
    "Art.": "Article",
    "eq.": "equation",
    "Eq.": "Equation",
    "ver.": "version",
    "ext.": "extension",
    "Ext.": "Extension",
    "tel.": "telephone",
    "Tel.": "Telephone",
}

READ_AS_WORDS = {
    "NASA", "NATO", "UNESCO", "UNICEF", "OPEC", "ASCII", "COVID", "AIDS", "LASER", "RADAR", "SCUBA", "RAM", "ROM",
    "PIN", "SIM", "GIF", "BIOS", "NAFTA", "ASEAN", "FIFA", "UEFA", "NASDAQ", "SWAT", "ZIP", "WASP", "YOLO", "FOMO",
    "LAN", "WAN", "CAPTCHA", "FEMA", "HIPAA", "OSHA", "NIMBY", "POTUS", "SCOTUS", "TESOL", "DOS", "CAD", "MIDI", "CRUD",
    "REST", "SAAS", "JAMA", "MOMA", "SONAR", "BASIC", "COBOL", "CUDA", "LLAMA", "BERT", "LORA", "PEP", "WAV", "POSIX",
}  # fmt: skip

SPOKEN_ACRONYMS = {
    "JSON": "jason",
    "JPEG": "jay peg",
    "JPG": "jay peg",
    "MPEG": "em peg",
    "YAML": "yammel",
    "TOML": "tommel",
    "SAAS": "sass",
    "OAUTH": "oh auth",
    "NGINX": "engine X",
    "WYSIWYG": "wizzy wig",
    "IEEE": "I triple E",
    "AAA": "triple A",
    "NCAA": "N C double A",
    "NAACP": "N double A C P",
    "PHD": "P H D",
    "MSC": "M S C",
}

# Capitals that look like words and are spelled.
SPELLED = {"HTTPS", "HTML", "XHTML", "ASAP", "FAQ", "FAQS", "USA", "UFO", "OLED", "IOS", "AWS", "UAE", "IOU"}

MIXED_CASE_WORDS = {
    "PhD": "P H D",
    "BSc": "B S C",
    "MSc": "M S C",
    "iOS": "I O S",
    "macOS": "mac O S",
    "WiFi": "wye fye",
    "wifi": "wye fye",
    "LaTeX": "lay tech",
    "OAuth": "oh auth",
    "kWh": "kilowatt hours",
    "https": "H T T P S",
    "http": "H T T P",
    "html": "H T M L",
    "css": "C S S",
    "pdf": "P D F",
    "url": "U R L",
    "www": "W W W",
    "ok": "okay",
    "OK": "okay",
    "Ok": "Okay",
    "lol": "L O L",
    "btw": "by the way",
    "etc": "et cetera",
    "BTW": "by the way",
    "FYI": "F Y I",
    "aka": "A K A",
}

# Capitals that spell one of these are shouting, not an acronym.
COMMON_WORDS = frozenset(
    """
    a about above act add after again age ago aid aim air all also always am an and any are area arm art as ask at
    away baby back bad bag ball bank bar base bat be bear beat because bed been before best bet better bid big bill
    bird bit black blow blue boat body bone book born boss both box boy bug burn bus busy but buy by cake call calm
    came camp can cap car card care case cash cast cat chat check city click club coat code cold come cook cool copy
    core cost could cow crew cry cup cut dad dark data date day dead deal dear debt deep did diet dirt dish do does
    dog done door down draw drop dry due dust duty each ear earn easy eat edge egg else end era even ever every eye
    face fact fail fair fall fan far fast fat fear fee feed feel feet few file fill film find fire first fish fit
    five fix flat flow fly food foot for form found four fox free from fuel full fun gain game gap gas gate gave get
    gift girl give glad go goal god going gold gone good got great green grow gun guy had hair half hall hand hang
    happy hard harm has hat hate have he head hear heat held hell help her here hi hide high hill him hire his hit
    hold hole home hope hot hour house how huge hurt i ice idea if ill in inch into is item its jar job join joy
    jump just keep kept key kick kid kill kind king kiss knee know lab lack lady lake land last late law lay lead
    left leg less let lid lie life lift like line lip list little live lock log long look loss lost lot loud love
    low luck mad made mail main make man many map mass may me meal mean meat meet menu might milk mind mine miss mix
    mom mood moon more most move much mud must my name near neck need net never new next nice night nine no none nor
    nose not note now nut odd of off often oh oil old on once one only onto open or order other our out over own
    pack page paid pain pair pan park part pass past path pay peak pen per pet pick pie pig pink pipe place plan
    play please plus point pool poor post pot pull pure push put quit race rain ran rank rare rate raw read real red
    rent rest rice rich rid ride right ring rise risk road rock role roll roof room root row rule run rush sad safe
    said sale salt same sand save say sea seat see seed seek seem seen self sell send sent set seven she ship shop
    shot show shut shy sick side sign sing sit six size skin sky slip slow small snow so soft soil sold some son
    song soon sorry sort soul spot star stay step still stop such suit sun sure swim take talk tall tank tape task
    tax tea team tell ten term test text than thank that the them then there these they thin thing think this those
    three tie time tin tiny tip to today toe told tone too took tool top tour town toy tree trip true try turn two
    type under unit until up upon use used user van vast very view vote wage wait wake walk wall want war warm was
    wash wave way we weak wear web week well went were wet what when where which while white whole whom whose why
    wide wife wild will win wind wine wing wire wise wish with wood word work world worse would wow wrong yard yes
    yet you young your zero zone
    """.split()
)

# Acronyms that are words too: words only behind another word in capitals.
SPELLED_UNLESS_SHOUTING = {"IT": "it", "US": "us", "WHO": "who", "AM": "am", "SAT": "sat", "LED": "led"}

ROMAN_CARDINAL_AFTER = frozenset(
    "chapter war part act section volume book phase type class title figure table step level stage appendix article "
    "scene round unit lesson rocky bowl episode season tier mark".split()
)
ROMAN_ORDINAL_AFTER = frozenset(
    "Henry Louis George Elizabeth Charles Edward Richard William James Philip Napoleon Frederick Francis Benedict "
    "Pius Paul John Leo Gregory Clement Innocent Alexander Nicholas Peter Catherine Ferdinand Wilhelm Friedrich".split()
)

CURRENCY_SIGNS = {
    "US$": ("dollar", "cent"),
    "A$": ("Australian dollar", "cent"),
    "C$": ("Canadian dollar", "cent"),
    "CA$": ("Canadian dollar", "cent"),
    "$": ("dollar", "cent"),
    "€": ("euro", "cent"),
    "£": ("pound", "penny"),
    "¥": ("yen", "sen"),
    "₹": ("rupee", "paisa"),
    "₩": ("won", "jeon"),
    "₽": ("ruble", "kopeck"),
    "₿": ("bitcoin", "satoshi"),
}
CURRENCY_CODES = {
    "USD": ("dollar", "cent"),
    "EUR": ("euro", "cent"),
    "GBP": ("pound", "penny"),
    "JPY": ("yen", "sen"),
    "CHF": ("Swiss franc", "centime"),
    "CAD": ("Canadian dollar", "cent"),
    "AUD": ("Australian dollar", "cent"),
    "INR": ("rupee", "paisa"),
    "CNY": ("yuan", "fen"),
}
INVARIABLE = {"yen", "sen", "won", "jeon", "yuan", "fen", "hertz", "kilohertz", "megahertz", "gigahertz", "percent"}
IRREGULAR_PLURALS = {"penny": "pence", "foot": "feet", "inch": "inches", "paisa": "paise", "degree": "degrees"}

MAGNITUDES = {"k": "thousand", "K": "thousand", "M": "million", "B": "billion", "bn": "billion", "T": "trillion"}

UNITS = {
    "km/h": "kilometer per hour",
    "kph": "kilometer per hour",
    "m/s": "meter per second",
    "mph": "mile per hour",
    "km²": "square kilometer",
    "m²": "square meter",
    "cm²": "square centimeter",
    "m³": "cubic meter",
    "cm³": "cubic centimeter",
    "km2": "square kilometer",
    "m2": "square meter",
    "m3": "cubic meter",
    "km": "kilometer",
    "cm": "centimeter",
    "mm": "millimeter",
    "nm": "nanometer",
    "μm": "micrometer",
    "µm": "micrometer",
    "kg": "kilogram",
    "mg": "milligram",
    "μg": "microgram",
    "µg": "microgram",
    "lb": "pound",
    "lbs": "pound",
    "oz": "ounce",
    "ft": "foot",
    "yd": "yard",
    "mi": "mile",
    "sq ft": "square foot",
    "kHz": "kilohertz",
    "MHz": "megahertz",
    "GHz": "gigahertz",
    "Hz": "hertz",
    "KB": "kilobyte",
    "kB": "kilobyte",
    "MB": "megabyte",
    "GB": "gigabyte",
    "TB": "terabyte",
    "PB": "petabyte",
    "Kbps": "kilobit per second",
    "kbps": "kilobit per second",
    "Mbps": "megabit per second",
    "Gbps": "gigabit per second",
    "Mbit/s": "megabit per second",
    "MB/s": "megabyte per second",
    "GB/s": "gigabyte per second",
    "ms": "millisecond",
    "ns": "nanosecond",
    "μs": "microsecond",
    "µs": "microsecond",
    "sec": "second",
    "secs": "second",
    "min": "minute",
    "mins": "minute",
    "hr": "hour",
    "hrs": "hour",
    "yr": "year",
    "yrs": "year",
    "kWh": "kilowatt hour",
    "MWh": "megawatt hour",
    "mAh": "milliamp hour",
    "kW": "kilowatt",
    "MW": "megawatt",
    "GW": "gigawatt",
    "mL": "milliliter",
    "ml": "milliliter",
    "cl": "centiliter",
    "dB": "decibel",
    "px": "pixel",
    "fps": "frame per second",
    "rpm": "revolution per minute",
    "kcal": "kilocalorie",
    "cal": "calorie",
    "kPa": "kilopascal",
    "hPa": "hectopascal",
    "psi": "P S I",
    "ha": "hectare",
    "tbsp": "tablespoon",
    "tsp": "teaspoon",
    "¢": "cent",
    "°C": "degree Celsius",
    "°F": "degree Fahrenheit",
    "°": "degree",
    "m": "meter",
    "g": "gram",
    "s": "second",
    "h": "hour",
    "L": "liter",
    "l": "liter",
    "W": "watt",
    "V": "volt",
}

# Units that may follow the slash of "$5/hr".
PER_UNITS = {unit: unit for unit in "hour day week month year night person user unit minute second mile".split()} | {
    "hr": "hour",
    "mo": "month",
    "yr": "year",
    "min": "minute",
    "kg": "kilogram",
    "lb": "pound",
    "km": "kilometer",
}

# Behind these a number may end in a letter: "Gate 5B".
LOCATION_NOUNS = (
    "Apartment Apt. Unit Room Gate Suite Seat Row Flat Block Terminal Platform Class Grade Group Building Type Model "
    "Exhibit Route gate seat room row suite"
).split()

# Before these, too, with a name between: "221B Baker St.".
STREETS = (
    "Street St Avenue Ave Road Rd Lane Ln Drive Dr Boulevard Blvd Court Ct Place Pl Square Sq Terrace Parkway Pkwy Way "
    "Crescent Highway Hwy"
).split()

FRACTION_SIGNS = {
    "½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅖": "2/5", "⅗": "3/5", "⅘": "4/5",
    "⅙": "1/6", "⅚": "5/6", "⅐": "1/7", "⅛": "1/8", "⅜": "3/8", "⅝": "5/8", "⅞": "7/8", "⅑": "1/9", "⅒": "1/10",
}  # fmt: skip

SYMBOLS = {
    "&": " and ",
    "@": " at ",
    "+": " plus ",
    "=": " equals ",
    "≠": " is not equal to ", "!=": " is not equal to ",
    "≈": " about ",
    "≤": " at most ", "<=": " at most ",
    "≥": " at least ", ">=": " at least ",
    "<": " less than ",
    ">": " greater than ",
    "×": " times ",
    "÷": " divided by ",
    "±": " plus or minus ",
    "√": " the square root of ",
    "∞": " infinity ",
    "²": " squared ",
    "³": " cubed ",
    "°": " degrees ",
    "%": " percent ",
    "‰": " per mille ",
    "§": " section ",
    "№": " number ",
    "™": "",
    "©": "",
    "®": "",
    "℠": "",
    "℃": " degrees Celsius ",
    "℉": " degrees Fahrenheit ",
    "€": " euros ",
    "£": " pounds ",
    "¥": " yen ",
    "₹": " rupees ",
    "→": "¦",
    "⇒": "¦",
    "←": "¦",
    "•": "¦",
    "·": " ",
    "|": "¦",
    "—": "¦",
    "–": "¦",
    "―": "¦",
    "−": " minus ",
    "…": "...",
    "。": ". ",
    "、": ", ",
    "，": ", ",
    "；": "; ",
    "：": ": ",
    "！": "! ",
    "？": "? ",
    "¿": " ",
    "¡": " ",
    "α": " alpha ", "β": " beta ", "γ": " gamma ", "δ": " delta ", "ε": " epsilon ", "θ": " theta ", "λ": " lambda ",
    "μ": " mu ", "µ": " mu ", "π": " pi ", "ρ": " rho ", "σ": " sigma ", "τ": " tau ", "φ": " phi ", "ω": " omega ",
    "Δ": " delta ", "Σ": " sigma ", "Ω": " omega ",
}  # fmt: skip

LATIN_LETTERS = {
    "ß": "ss", "æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe", "ø": "o", "Ø": "O", "đ": "d", "Đ": "D", "ð": "th", "Ð": "Th",
    "þ": "th", "Þ": "Th", "ł": "l", "Ł": "L", "ı": "i", "ħ": "h", "Ħ": "H", "ŋ": "ng", "ſ": "s", "ĸ": "k", "ə": "e",
}  # fmt: skip
