"""Small talk that is not worth remembering, and the words around facts that are."""

import re

GREETINGS = (
    "Hey {other}, good to hear from you!",
    "Hi {other}! How have you been?",
    "Hello {other}, it has been a while.",
    "{other}! There you are.",
    "Good to see you, {other}.",
    "Hi there, {other}. Do you have a minute?",
    "Hey {other}! What is new?",
    "Long time no see, {other}!",
)
GREETINGS_BACK = (
    "Hi {other}! Always nice to talk to you.",
    "Hey {other}! All is well here.",
    "Hello {other}! I was just thinking of you.",
    "Hey, {other}. Same old, same old.",
    "Hi {other}, I am glad you called.",
    "Not too bad, {other}. Tell me everything.",
    "Good, thanks, {other}. And you?",
)
PROMPTS = (
    "So, what is going on with you?",
    "What about you, {other}?",
    "And how are things on your side?",
    "What is on your mind, {other}?",
    "Do you have any news?",
    "I am all ears, {other}.",
)
REACTIONS = (
    "Oh, that is nice to hear!",
    "Wow, I had no idea.",
    "Really? Tell me more.",
    "That sounds great, {other}.",
    "I see. Good for you!",
    "How interesting!",
    "Ha, I love that.",
    "Thanks for telling me, {other}.",
    "That must feel good.",
    "I can imagine.",
    "You never told me that before.",
    "That makes sense.",
    "Amazing, {other}!",
    "Hm, fair enough.",
    "Oh my, really?",
    "I am happy for you.",
    "Well, well. Who would have thought?",
    "Sounds like you, {other}!",
    "Interesting, go on.",
    "I did not expect that.",
)
ECHOES = (
    "Oh, {value}? Good to know.",
    "Did you say {value}?",
    "Ah, {value}, I see.",
    "So it is {value}, then.",
)
CLOSINGS = (
    "I have to run now, {other}.",
    "Let us talk again soon, {other}.",
    "Well, it was nice chatting.",
    "Time for me to go, take care!",
    "I should get going.",
)
CLOSINGS_BACK = (
    "Bye, {other}!",
    "Take care, {other}.",
    "See you, {other}!",
    "Talk to you soon.",
    "All right, until next time!",
)
OPENERS = (
    "By the way,",
    "Guess what:",
    "You know,",
    "Well,",
    "Oh, and",
    "So,",
    "Before I forget:",
    "Fun fact:",
    "Did I mention it?",
    "Here is some news.",
    "To be honest,",
    "Let me tell you:",
    "Speaking of me,",
    "I wanted to tell you that",
    "Just so you know,",
)
CLOSERS = (
    "Just wanted you to know.",
    "Funny, is it not?",
    "I thought you would like to hear that.",
    "Can you believe it?",
    "Not a big deal, but still.",
    "Anyway.",
    "It is what it is.",
    "What do you think?",
)
CORRECTION_OPENERS = (
    "Sorry, I mixed something up:",
    "Wait, that was wrong:",
    "Correction:",
    "I misspoke:",
    "Let me correct myself:",
    "Oops, I got that wrong:",
)
LATE_CORRECTION_OPENERS = (
    "I told you something wrong last time:",
    "I need to correct something from before:",
    "What I said the other day was a mistake:",
    "I looked it up and I was wrong:",
)
REMINDERS = ("As I said,", "As you know,", "Like I told you,", "I may have told you before:")
RECALLS = ("You told me that {body}, right?", "I remember that {body}.", "If I recall it well, {body}.")
CONFIRMATIONS = (
    "Yes, exactly.",
    "That is right, {other}.",
    "Right, you have a good memory.",
    "Yes, that is so.",
)
DISTRACTORS = (
    ("place", "The radio talked about {place} all morning."),
    ("place", "Have you ever heard of {place}?"),
    ("place", "I saw a film that plays in {place}, but I have never been there."),
    ("place", "One day I might go and see {place}, who knows."),
    ("person", "Do you know anybody called {person}?"),
    ("person", "A stranger took me for somebody named {person}."),
    ("thing", "I almost got {a_thing}, but it was too expensive."),
    ("thing", "I dreamed that I owned {a_thing}."),
    ("thing", "Somebody in my street is looking for {a_thing}."),
    ("band", "They played a song by {band} at the supermarket."),
    ("title", "People keep recommending {title} to me, but I never started it."),
    ("company", "There was an advertisement of {company} in my mail."),
    ("dish", "The cafeteria was out of {dish} again."),
    ("pet", "If I ever got a bird, I would call it {pet}."),
)

_SECOND_PERSON = {
    "I": "you",
    "my": "your",
    "My": "Your",
    "me": "you",
    "mine": "yours",
    "myself": "yourself",
    "am": "are",
}
_WORD = re.compile(r"[A-Za-z]+")


def to_second_person(body: str) -> str:
    """Turn what somebody says of themselves into what the other says to them."""
    turned = _WORD.sub(lambda match: _SECOND_PERSON.get(match[0], match[0]), body)
    return turned.replace("you was", "you were")


def build_sentence(opener: str, body: str, closer: str = "") -> str:
    """Put a statement between what may stand before and after it."""
    starts_anew = not opener or opener[-1] in ".!?"
    said = body[0].upper() + body[1:] if starts_anew else body
    mark = "" if said[-1] in ".!?" else "."
    return " ".join(part for part in (opener, f"{said}{mark}", closer) if part)
