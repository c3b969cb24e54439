"""The built-in questions that judges are tried on, made up for the purpose; ``calibration`` makes answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial

from locomo.types import Category, LongMemEvalType, PerltqaType, QuestionType


@dataclass(frozen=True, slots=True)
class YearMonth:
    """A month of a year, as precisely as some golds tell a time."""

    year: int
    month: int


@dataclass(frozen=True, slots=True)
class CountedThings:
    """A number of something, named in the plural."""

    number: int
    things: str


GoldValue = str | tuple[str, ...] | date | YearMonth | CountedThings
"""A text, a list (in no order), a day, a month or a number."""


@dataclass(frozen=True, slots=True)
class CalibrationItem:
    """A question, its gold, and what answers are made of beside what rules make of the gold.

    ``said`` is right in words that no rule finds; ``other`` is something else of the same sort;
    ``other_speaker_answer`` is true of somebody else; ``vague`` would fit many golds; ``outdated`` held
    before the last change. Of a preference the gold describes good replies, ``said`` are some, ``other`` go
    against it, and ``vague`` are the same for any user.
    """

    category: QuestionType
    question: str
    gold: GoldValue
    other: Sequence[str] = ()
    other_speaker_answer: str = ""
    vague: Sequence[str] = ()
    said: Sequence[str] = ()
    outdated: str = ""
    must_abstain: bool = False


_locomo_temporal = partial(CalibrationItem, Category.TEMPORAL)
_locomo_single_hop = partial(CalibrationItem, Category.SINGLE_HOP)
_locomo_multi_hop = partial(CalibrationItem, Category.MULTI_HOP)
_locomo_open_domain = partial(CalibrationItem, Category.OPEN_DOMAIN)
_longmemeval_user = partial(CalibrationItem, LongMemEvalType.USER)
_longmemeval_assistant = partial(CalibrationItem, LongMemEvalType.ASSISTANT)
_longmemeval_multi_session = partial(CalibrationItem, LongMemEvalType.MULTI_SESSION)
_longmemeval_temporal = partial(CalibrationItem, LongMemEvalType.TEMPORAL)
_longmemeval_knowledge_update = partial(CalibrationItem, LongMemEvalType.KNOWLEDGE_UPDATE)
_longmemeval_preference = partial(CalibrationItem, LongMemEvalType.PREFERENCE)
_perltqa_profile = partial(CalibrationItem, PerltqaType.PROFILE)
_perltqa_relationship = partial(CalibrationItem, PerltqaType.RELATIONSHIP)
_perltqa_event = partial(CalibrationItem, PerltqaType.EVENT)
_perltqa_dialogue = partial(CalibrationItem, PerltqaType.DIALOGUE)

_LOCOMO = (
    _locomo_temporal(
        "When did Nora run her first half marathon?",
        date(2023, 5, 7),
        other_speaker_answer="19 August 2023",
        vague=("A while ago", "On some weekend"),
    ),
    _locomo_temporal(
        "When did Nora's sister come to visit?",
        date(2023, 3, 31),
        other_speaker_answer="12 June 2023",
        vague=("Recently", "When it suited both of them"),
    ),
    _locomo_temporal(
        "When did Theo move into the flat by the harbour?",
        YearMonth(2022, 11),
        other_speaker_answer="July 2021",
        vague=("Some time ago", "Before he met Nora's friends"),
    ),
    _locomo_temporal(
        "When will Theo take his sailing exam?",
        YearMonth(2023, 12),
        other_speaker_answer="May 2024",
        vague=("Soon", "When he is ready"),
    ),
    _locomo_single_hop(
        "What breed is Nora's dog?",
        "a whippet",
        other=("a greyhound", "a beagle"),
        other_speaker_answer="a border collie",
        vague=("Some kind of dog", "A lovely one"),
    ),
    _locomo_single_hop(
        "Where did Theo grow up?",
        "in Ghent",
        other=("in Bruges", "in Utrecht"),
        other_speaker_answer="in Porto",
        vague=("Somewhere in Europe", "In a town"),
        said=("Ghent is where he spent his childhood.",),
    ),
    _locomo_single_hop(
        "Which instrument is Nora learning to play?",
        "the cello",
        other=("the violin", "the clarinet"),
        other_speaker_answer="the trumpet",
        vague=("A musical instrument", "One that she likes"),
    ),
    _locomo_single_hop(
        "Who lent Theo the tent?",
        "his neighbour Ines",
        other=("his cousin Marc", "his brother"),
        other_speaker_answer="her aunt",
        vague=("Somebody that he knows", "A friendly person"),
        said=("Ines, who lives next door to him",),
    ),
    _locomo_single_hop(
        "Why did Nora give up her allotment?",
        "because the rent was doubled",
        other=("because she had no time for it", "because of the slugs"),
        other_speaker_answer="because he moved away",
        vague=("For personal reasons", "Because something had changed"),
        said=("They doubled the rent, so she let it go.",),
    ),
    _locomo_single_hop(
        "When does Nora's choir meet?",
        "on Tuesdays at half past seven in the evening",
        other=("on Fridays at half past seven in the evening", "on Tuesdays at noon"),
        other_speaker_answer="on Mondays at six in the morning",
        vague=("Regularly", "At some time during the week"),
        said=("Tuesdays, 7:30 pm",),
    ),
    _locomo_single_hop(
        "What did Theo's grandmother leave him?",
        "her sewing machine",
        other=("her piano", "her wristwatch"),
        other_speaker_answer="a set of brushes",
        vague=("Something old", "A thing of hers"),
        said=("A sewing machine that used to be hers",),
    ),
    _locomo_single_hop(
        "How many siblings does Theo have?",
        CountedThings(3, "siblings"),
        other=("7 siblings",),
        other_speaker_answer="just 1",
        vague=("Some", "Not too many"),
    ),
    _locomo_multi_hop(
        "In which countries has Nora been hiking?",
        ("Norway", "Slovenia", "Scotland"),
        other=("Italy, Greece and Spain",),
        other_speaker_answer="Iceland and Portugal",
        vague=("In several countries", "Where there are mountains"),
    ),
    _locomo_multi_hop(
        "Which pets has Theo had?",
        ("a tortoise", "two canaries"),
        other=("a cat and a hamster",),
        other_speaker_answer="a whippet",
        vague=("Some animals", "The usual ones"),
    ),
    _locomo_multi_hop(
        "What did Nora bake for the school fair?",
        ("a lemon tart", "gingerbread", "cheese scones"),
        other=("a plum cake and brownies",),
        other_speaker_answer="pretzels",
        vague=("Something sweet and something else", "A few things"),
    ),
    _locomo_multi_hop(
        "Which books did Theo read in autumn?",
        ("Middlemarch", "Dune"),
        other=("Emma and Walden",),
        other_speaker_answer="The Leopard",
        vague=("Some novels", "Books that a friend had named"),
    ),
    _locomo_open_domain(
        "Would Theo enjoy a weekend in caves?",
        "no, he is afraid of narrow places",
        other=("yes, narrow places calm him",),
        vague=("It depends", "Maybe, maybe not"),
        said=("He would not: narrow places frighten him.",),
    ),
    _locomo_open_domain(
        "Which subject might Nora study, given what she likes?",
        "marine biology",
        other=("law", "accounting"),
        other_speaker_answer="architecture",
        vague=("Something that interests her", "A subject at a university"),
    ),
)

_LONGMEMEVAL = (
    _longmemeval_user(
        "What is the name of my physiotherapist?",
        "Dr. Okafor",
        other=("Dr. Lindqvist", "Dr. Okada"),
        other_speaker_answer="Dr. Brandt, who is your dentist",
        vague=("A doctor", "Somebody who was recommended to you"),
    ),
    _longmemeval_user(
        "How much did I pay for the second-hand bike?",
        "$240",
        other=("$420", "$204"),
        other_speaker_answer="$90, for the helmet",
        vague=("A fair price", "Not too much"),
        said=("240 dollars",),
    ),
    _longmemeval_user(
        "Where did I leave my umbrella?",
        "at the library in Hillsboro",
        other=("at the station in Hillsboro", "at the library in Salem"),
        other_speaker_answer="on the bus, where you left your gloves",
        vague=("Somewhere in town", "Where you last used it"),
        said=("You left it in Hillsboro, in the library.",),
    ),
    _longmemeval_assistant(
        "Which three board games for two did you suggest to me?",
        ("Patchwork", "Hive", "Jaipur"),
        other=("Catan, Azul and Carcassonne",),
        vague=("Some games for two", "Popular board games"),
    ),
    _longmemeval_assistant(
        "What was the third step of the sourdough schedule that you gave me?",
        "to shape the loaf and let it rest for an hour",
        other=("to feed the starter", "to bake it for forty minutes"),
        vague=("The step after the second", "Something with the dough"),
        said=("Shaping the loaf, then an hour's rest",),
    ),
    _longmemeval_multi_session(
        "How many concerts did I go to this spring?",
        CountedThings(4, "concerts"),
        other=("9 concerts",),
        vague=("Some", "More than you had planned"),
    ),
    _longmemeval_multi_session(
        "Which plants have I repotted?",
        ("the fern", "the jade plant", "the basil"),
        other=("the orchid and the cactus",),
        vague=("A few of them", "Those on the windowsill"),
    ),
    _longmemeval_temporal(
        "How many days were there between my dentist's appointment and the marathon?",
        CountedThings(18, "days"),
        other=("31 days",),
        vague=("Some", "Enough to recover"),
    ),
    _longmemeval_temporal(
        "How many weeks ago did I begin the pottery course?",
        CountedThings(6, "weeks"),
        other=("11 weeks",),
        vague=("Some", "Not long ago"),
    ),
    _longmemeval_temporal(
        "For how many months have I had the electric car?",
        CountedThings(5, "months"),
        other=("14 months",),
        vague=("For a while", "Since you bought it"),
    ),
    _longmemeval_temporal(
        "Which came first, the trip to Lisbon or the job interview?",
        "the trip to Lisbon",
        other=("the job interview",),
        vague=("One of the two", "They were close together"),
    ),
    _longmemeval_temporal(
        "Which two events did I attend in the week before my birthday?",
        ("a book fair", "a pub quiz"),
        other=("a wedding and a yard sale",),
        vague=("Two events", "Something with friends"),
    ),
    _longmemeval_knowledge_update(
        "Where does my sister live now?",
        "in Calgary",
        other=("in Montreal", "in Winnipeg"),
        vague=("In another city", "Where she moved to"),
        outdated="in Toronto",
    ),
    _longmemeval_knowledge_update(
        "How many subscribers does my newsletter have?",
        "1,250 subscribers",
        other=("3,400 subscribers",),
        vague=("Quite a few", "More than before"),
        outdated="1,000 subscribers",
    ),
    _longmemeval_knowledge_update(
        "What is my personal best over five kilometres?",
        "24 minutes and 10 seconds",
        other=("21 minutes and 40 seconds",),
        vague=("A good time", "Better than last year"),
        outdated="25 minutes and 50 seconds",
        said=("24:10",),
    ),
    _longmemeval_knowledge_update(
        "On which day do I have my yoga class?",
        "on Thursday",
        other=("on Saturday",),
        vague=("On a weekday", "Once a week"),
        outdated="on Tuesday",
    ),
    _longmemeval_preference(
        "Can you suggest a film for tonight?",
        "The user would like a documentary about nature that takes less than ninety minutes. They would not "
        "want horror films.",
        said=(
            "As you enjoy documentaries about nature and like to be done within ninety minutes, try one on "
            "the forests of Borneo that takes an hour and a quarter.",
        ),
        other=("Tonight calls for a horror film: take one of those that last well over two hours.",),
        vague=("There are many good films. See what is new, and pick what looks interesting.",),
    ),
    _longmemeval_preference(
        "What could I cook for dinner?",
        "The user eats no meat, must avoid peanuts, and would like to use the courgettes from their garden.",
        said=(
            "Use the courgettes from your garden: fried with garlic, over pasta. That has neither meat nor "
            "peanuts.",
        ),
        other=("Grill some chicken and serve it with a peanut sauce.",),
        vague=("Soup or pasta always works. Go by what you have at home.",),
    ),
    _longmemeval_preference(
        "Any ideas for my days in Kyoto?",
        "The user travels with a toddler and would like quiet temples in walking distance of the hotel. They "
        "would not want nightlife.",
        said=(
            "With your toddler along, take the quiet temples that you can walk to from your hotel, in the "
            "morning, when they are emptiest, and keep the evenings free.",
        ),
        other=("Spend your nights in the bars, and leave the temples to others.",),
        vague=("Kyoto has something for everyone. See the main sights, and try the food.",),
    ),
    _longmemeval_preference(
        "How could I get fitter?",
        "The user has an injured knee, likes swimming and prefers to train before work. They would not want "
        "to run.",
        said=(
            "Swim before work, which you like and which spares your injured knee; running is out for now "
            "anyway.",
        ),
        other=("Start running in the evenings, a little further every day.",),
        vague=("Move more, eat well and sleep enough.",),
    ),
    _longmemeval_user(
        "What breed is my cat?",
        "You did not mention a cat. You mentioned a dog, a beagle.",
        said=("You told me of a beagle, but never of a cat.",),
        other=("a Siamese",),
        must_abstain=True,
    ),
    _longmemeval_multi_session(
        "For how long did I live in Berlin?",
        "You did not say that you lived in Berlin. You said that you lived in Hamburg for two years.",
        said=("I know only of two years in Hamburg, of none in Berlin.",),
        other=("for two years",),
        must_abstain=True,
    ),
    _longmemeval_temporal(
        "How many weeks after the move did I adopt the parrot?",
        "You mentioned the move, but no parrot.",
        said=("You have told me of the move, but not of any parrot, so I cannot say.",),
        other=("5 weeks",),
        must_abstain=True,
    ),
    _longmemeval_knowledge_update(
        "Which coach do I have for tennis at present?",
        "You did not mention tennis. You mentioned a coach for badminton, Petra.",
        said=("There was nothing about tennis. For badminton your coach is Petra.",),
        other=("Petra",),
        must_abstain=True,
    ),
)

_PERLTQA = (
    _perltqa_profile(
        "How old is Mira Olsen?",
        "Mira Olsen is 31 years old.",
        other=("Mira Olsen is 38 years old.",),
        other_speaker_answer="Jonas Olsen is 27 years old.",
        vague=("She is an adult.", "Of the age that one would think."),
        said=("31",),
    ),
    _perltqa_profile(
        "What does Mira Olsen do for a living?",
        "Mira Olsen works as a bridge engineer.",
        other=("Mira Olsen works as a harbour pilot.",),
        other_speaker_answer="Kari Moe works as a librarian.",
        vague=("She has a job.", "Work that takes skill."),
        said=("She is a bridge engineer.",),
    ),
    _perltqa_relationship(
        "What is Kari Moe to Mira Olsen?",
        "Kari Moe is Mira Olsen's neighbour.",
        other=("Kari Moe is Mira Olsen's sister.", "Kari Moe is Mira Olsen's employer."),
        other_speaker_answer="Jonas Olsen is Mira Olsen's brother.",
        vague=("Somebody that she knows.", "A person in her life."),
        said=("Her neighbour",),
    ),
    _perltqa_relationship(
        "Who keeps bees?",
        "Mira's brother Jonas keeps bees.",
        other=("Mira's neighbour Kari keeps bees.",),
        vague=("Somebody close to her.", "A person who likes honey."),
        said=("Her brother, Jonas",),
    ),
    _perltqa_event(
        "Where did Mira's boat anchor?",
        "Mira's boat anchored in the old harbour of Fedje.",
        other=("Mira's boat anchored off the beach of Sotra.",),
        other_speaker_answer="Kari's ferry landed at Bergen.",
        vague=("At the coast.", "Where it was safe."),
        said=("In Fedje's old harbour",),
    ),
    _perltqa_event(
        "What did Kari borrow and never give back?",
        "Kari borrowed a ladder and never gave it back.",
        other=("Kari borrowed a drill and never gave it back.",),
        other_speaker_answer="Jonas borrowed the trailer.",
        vague=("Something from the house.", "A thing that is useful."),
        said=("A ladder",),
    ),
    _perltqa_dialogue(
        "How many hives does Jonas have?",
        "Jonas has four hives.",
        other=("Jonas has nine hives.",),
        vague=("He has some.", "As many as he can look after."),
        said=("4", "Four of them"),
    ),
    _perltqa_dialogue(
        "What did Jonas give Mira for her boat?",
        "Jonas gave Mira a brass lamp for her boat.",
        other=("Jonas gave Mira a new anchor for her boat.",),
        other_speaker_answer="Kari gave Mira a jar of jam.",
        vague=("A present.", "Something that belongs on a boat."),
        said=("A lamp made of brass",),
    ),
)

CALIBRATION_ITEMS = (*_LOCOMO, *_LONGMEMEVAL, *_PERLTQA)
"""All of them; the category of each says of which benchmark it is."""
