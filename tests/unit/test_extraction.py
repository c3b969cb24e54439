from datetime import UTC, datetime

import numpy as np
import pytest

from locomo.types import Session, Turn
from memory_program.agents.spans.candidate_spans import WordColumn, join_passages, parse_turn
from memory_program.agents.spans.date_answers import DATE_FEATURES, date_candidates, date_features
from memory_program.agents.spans.question_analysis import AnswerType, parse_question
from memory_program.agents.spans.span_features import (
    SPAN_FEATURES,
    TURN_FEATURES,
    Evidence,
    span_features,
)
from memory_program.agents.spans.span_ranking import (
    NO_ANSWER_FEATURES,
    SPAN_KINDS,
    ExtractorWeights,
    best_spans,
    candidate_probabilities,
    no_answer_features,
    span_candidates,
)
from memory_program.agents.spans.word_classes import WordClass
from memory_program.bank.archive import Archive
from memory_program.core.errors import ConfigError
from tests.conversations import session


def evidence_for(question, *sessions, top_k=8):
    archive = Archive()
    for one in sessions:
        archive.add_sessions([one])
    clues = parse_question(question, archive.speakers)
    return Evidence(clues, archive.search(question, top_k), archive)


def spans_of(text, caption=None):
    passage = parse_turn(Turn("D1:1", "Ana", text, caption))
    return [passage.text(int(start), int(end)) for start, end in passage.spans.T]


def column(text, which):
    return parse_turn(Turn("D1:1", "Ana", text)).columns[which].tolist()


# -- passages ------------------------------------------------------------------------------------


def test_a_span_neither_begins_nor_ends_with_a_function_word():
    assert spans_of("I have a red boat") == ["have a red", "have a red boat", "red", "red boat", "boat"]


def test_a_span_never_leaves_its_sentence():
    assert spans_of("Boats sink. Cars rust!") == ["Boats", "Boats sink", "sink", "Cars", "Cars rust", "rust"]


def test_a_span_has_at_most_nine_words_and_keeps_its_spelling():
    spans = spans_of("Kyle, Sara, Rob, Max, Coco, Jean, Tim, Laura, Cindy, Jo")
    assert "Kyle, Sara, Rob, Max, Coco, Jean, Tim, Laura, Cindy" in spans
    assert max(span.count(",") for span in spans) == 8


def test_a_caption_follows_the_words_without_its_opening():
    assert spans_of("Look", "a photo of two dogs") == ["Look", "two", "two dogs", "dogs"]
    assert spans_of("", "a photo of two dogs") == ["two", "two dogs", "dogs"]
    flags = parse_turn(Turn("D1:1", "Ana", "", "a photo of two dogs")).columns[WordColumn.IN_CAPTION]
    assert flags.tolist() == [1, 1]


def test_words_have_the_classes_of_their_neighbours():
    before, after = (
        column("Well, the Smiths ran.", WordColumn.CLASS_BEFORE),
        column("Go on.", WordColumn.CLASS_AFTER),
    )
    assert before == [WordClass.EDGE, WordClass.MARK, WordClass.DETERMINER, WordClass.NAME]
    assert after == [WordClass.PREPOSITION, WordClass.EDGE]


def test_a_sentence_has_its_grammatical_person():
    assert column("I ran. You won. Rex slept.", WordColumn.FIRST_PERSON) == [1, 1, 0, 0, 0, 0]
    assert column("I ran. You won. Rex slept.", WordColumn.SECOND_PERSON) == [0, 0, 1, 1, 0, 0]


def test_a_quoted_title_is_marked():
    text = 'I read "Becoming Nicole," yesterday.'
    assert column(text, WordColumn.OPENS_QUOTE) == [0, 0, 1, 0, 0]
    assert column(text, WordColumn.CLOSES_QUOTE) == [0, 0, 0, 1, 0]


@pytest.mark.parametrize("text", ["", "...", "\x00", "👍👍", "مرحبا بك", "a", "x" * 50_000, "word " * 50_000])
def test_any_text_can_be_parsed(text):
    passage = parse_turn(Turn("D1:1", "Ana", text))
    assert passage.columns.shape == (len(WordColumn), len(passage.stems))
    assert passage.spans.shape[1] < 10_000


def test_excerpts_number_words_and_sentences_consecutively():
    archive = Archive()
    archive.add_sessions([session(1, "Ana: A dog barks. It bites.", "Ben: A dog sleeps.")])
    excerpts = join_passages(archive.search("dog barks"))
    assert excerpts.columns[WordColumn.SENTENCE].tolist() == [0, 0, 0, 1, 1, 2, 2, 2]
    texts = [excerpts.text(span) for span in range(excerpts.spans.shape[1])]
    assert texts[-1] == "sleeps"
    assert [int(hit) for hit in excerpts.span_hits][-1] == 1


# -- questions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "asked"),
    [
        ("When did Ana hike?", AnswerType.DATE),
        ("In which month did Ana hike?", AnswerType.DATE),
        ("How long has Ana hiked?", AnswerType.NUMBER),
        ("How many dogs does Ana have?", AnswerType.NUMBER),
        ("Who hiked with Ana?", AnswerType.NAME),
        ("Where did Ana hike?", AnswerType.NAME),
        ("Which city did Ana visit?", AnswerType.NAME),
        ("What is the name of Ana's dog?", AnswerType.NAME),
        ("Would Ana enjoy hiking?", AnswerType.GUESS),
        ("Does Ana hike?", AnswerType.YES_OR_NO),
        ("Why does Ana hike?", AnswerType.MANNER),
        ("How does Ana hike?", AnswerType.MANNER),
        ("What did Ana buy?", AnswerType.WHAT),
        ("What kind of dog does Ana have?", AnswerType.WHICH),
        ("", AnswerType.WHICH),
    ],
)
def test_the_form_of_a_question_gives_its_answer_type(question, asked):
    assert parse_question(question, ["Ana", "Ben"]).answer_type is asked


@pytest.mark.parametrize(
    ("question", "wants_several"),
    [
        ("What instruments does Ana play?", True),
        ("What are Ana's pets?", True),
        ("Where has Ana camped?", True),
        ("What kind of books does Ana read?", False),
        ("What instrument does Ana play?", False),
        ("Which class does Ana take?", False),
        ("Why does Ana hike?", False),
    ],
)
def test_a_plural_wants_several_answers(question, wants_several):
    assert parse_question(question, ["Ana", "Ben"]).wants_several is wants_several


def test_speaker_names_are_not_content_words():
    clues = parse_question("When did ana's brother see Ben Hope hiking?", ["Ana", "Ben Hope", "Cleo"])
    assert clues.named_speakers == {"Ana", "Ben Hope"}
    assert clues.content_stems == {"brother", "see", "hike"}


def test_a_question_gives_the_granularity_of_its_date():
    assert parse_question("What year did Ana hike?", []).date_granularity == "year"
    assert parse_question("In which month did Ana hike?", []).date_granularity == "month"
    assert parse_question("When did Ana hike?", []).date_granularity == "any"


# -- features ------------------------------------------------------------------------------------


def feature(evidence, name, text):
    features = span_features(evidence)
    texts = [evidence.excerpts.text(span) for span in range(len(features))]
    return features[texts.index(text), SPAN_FEATURES.index(name)]


def turn_feature(evidence, name):
    return evidence.turn_rows[:, TURN_FEATURES.index(name)].tolist()


def test_coverage_is_the_idf_weighted_share_of_the_question():
    evidence = evidence_for(
        "Which dog did Ana adopt?", session(1, "Ana: I did adopt a dog."), session(2, "Ben: A dog!")
    )
    everything, part = turn_feature(evidence, "coverage")
    assert everything == pytest.approx(1.0)
    assert 0 < part < 0.5  # "dog" is in both turns and so tells less than "adopt"


def test_features_say_if_the_named_speaker_speaks():
    evidence = evidence_for(
        "Which dog did Ana adopt?", session(1, "Ana: I did adopt a dog."), session(2, "Ben: A dog!")
    )
    assert turn_feature(evidence, "told by the one who is named") == [1.0, 0.0]
    assert turn_feature(evidence, "told by the other") == [0.0, 1.0]


def test_a_turn_has_features_of_the_question_before_it():
    evidence = evidence_for("Which instrument is it?", session(1, "Ana: Which instrument?", "Ben: Clarinet."))
    index = [hit.turn.text for hit in evidence.excerpts.hits].index("Clarinet.")
    assert turn_feature(evidence, "turn before is a question")[index] == 1.0
    assert turn_feature(evidence, "answers a question that covers")[index] == pytest.approx(1.0)


def test_a_span_has_its_distance_to_the_content_words():
    evidence = evidence_for(
        "What does Ana paint?", session(1, "Ana: Rex sleeps, and I paint big red boats. Cars rust.")
    )
    assert feature(evidence, "closeness to telling word before", "boats") == pytest.approx(1 / 3)
    assert feature(evidence, "right behind telling word", "big red boats") == 1.0
    assert feature(evidence, "closeness to telling word after", "sleeps") == pytest.approx(1 / 3)
    assert feature(evidence, "sentence has no other telling word", "Cars rust") == 1.0
    assert feature(evidence, "sentence has no other telling word", "boats") == 0.0


def test_a_span_has_its_overlap_with_the_question():
    evidence = evidence_for("What does Ana paint?", session(1, "Ana: We paint boats."))
    assert feature(evidence, "share of telling words", "paint boats") == 0.5
    assert feature(evidence, "has telling word", "boats") == 0.0
    assert feature(evidence, "2 words", "paint boats") == 1.0
    assert feature(evidence, "last PLURAL", "paint boats") == 1.0


def test_every_feature_is_finite_and_small():
    evidence = evidence_for(
        "What did Ana say about 3 dogs, Ben?",
        session(1, "Ana: 3 dogs?", "Ben: 👍", "Ana: “Dogs,” I said: 3.", "Ben: \x00"),
    )
    features = span_features(evidence)
    assert np.isfinite(features).all()
    assert np.abs(features).max() < 10


# -- dates ---------------------------------------------------------------------------------------


def test_candidates_are_mentioned_dates_and_session_dates():
    evidence = evidence_for("When did Ana hike?", session(1, "Ana: I did hike yesterday.", day=9))
    candidates = [(date.text, date.is_mentioned) for date in date_candidates(evidence)]
    assert candidates == [
        ("8 May 2023", True),
        ("9 May 2023", False),
        ("May 2023", False),
        ("The week before 9 May 2023", False),
    ]


def test_dates_have_the_granularity_that_is_asked_for():
    said = session(1, "Ana: I did hike yesterday.", day=1)
    texts = [date.text for date in date_candidates(evidence_for("What month did Ana hike?", said))]
    assert texts == ["April 2023", "May 2023"]
    assert {date.text for date in date_candidates(evidence_for("What year did Ana hike?", said))} == {"2023"}


def test_a_date_has_features_of_its_sentence_and_of_the_future():
    evidence = evidence_for("When will Ana hike?", session(1, "Ana: We hike tomorrow. Last week it rained."))
    candidates = date_candidates(evidence)
    features = date_features(evidence, candidates)
    row = dict(zip(DATE_FEATURES, features[0], strict=True))
    assert (candidates[0].text, row["day"], row["is to come as asked"]) == ("9 May 2023", 1.0, 1.0)
    assert row["closeness to telling word"] == 1.0
    week = dict(zip(DATE_FEATURES, features[1], strict=True))
    assert (week["week"], week["is to come"], week["closeness to telling word"]) == (1.0, 0.0, 1 / 12)


# -- ranking -------------------------------------------------------------------------------------


def even_weights(**changed):
    weights = {
        "spans": {kind.value: dict.fromkeys(SPAN_FEATURES, 0.0) for kind in SPAN_KINDS},
        "dates": dict.fromkeys(DATE_FEATURES, 0.0),
        "doubt": dict.fromkeys(NO_ANSWER_FEATURES, 0.0),
        "doubt_limit": 0.5,
    }
    return {**weights, **changed}


def test_the_softmax_is_stable_for_large_scores():
    shares = candidate_probabilities(np.array([[1000.0], [1000.0 + np.log(3)]]), np.array([1.0]))
    assert shares == pytest.approx([0.25, 0.75])


def test_a_question_for_a_number_has_only_spans_with_numbers():
    evidence = evidence_for("How many boats are there?", session(1, "Ana: There float three boats."))
    texts = [evidence.excerpts.text(int(span)) for span in span_candidates(evidence)]
    expected = "There float three|There float three boats|float three|float three boats|three|three boats"
    assert texts == expected.split("|")


def test_the_span_with_the_best_expected_f1_beats_the_most_probable():
    evidence = evidence_for("What does Ana see?", session(1, "Ana: Cars rust. Red boats sail."))
    texts = [evidence.excerpts.text(span) for span in range(evidence.excerpts.spans.shape[1])]
    shares = np.zeros(len(texts))
    for text, share in (("Cars", 0.4), ("Red", 0.3), ("boats", 0.1), ("Red boats", 0.2)):
        shares[texts.index(text)] = share
    chosen = best_spans(evidence, np.arange(len(texts)), shares)
    assert [texts[span] for span in chosen] == ["Red boats"]


def test_several_answers_come_from_different_turns_and_share_no_word():
    evidence = evidence_for(
        "What pets does Ana have?",
        session(1, "Ana: My pets: a dog.", "Ben: Hm.", "Ana: Pets! A dog.", "Ana: Pets: a parrot, a newt."),
    )
    texts = [evidence.excerpts.text(span) for span in range(evidence.excerpts.spans.shape[1])]
    shares = np.array([{"dog": 0.5, "parrot": 0.3, "newt": 0.05}.get(text, 1e-6) for text in texts])
    chosen = [texts[span] for span in best_spans(evidence, np.arange(len(texts)), shares / shares.sum())]
    assert chosen[:2] == ["dog", "parrot"]
    assert len(chosen) == 3
    assert "newt" not in chosen[2]


def test_the_no_answer_features_compare_speakers():
    evidence = evidence_for(
        "Which dog did Ana adopt?", session(1, "Ben: I did adopt a dog."), session(2, "Ana: A dog!")
    )
    hits = evidence.excerpts.span_hits
    ben = next(k for k, hit in enumerate(evidence.excerpts.hits) if hit.turn.speaker == "Ben")
    shares = np.where(hits == ben, 1.0, 0.0) / (hits == ben).sum()
    row = dict(zip(NO_ANSWER_FEATURES, no_answer_features(evidence, hits, shares), strict=True))
    assert row["probability told by the other"] == pytest.approx(1.0)
    assert row["probability told by the one who is named"] == pytest.approx(0.0)
    assert row["best coverage of the one who is named, less that of the other"] < 0


def test_weights_are_written_and_read_back():
    record = even_weights(doubt_limit=0.25)
    record["spans"]["name"]["quoted"] = 1.5
    assert ExtractorWeights.from_json(record).to_json() == record


@pytest.mark.parametrize(
    "record",
    [
        {},
        even_weights(doubt={}),
        even_weights(spans={}),
        even_weights(dates={**dict.fromkeys(DATE_FEATURES, 0.0), "mood": 1.0}),
        even_weights(doubt_limit=None),
    ],
)
def test_weights_of_other_features_are_refused_with_advice(record):
    with pytest.raises(ConfigError, match=r"fit them again with benchmarks/tune_extractive\.py"):
        ExtractorWeights.from_json(record)


def test_a_turn_without_words_has_no_candidates():
    silent = Session(1, datetime(2023, 5, 8, tzinfo=UTC), (Turn("D1:1", "Ana", "..."),))
    archive = Archive()
    archive.add_sessions([silent])
    evidence = Evidence(parse_question("Why?", ["Ana"]), [], archive)
    assert span_features(evidence).shape == (0, len(SPAN_FEATURES))
    assert span_candidates(evidence).size == 0
