"""Real words that the world is furnished with; names are mostly made up (see ``vocabulary``)."""


def word_tuple(text: str) -> tuple[str, ...]:
    """Split a text into its words."""
    return tuple(text.split())


FIRST_NAMES = word_tuple("""
    Aaron Abigail Adele Agnes Ahmed Aisha Albert Alicia Amelia Anders Andrea Anita Anton Arthur Beatrice
    Benjamin Bernard Bianca Bruno Camila Carlos Carmen Cecilia Chiara Clara Claude Connor Cyrus Daniela Darius
    Diego Dimitri Dmitri Edith Edmund Eleanor Elias Emilia Enrico Esther Fatima Felix Fiona Francesca Gabriel
    Gerald Gita Gloria Greta Gustav Hannah Harold Hassan Hector Helena Henrik Hiroshi Ibrahim Ingrid Isabel
    Ivan Jasmin Javier Jerome Johanna Julian Kamal Katrin Kenji Khalid Lars Laura Leila Leonard Lorenzo Lucia
    Ludwig Magnus Marcel Margot Marta Matteo Mehmet Mikhail Miriam Nadia Naomi Natalia Niklas Nina Noor Olga
    Omar Oscar Paloma Pascal Patricia Paulina Pedro Priya Rafael Ramona Ravi Rebecca Renata Ricardo Roberta
    Rosalind Samira Santiago Selma Simone Sofia Stefan Susanne Sylvia Tamara Theodor Tobias Ursula Valentin
    Vera Viktor Walter Wilhelm Yasmin Yusuf Zoltan
""")

TOWNS = word_tuple("""
    Aarhus Adelaide Antwerp Athens Auckland Baltimore Bamberg Bergen Bilbao Bogota Bologna Bremen Brisbane
    Bristol Bucharest Budapest Calgary Cardiff Cork Dakar Denver Dresden Dublin Dundee Edinburgh Ghent Girona
    Glasgow Granada Graz Halifax Hamburg Hanoi Helsinki Houston Innsbruck Jakarta Kampala Kathmandu Krakow
    Kyoto Lagos Leipzig Lima Lisbon Ljubljana Lyon Malaga Manila Marseille Melbourne Montreal Mumbai Nagoya
    Nairobi Naples Odense Oslo Ottawa Palermo Perth Pisa Porto Prague Quito Reykjavik Rotterdam Salzburg
    Sapporo Seville Stavanger Tampere Tbilisi Toledo Toronto Trieste Turin Utrecht Valencia Verona Vienna
    Vilnius Warsaw Wellington Zagreb Zurich
""")

MODIFIERS = word_tuple("""
    red blue green yellow white black brown gray purple pink silver golden wooden metal ceramic leather woolen
    striped spotted round square tiny large heavy light shiny rusty antique vintage folding portable painted
    carved polished broken handmade borrowed cheap fancy simple plain sturdy
""")

THINGS = word_tuple("""
    accordion anchor anvil apron aquarium armchair backpack bagpipe balloon banjo barometer barrel basket
    bathtub beanbag bell bench bicycle birdhouse blanket blender bookend bookshelf bottle bowl bracelet
    briefcase broom brooch bucket buckle cabinet cage calculator camcorder camera candle candlestick canoe
    canvas carpet carriage cart casket cello chandelier chessboard chimney chisel clarinet clock cloak coat
    coaster collar comb compass cradle crate crossbow crowbar crown cupboard curtain cushion dartboard desk
    dinghy dollhouse drawer dresser drill drone drum dulcimer easel envelope fan fiddle figurine filter
    firepit flag flashlight flask flute footstool fountain freezer funnel gazebo glider globe goblet gong
    grater griddle grill grindstone guitar gutter hacksaw hammer hammock hamper handbag harmonica harness harp
    hat hatchet headboard headlamp heater helmet hourglass inkwell jacket javelin jigsaw joystick jug jukebox
    kaleidoscope kayak kettle keyboard kiln kimono kite knapsack ladder ladle lamp lampshade lantern lasso
    lathe lectern locket loom loudspeaker lute mallet mandolin mannequin marimba mask mattress megaphone
    metronome microphone microscope mirror mixer monocle moped mortar mosaic motor mug necklace notebook oar
    oboe odometer ottoman oven paddle padlock paintbrush pallet parachute parasol parka pedestal pendant
    pendulum periscope piano pillow pipe pitcher planter plaque podium poncho printer prism projector pulley
    puppet puzzle quilt quiver racket radiator radio raft rake razor recorder refrigerator robe rocket rope
    rowboat rucksack ruler saddle sailboat satchel saucepan saw saxophone scale scanner scarf scooter
    sculpture sewing-machine shawl shield shovel showerhead shredder sickle sieve sitar skateboard skillet
    sled sleeping-bag snorkel snowboard sofa spade spatula spyglass stapler statue stencil stepladder stereo
    stool stopwatch stove stroller submarine suitcase sundial surfboard sweater swing sword tablecloth
    tambourine tapestry teapot telescope tent thermometer thermos tiara toaster toolbox tractor trampoline
    treadmill tricycle tripod trombone trophy trowel trumpet trunk tuba turntable tuxedo typewriter ukulele
    umbrella unicycle vacuum vase vest viola violin waffle-iron wagon walkie-talkie wallet wardrobe watch
    wheelbarrow whisk whistle wig windmill workbench wreath wrench xylophone yoyo zither
""")

INGREDIENTS = word_tuple("""
    almond anchovy anise apple apricot artichoke arugula asparagus avocado bacon banana barley basil bean beet
    blackberry blueberry broccoli buckwheat butter cabbage caper caramel caraway cardamom carrot cashew
    cauliflower caviar celery cheddar cherry chestnut chickpea chicory chili chive chocolate cinnamon clam
    clove coconut cod coriander corn couscous crab cranberry cream cucumber cumin currant dill duck edamame
    eggplant elderberry endive fennel fig garlic ginger gooseberry grape grapefruit guava haddock halibut ham
    hazelnut herring honey horseradish kale kiwi kohlrabi lamb lavender leek lemon lentil lime lobster lychee
    mackerel mango maple marjoram melon millet mint molasses mushroom mussel mustard nectarine nutmeg oat okra
    olive onion orange oregano oyster papaya paprika parsley parsnip peach peanut pear pecan pepper persimmon
    pineapple pistachio plum pomegranate poppy pork potato pumpkin quinoa radish raisin raspberry rhubarb rice
    ricotta rosemary rye saffron sage salmon sardine sausage scallop sesame shallot shrimp sorrel soy spinach
    squash strawberry tahini tamarind tarragon thyme tofu tomato trout tuna turkey turmeric turnip vanilla
    vinegar walnut wasabi yam yogurt zucchini
""")

DISH_FORMS = word_tuple("""
    soup stew pie curry salad tart pudding casserole risotto omelet gratin dumplings pancakes noodles chowder
    bread loaf fritters lasagna sorbet muffins skewers
""")

JOBS = word_tuple("""
    accountant acrobat actuary analyst animator archaeologist archer architect archivist artist astronomer
    auctioneer auditor baker barber barista beekeeper biologist blacksmith bookbinder bookseller botanist
    brewer bricklayer broker builder butcher butler carpenter cartographer cashier chauffeur chef chemist
    choreographer clerk coach cobbler comedian composer conductor consultant courier curator dancer decorator
    dentist designer detective dietitian diplomat diver doctor drummer economist editor electrician engineer
    engraver entomologist farmer firefighter fisherman florist forester gardener geologist glassblower
    goldsmith grocer guard guide hairdresser historian illustrator inspector interpreter janitor jeweler
    journalist judge juggler lawyer lecturer librarian lifeguard linguist locksmith magician mason
    mathematician mechanic meteorologist midwife milliner miner musician nanny navigator novelist nurse
    optician painter paramedic pastor pharmacist photographer physicist pilot plasterer plumber poet potter
    printmaker producer professor programmer psychologist ranger receptionist referee reporter roofer sailor
    salesperson sculptor secretary shepherd singer soldier statistician stonemason surgeon surveyor tailor
    tanner teacher therapist tiler translator trainer veterinarian waiter watchmaker weaver welder writer
    zoologist
""")

HOBBIES = word_tuple("""
    angling backpacking baking beekeeping birdwatching blogging boating bowling boxing brewing camping
    canoeing canyoning carpentry caving climbing composting crocheting cycling dancing drawing embroidering
    fishing foraging gardening geocaching gliding golfing hiking hitchhiking hunting jogging journaling
    kayaking kickboxing kitesurfing knitting letterboxing mountaineering painting parasailing paragliding
    quilting rafting reading recycling rowing running sailing sculpting sewing singing skating skiing
    skydiving sledding snorkeling snowboarding snowshoeing soapmaking songwriting spearfishing stargazing
    storytelling surfing swimming tailoring thrifting trekking volunteering walking waterskiing weaving
    weightlifting whittling windsurfing winemaking woodcarving woodworking wrestling yodeling
""")

CRAFTS = word_tuple("""
    acrobatics aikido archery badminton ballet basketball breakdance calligraphy capoeira ceramics chess
    cricket croquet curling fencing flamenco football gymnastics handball handstands hockey improv jazz judo
    karate karaoke lacrosse magic meditation mime opera origami parkour pilates poetry polka polo pottery
    pantomime qigong rugby salsa sambo samba scrabble sudoku softball squash swordplay taekwondo tango taiji
    tennis trapeze ventriloquism volleyball waltz yoga zumba
""")

TITLE_NOUNS = word_tuple("""
    Bridges Children Clouds Echoes Embers Footsteps Gardens Ghosts Harbors Keepers Lanterns Letters Lovers
    Mountains Nights Orphans Pilgrims Riddles Rivers Roads Secrets Shadows Songs Stones Storms Towers Voices
    Whispers Winters Wolves
""")

COMPANY_SUFFIXES = ("Labs", "Works", "Systems", "Foods", "Motors", "Bank", "Press", "Studios", "Logistics")
BAND_SUFFIXES = ("Trio", "Quartet", "Choir", "Orchestra", "Ensemble", "Brothers", "Sisters", "Collective")

# Closed classes: a model may know these by heart, so none of them is ever held out.
ANIMALS = word_tuple("""
    dog cat parrot rabbit hamster goldfish tortoise pony goat hedgehog ferret canary gecko iguana goose donkey
""")
ROOMS = ("attic", "garage", "basement", "kitchen", "hallway", "bedroom", "office", "shed", "balcony", "car")
RELATIONS = word_tuple("""
    sister brother mother father cousin aunt uncle grandmother grandfather boss neighbor roommate mentor
    landlord niece nephew
""")
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
