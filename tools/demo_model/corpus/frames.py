"""Free facts: sentences that people write into a persona by hand, with the questions that they answer."""

from __future__ import annotations

from dataclasses import dataclass

from . import words
from .grammar import Phrases, a_or_an, plural
from .names import Maker


@dataclass(frozen=True)
class Frame:
    """One pattern of a fact."""

    prompts: Phrases
    questions: Phrases
    answers: Phrases
    needed: tuple[str, ...]
    """Slots whose values an answer must contain."""
    subject: str
    """The slot that somebody can mention in passing."""
    told: Phrases
    """The answer that can be told unasked: the first one."""


@dataclass(frozen=True)
class Free:
    """A frame with its values."""

    frame: Frame
    slots: dict[str, str]


def _frame(needed: str, subject: str, prompts: str, questions: str, answers: str) -> Frame:
    return Frame(Phrases(prompts), Phrases(questions), Phrases(answers), tuple(needed.split()), subject, Phrases(answers.strip().splitlines()[0]))


FRAMES = (
    _frame("a_thing where", "the_thing", """
        You saw {a_thing} {where} {when}.
        {When} you saw {a_thing} {where}.
        You saw {a_thing} {where} {when}, and nobody believes you.
        {When} you saw {a_thing} {where}, but you told nobody.
    """, """
        What did you see {where}?
        What did you see {when}?
        What did you see?
        Did you see anything strange?
        Have you seen anything strange?
        ~ Did you see anything {where}?
        Where did you see {the_thing}?
        When did you see {the_thing}?
        What have you seen?
        Tell me what you saw.
        What happened {when}?
        Did you really see {a_thing}?
    """, """
        I saw {a_thing} {where} {when}.
        {When} I saw {a_thing} {where}.
        I saw {a_thing} {where}. [I swear it.|Nobody believes me.|It was {when}.|]
        {A_thing}, {where}. I saw it with my own eyes.
    """),
    _frame("a_thing where", "the_thing", """
        You hide {a_thing} {where}.
        You have hidden {a_thing} {where}.
        There is {a_thing} hidden {where}, and only you know it.
        You keep {a_thing} {where}.
        You buried {a_thing} {where}.
    """, """
        What is {where}?
        What do you hide {where}?
        Are you hiding something?
        What are you hiding?
        ~ What did you hide {where}?
        Where is {the_thing}?
        Do you have a secret?
        What is your secret?
        What do you keep {where}?
        Where did you put {the_thing}?
        What have you got {where}?
    """, """
        I hide {a_thing} {where}.
        There is {a_thing} {where}. [Tell nobody.|That's all I say.|But you did not hear it from me.|]
        I keep {a_thing} {where}.
        {A_thing} is {where}[, if you must know|].
    """),
    _frame("time", "the_gates", """
        {The_gates} close at {time}.
        {The_gates} open at {time}.
        {The_gates} are shut at {time}.
        {The_gates} close at {time}, and nobody passes after that.
    """, """
        When do {the_gates} close?
        When do {the_gates} open?
        At what time do {the_gates} close?
        Are {the_gates} open?
        How late are {the_gates} open?
        ~ At what time do {the_gates} open?
        What about {the_gates}?
        Until when are {the_gates} open?
        Can I still pass {the_gates}?
    """, """
        {The_gates} close at {time}.
        At {time}[, every day|, not a minute later|, as always|].
        At {time} {the_gates} close.
    """),
    _frame("time", "do", """
        You {do} at {time}.
        Every day at {time} you {do}.
        You always {do} at {time}.
        At {time} you {do}.
    """, """
        When do you {do}?
        What do you do at {time}?
        At what time do you {do}?
        Do you {do}?
        ~ At what time do you {do} every day?
        Do you {do} every day?
        What do you do every day?
        Tell me when you {do}.
        How early do you {do}?
    """, """
        I {do} at {time}.
        At {time} I {do}.
        Every day at {time} I {do}.
        At {time}[, every day|, as always|, without fail|].
    """),
    _frame("time", "the_bell", """
        {The_bell} rings at {time}.
        {The_bell} can be heard at {time}.
        {The_bell} always rings at {time}.
        You ring {the_bell} at {time}.
    """, """
        When does {the_bell} ring?
        At what time does {the_bell} ring?
        When can I hear {the_bell}?
        What about {the_bell}?
        ~ At what time can I hear {the_bell}?
        When do you ring {the_bell}?
        Does {the_bell} ring today?
    """, """
        {The_bell} rings at {time}.
        At {time}[, every day|, as always|].
        You can hear {the_bell} at {time}.
    """),
    _frame("number", "people", """
        You have {number} {people}.
        You command {number} {people}.
        You lead {number} {people}.
        You look after {number} {people}.
        You are in charge of {number} {people}.
    """, """
        How many {people} do you have?
        How many {people} do you command?
        Do you have {people}?
        How many {people} work for you?
        ~ How many {people} do you lead?
        How many {people} are there?
        Tell me about your {people}.
        Who works for you?
        How many {people} are you in charge of?
    """, """
        I have {number} {people}.
        {Number} {people}[, and all of them good|, no more and no less|, if nobody is ill|].
        There are {number} {people}.
    """),
    _frame("number things", "building", """
        {Building} holds {number} {things}.
        There are {number} {things} in {building}.
        {Building} is full of {number} {things}.
        In {building} lie {number} {things}.
    """, """
        What is in {building}?
        How many {things} are in {building}?
        How many {things} does {building} hold?
        Are there {things} in {building}?
        ~ How many {things} lie in {building}?
        What does {building} hold?
        What can I find in {building}?
        What do they keep in {building}?
    """, """
        {Building} holds {number} {things}.
        There are {number} {things} in {building}.
        {Number} {things}[, last I counted|, as far as I know|].
    """),
    _frame("price", "the_fund", """
        {The_fund} holds {price}.
        There are {price} in {the_fund}.
        {The_fund} has {price} left.
        {Price} are left in {the_fund}.
    """, """
        How much is in {the_fund}?
        How much money is in {the_fund}?
        How much is left in {the_fund}?
        What does {the_fund} hold?
        ~ How much money is left in {the_fund}?
        How full is {the_fund}?
        What about {the_fund}?
    """, """
        {The_fund} holds {price}.
        There are {price} in {the_fund}.
        {Price}[, not a coin more|, last I counted|, as far as I know|].
    """),
    _frame("work topic", "work", """
        You are {working} a {work} about {topic}.
        You are {working} a {work} about {topic} and are nearly done.
        You work on a {work} about {topic}.
        Your {work} about {topic} is almost finished.
        You are {working} a {work} about {topic}, but you lack the end.
    """, """
        What is your {work} about?
        What are you {working}?
        What are you working on?
        What do you do these days?
        Tell me about your {work}.
        ~ What is the {work} about?
        How is your {work} coming along?
        Are you {working} something?
        Is your {work} finished?
    """, """
        I am {working} a {work} about {topic}.
        My {work} is about {topic}.
        It's a {work} about {topic}. [It takes time.|You will like it.|The end is still missing.|]
        A {work} about {topic}. [My best so far.|It is nearly done.|]
    """),
    _frame("building reason", "building", """
        You {hate} {building} because {reason}.
        You {hate} {building}, because {reason}.
        Because {reason}, you {hate} {building}.
        You {hate} {building}: {reason}.
    """, """
        Why do you {hate} {building}?
        What do you think of {building}?
        What do you think about {building}?
        Do you like {building}?
        Is {building} any good?
        ~ What is your opinion of {building}?
        What's wrong with {building}?
        Tell me about {building}.
        How do you like {building}?
        Is {building} safe?
    """, """
        I {hate} {building} because {reason}.
        {Building}? I {hate} it, because {reason}.
        I {hate} {building}. {Reason}.
    """),
    _frame("belief", "official", """
        You {suspect} that the {official} {belief}.
        You {suspect} the {official} {belief}.
        You {suspect}, though nobody else does, that the {official} {belief}.
    """, """
        What do you {suspect}?
        What do you think of the {official}?
        What do you think about the {official}?
        What do you know about the {official}?
        ~ Tell me what you think of the {official}.
        What about the {official}?
        Tell me about the {official}.
        Do you trust the {official}?
        Do you know a secret?
    """, """
        I {suspect} that the {official} {belief}.
        The {official} {belief}[, I'm sure of it|, mark my words|, if you ask me|].
        The {official}? I {suspect} that the {official} {belief}.
    """),
    _frame("things", "the_event", """
        {The_event} began with {things}.
        It was {things} that started {the_event}.
        You know that {the_event} began with {things}.
        You remember that {the_event} began with {things}.
    """, """
        How did {the_event} begin?
        What started {the_event}?
        How did {the_event} start?
        Do you remember {the_event}?
        ~ What did {the_event} begin with?
        Tell me about {the_event}.
        What do you know of {the_event}?
        How did it begin?
    """, """
        {The_event} began with {things}.
        It began with {things}. [I remember it well.|Nobody saw it coming.|]
        With {things}. [That is how {the_event} began.|I will never forget it.]
    """),
    _frame("number", "the_event", """
        {The_event} was {number} years ago.
        It has been {number} years since {the_event}.
        {Number} years have passed since {the_event}.
        {The_event} happened {number} years ago.
    """, """
        When was {the_event}?
        How long ago was {the_event}?
        How many years have passed since {the_event}?
        When did {the_event} happen?
        ~ How many years ago was {the_event}?
        How long has it been since {the_event}?
        Do you remember {the_event}?
    """, """
        {The_event} was {number} years ago.
        It has been {number} years since {the_event}.
        {Number} years ago[, if I count right|].
    """),
    _frame("a_thing", "the_thing", """
        You need {a_thing} to {purpose}.
        You need {a_thing}, so that you can {purpose}.
        You want {a_thing} to {purpose}.
        To {purpose}, you need {a_thing}.
    """, """
        What do you need?
        Why do you need {a_thing}?
        What do you want?
        What can I bring you?
        ~ Why do you want {a_thing}?
        What would help you?
        What do you need {a_thing} for?
        Is there anything you need?
        What are you missing?
    """, """
        I need {a_thing} to {purpose}.
        {A_thing}. I need it to {purpose}.
        To {purpose}, I need {a_thing}.
        I want {a_thing}[, so that I can {purpose}|].
    """),
    _frame("many", "many", """
        You refuse to sell {many} to {whom}.
        You never sell {many} to {whom}.
        You do not sell {many} to {whom}.
        You would never sell {many} to {whom}.
    """, """
        Do you sell {many}?
        Can I buy {many}?
        Do you have {many}?
        Will you sell me {many}?
        ~ Can you sell me {many}?
        Give me {many}.
        I want to buy {many}.
        Why don't you sell {many}?
    """, """
        I don't sell {many} to {whom}.
        I never sell {many} to {whom}.
        {Many}? Not to {whom}.
        No {many} for {whom}[, and that's that|, sorry|].
    """),
    _frame("price", "a_thing", """
        {A_thing} would cost {price}.
        It would take {price} to buy {a_thing}.
        You would need {price} for {a_thing}.
        {A_thing} costs {price} to build.
    """, """
        What would {a_thing} cost?
        How much would {a_thing} cost?
        How much do you need for {a_thing}?
        What does {a_thing} cost?
        ~ What would you need for {a_thing}?
        How expensive is {a_thing}?
        What about {a_thing}?
    """, """
        {A_thing} would cost {price}.
        {Price}. [A lot of money.|More than I have.|]
        It would cost {price}.
    """),
    _frame("name owed", "name", """
        {Name} owes you {owed}.
        {Name} still owes you {owed}.
        {Name} borrowed {owed} from you.
        {Name} has not paid you {owed}.
    """, """
        Does anyone owe you money?
        What does {name} owe you?
        Who owes you?
        Who owes you money?
        ~ Does anyone owe you anything?
        Does {name} owe you something?
        What about {name}?
        Do you trust {name}?
        What do you think of {name}?
    """, """
        {Name} owes me {owed}.
        {Name} still owes me {owed}[. I don't forget|, and I want it back|].
        I am still waiting for {owed} from {name}.
    """),
    _frame("part", "your_part", """
        You lost {part} {how}.
        {How} you lost {part}.
        You lost {part} {how} and joke about it.
        You lost {part} {how} long ago.
    """, """
        What happened to {your_part}?
        How did you lose {your_part}?
        How did you lose {part}?
        What happened to you?
        ~ Tell me what happened to {your_part}.
        Are you hurt?
        You look as if you had lost {part}.
    """, """
        I lost {part} {how}.
        {How} I lost {part}.
        I lost {part} {how}. [It was long ago.|You get used to it.|It still hurts when it rains.|]
    """),
    _frame("a_thing", "the_thing", """
        You always carry {a_thing}.
        You never leave the house without {a_thing}.
        In your pocket you carry {a_thing}.
        You carry {a_thing} wherever you go.
    """, """
        What do you carry?
        What is in your pocket?
        What do you have with you?
        What is that in your hand?
        ~ What do you always carry?
        What have you got there?
        Is that {a_thing}?
        What do you have in your pocket?
    """, """
        I always carry {a_thing}.
        {A_thing}. I never leave the house without it.
        That's {a_thing}. [It brings me luck.|I carry it everywhere.|]
    """),
    _frame("things", "things", """
        You collect {things}.
        You have a collection of {things}.
        You spend your money on {things}.
        Your house is full of {things}.
    """, """
        What do you collect?
        Do you collect anything?
        What do you spend your money on?
        What do you have at home?
        ~ Do you collect {things}?
        What is in your house?
        I found some {things}.
        Do you like {things}?
    """, """
        I collect {things}.
        {Things}[, mostly|, as many as I can get|]. [My house is full of them.|]
        I have a whole collection of {things}.
    """),
    _frame("name purpose", "name", """
        You promised {name} to {purpose}.
        You gave {name} your word that you would {purpose}.
        You have promised to {purpose}, and {name} is waiting for it.
    """, """
        What did you promise {name}?
        What did you promise?
        What do you owe {name}?
        What about {name}?
        ~ Did you promise {name} something?
        Why is {name} waiting?
        Did you make a promise?
    """, """
        I promised {name} to {purpose}.
        I gave {name} my word that I would {purpose}.
        I told {name} that I would {purpose}. [A promise is a promise.|]
    """),
    _frame("awaited", "awaited", """
        You are waiting for {awaited}.
        You have been waiting for {awaited} for {number} days.
        Every day you wait for {awaited}.
        You sit here and wait for {awaited}.
    """, """
        What are you waiting for?
        Are you waiting for someone?
        Why are you here?
        Why are you sitting here?
        ~ Who are you waiting for?
        What are you doing here?
        Are you waiting for {awaited}?
        Whom are you waiting for?
    """, """
        I am waiting for {awaited}.
        I'm still waiting for {awaited}.
        For {awaited}. [It may take a while.|I hope it won't be long.|]
    """),
    _frame("cure ailment", "ailment", """
        {Cure} helps against {ailment}.
        You know that {cure} helps against {ailment}.
        Against {ailment} you give {cure}.
        You sell {cure} for {ailment}.
        You cure {ailment} with {cure}.
    """, """
        What helps against {ailment}?
        I have {ailment}.
        Do you have something for {ailment}?
        Can you cure {ailment}?
        ~ Do you have anything against {ailment}?
        What do you give for {ailment}?
        I suffer from {ailment}.
        Is there a cure for {ailment}?
        What should I take for {ailment}?
    """, """
        {Cure} helps against {ailment}.
        Against {ailment}? Take {cure}.
        Try {cure}. It helps against {ailment}.
        For {ailment} I give {cure}.
    """),
    _frame("a_thing", "building", """
        Nobody passes without {a_thing}.
        Nobody may enter {building} without {a_thing}.
        You let nobody into {building} without {a_thing}.
        Whoever wants to enter {building} needs {a_thing}.
    """, """
        May I pass?
        Can I enter {building}?
        What do I need to enter {building}?
        Let me into {building}.
        ~ May I enter {building}?
        Let me pass.
        Who may enter {building}?
        How do I get into {building}?
        What do I need?
    """, """
        Nobody passes without {a_thing}.
        Not without {a_thing}.
        Do you have {a_thing}? Nobody passes without it.
        You need {a_thing} for that.
    """),
    _frame("word", "word", """
        The password is {word}.
        The secret word is {word}.
        You know the password: {word}.
    """, """
        What is the password?
        Do you know the password?
        Tell me the password.
        What is the secret word?
        ~ Can you tell me the password?
        The password?
    """, """
        The password is {word}.
        {Word}. [Don't tell anyone.|Keep it to yourself.|]
        It's {word}, but keep it to yourself.
    """),
    _frame("price", "service", """
        You {service} for {price}.
        You {service} for {price} each.
        For {price} you {service}.
        You ask {price} to {service}.
    """, """
        Can you {service}?
        How much do you ask to {service}?
        Do you {service}?
        What does it cost if you {service}?
        ~ Could you {service} for me?
        What do you charge to {service}?
        I need somebody to {service}.
        How much is it?
        What do you do for money?
    """, """
        I {service} for {price}.
        For {price} I {service}.
        [Yes, |Of course, |Aye, |]for {price}.
        That will be {price}. I {service} better than anyone.
    """),
    _frame("building quality", "building", """
        You think that {building} is {quality}.
        You find {building} {quality}.
        {Building} is {quality}.
        You say that {building} is {quality}.
    """, """
        What do you think of {building}?
        What is {building} like?
        Is {building} {quality}?
        How is {building}?
        ~ What do you say about {building}?
        Is {building} any good?
        Tell me about {building}.
        Do you like {building}?
    """, """
        {Building} is {quality}.
        I think that {building} is {quality}.
        {Quality}[, if you ask me|, that's what it is|].
        I find {building} {quality}.
    """),
    _frame("day purpose", "day", """
        On {day} you will {purpose}.
        You plan to {purpose} on {day}.
        On {day} you want to {purpose}.
    """, """
        What will you do on {day}?
        What are your plans for {day}?
        What happens on {day}?
        Do you have plans?
        ~ Do you have plans for {day}?
        What about {day}?
        Are you free on {day}?
    """, """
        On {day} I will {purpose}.
        I want to {purpose} on {day}.
        On {day}? Then I will {purpose}.
    """),
    _frame("number", "home", """
        You came to {home} {number} years ago.
        You have been in {home} for {number} years.
        You have lived in {home} for {number} years.
        {Number} years ago you came to {home}.
    """, """
        When did you come to {home}?
        How long have you been here?
        How long have you lived in {home}?
        How long have you been in {home}?
        ~ How long have you lived here?
        When did you come here?
        Have you been here long?
    """, """
        I came to {home} {number} years ago.
        For {number} years[ now|].
        {Number} years ago I came to {home}.
        I have been in {home} for {number} years.
    """),
    _frame("colour", "thing", """
        Your {thing} is {colour}.
        You have a {colour} {thing}.
        You own a {thing}, and it is {colour}.
    """, """
        What colour is your {thing}?
        What does your {thing} look like?
        Tell me about your {thing}.
        Do you have a {thing}?
        ~ What is the colour of your {thing}?
        Is your {thing} {colour}?
    """, """
        My {thing} is {colour}.
        {Colour}. [I like it that way.|A fine colour.|]
        It's {colour}.
        I have a {colour} {thing}.
    """),
    _frame("name", "thing", """
        Your {thing} was made by {name}.
        {Name} made your {thing}.
        You got your {thing} from {name}.
        {Name} gave you your {thing}.
    """, """
        Who made your {thing}?
        Where did you get your {thing}?
        Who gave you your {thing}?
        Tell me about your {thing}.
        ~ From whom did you get your {thing}?
        Nice {thing}. Who made it?
        Where is your {thing} from?
    """, """
        My {thing} comes from {name}.
        {Name}. [Good work, isn't it?|I won't give it away.|]
        I got my {thing} from {name}.
        From {name}[, long ago|].
    """),
    _frame("name", "official", """
        The {official} of {home} is {name}.
        {Name} is the {official} of {home}.
        The {official} here is {name}.
        The {official} is called {name}.
    """, """
        Who is the {official}?
        What is the {official} called?
        What is the name of the {official}?
        Do you know the {official}?
        ~ What's the name of your {official}?
        Who is the {official} here?
        Who is {name}?
        Do you know {name}?
        Is there {an_official} here?
    """, """
        The {official} is {name}.
        {Name} is the {official}[ here| of {home}|].
        {Name}. [Do you know the {official}?|The {official} of {home}.|]
        Our {official} is called {name}.
    """),
    _frame("name doing", "name", """
        {Name} {doing}.
        You know {name}, who {doing}.
        You have heard of {name}, who {doing}.
        {Name} {doing}, and everybody knows it.
    """, """
        What does {name} do?
        Who is {name}?
        Do you know {name}?
        What do you know about {name}?
        ~ What do you know of {name}?
        Tell me about {name}.
        What about {name}?
        Have you heard of {name}?
    """, """
        {Name} {doing}.
        {Name}? That's the one who {doing}.
        All I know is that {name} {doing}.
        {Name} {doing}[, as everybody knows|, or so I hear|].
    """),
    _frame("whose", "things", """
        You stole {things} from {whose}.
        You got {things} from {whose}.
        You bought {things} from {whose}.
    """, """
        Where did you get {things}?
        What did you get from {whose}?
        Who sold you {things}?
        Tell me about {things}.
        ~ From whom do you have {things}?
        What do you have to do with {whose}?
        Where are {things} from?
    """, """
        I got {things} from {whose}.
        From {whose}[, and I won't say more|, if you must know|].
        The {things} come from {whose}.
    """),
)

MENTIONS = Phrases("""
    {Subject}! I can't stop thinking about it.
    I heard something about {subject}.
    Everybody talks about {subject}.
    I saw {subject} today.
    Let us talk about {subject}.
    I was thinking of {subject}.
    ~ I heard people talk about {subject}.
    {Subject} again. Always the same.
    People in {home} talk about {subject}.
    I dreamt of {subject}.
    My brother told me about {subject}.
    There was trouble with {subject} again.
    They say strange things about {subject}.
    I don't like what I hear about {subject}.
    What a day. And then {subject}!
    I came because of {subject}.
""")
UNKNOWN = Phrases("""
    I don't know[, sorry|].
    I couldn't tell you.
    I don't know anything about that.
    No idea. Ask somebody else.
    I can't say, I don't know.
    That I don't know.
    I have heard nothing about that.
""")

PURPOSES = Phrases("""
    {dream}
    {dream}
    repair {building}
    finish the {thing}
    feed the {animals}
    cross the {spot}
    pay {name} back
    get to {place}
    sell it in {place}
    find {name}
    build {a_thing}
    catch the {beasts}
    bring {a_thing} to {name}
    visit {name} in {place}
    hold a feast
    leave {home}
""")
REASONS = Phrases("""
    it is {quality}
    it smells of {things}
    {beasts} live there
    {name} died there
    it brings bad luck
    the {official} owns it
    nobody goes there any more
    it is full of {things}
    there are too many {beasts}
    {name} cheated there
    its {things} are {quality}
    the {official} forbids it
    it makes {noise}
    it reminds everyone of {name}
    it was built on sand
""")
TOPICS = Phrases("""
    {the_event}
    {building}
    {name}
    {a_thing}
    {beasts}
    the {official} of {place}
    {things}
    the {spot}
    love and {things}
    {name} and the {official}
    a {animal} that talks
""")
BELIEFS = Phrases("""
    smuggles {things}
    steals {things}
    hides {a_thing} {where}
    is {quality}
    lies about {the_event}
    meets {name} at night
    wants to {dream}
    has sold {building} to {name}
    knows about {the_event}
    talks to {beasts}
    owes {name} {price}
    is in love with {name}
    never tells the truth
    was born in {place}
""")


def sample_frame(maker: Maker, home: str) -> Free:
    """A frame with fresh values."""
    slots = _values(maker, home)
    rng = maker.rng
    for key, phrases in (("purpose", PURPOSES), ("reason", REASONS), ("topic", TOPICS), ("belief", BELIEFS)):
        slots[key] = phrases.pick(rng, slots)
    return Free(FRAMES[int(rng.random() * len(FRAMES))], slots)


def _values(maker: Maker, home: str) -> dict[str, str]:
    from .facts import doing

    thing, pick = maker.thing(), maker.pick
    part, your_part = pick(BODY_PARTS).split("/")
    official = pick(words.OFFICIALS)
    working, work = pick(WORKS).split("/")
    number = pick([str(maker.rng.randint(2, 99)), str(maker.rng.randint(2, 99)), words.NUMBER_WORDS[maker.rng.randint(2, 20)], pick(["thirty", "forty", "fifty", "a hundred", "ninety", "sixty", "a dozen"])])
    amount = f"{maker.rng.randint(1, 9)},{maker.rng.randint(0, 9)}00" if maker.chance(0.4) else str(maker.rng.randint(2, 900))
    beasts = pick(words.BEASTS)
    slots = {
        "home": home,
        "thing": thing,
        "a_thing": a_or_an(thing),
        "the_thing": f"the {thing}",
        "things": plural(maker.noun_phrase()) if maker.chance(0.6) else pick([maker.material(), maker.ware("merchant").many, f"dead {plural(maker.animal())}"]),
        "building": maker.building(),
        "spot": maker.spot(),
        "place": maker.place(),
        "name": maker.person(),
        "time": pick(words.TIMES),
        "day": pick(words.DAYS[:9]),
        "beasts": beasts,
        "official": official,
        "an_official": a_or_an(official),
        "number": number,
        "price": f"{amount} {pick(words.CURRENCIES)}",
        "colour": pick(words.COLOURS),
        "animal": maker.animal(),
        "animals": plural(maker.animal()),
        "dream": maker.dream(),
        "doing": doing(maker),
        "many": maker.ware("merchant").many,
        "whom": pick(["strangers", "anyone", "children", "soldiers", "the poor", "drunkards", f"the {official}", f"people from {maker.place()}", maker.first_name()]),
        "where": _where(maker),
        "when": pick(["last night", "yesterday", "three nights ago", "a week ago", "two days ago", f"on {pick(words.DAYS[:7])}", "last winter", "this morning", "at midnight", "as a child"]),
        "do": pick(DOES) if maker.chance(0.7) else f"feed the {plural(maker.animal())}",
        "the_gates": pick(["the gates", "the shops", "the harbours", "the mines", "the doors", f"the {pick(words.BUILDING_QUALITIES)} gates", f"the gates of {home}", "the stables", "the baths", "the towers"]),
        "the_bell": pick(["the bell", "the great bell", f"the bell of {home}", f"the bell of {maker.building()}", "the fire bell", "the church bell", "the horn", "the gong"]),
        "the_event": pick(EVENTS) if maker.chance(0.7) else f"the {pick(['battle', 'fire', 'flood', 'war', 'siege', 'feast', 'plague'])} of {maker.place()}",
        "the_fund": pick(["the treasury", "the till", "the chest", "the town chest", "the poor box", "the bank", f"the treasury of {home}", "the war chest", "the guild's chest"]),
        "people": pick(["guards", "miners", "men", "soldiers", "servants", "sailors", "apprentices", "children", "monks", "sheep", "cows", "horses", "workers", "pupils", "daughters", "sons", "hens", "goats", "cousins", "recruits", "singers", "maids"]) if maker.chance(0.8) else plural(maker.animal()),
        "working": working,
        "work": work,
        "hate": pick(["hate", "distrust", "avoid", "love", "like", "fear", "miss", "admire", "dislike", "cannot stand"]),
        "suspect": pick(["suspect", "believe", "think", "know", "hold", "fear"]),
        "owed": pick([f"{maker.rng.randint(2, 90)} {pick(words.CURRENCIES)}", a_or_an(thing), "a favour", "money", "for a week of soup", f"for {maker.ware('merchant').many}", f"three {plural(thing)}"]).removeprefix("for "),
        "part": part,
        "your_part": your_part,
        "how": pick(["in the war", "to a forge fire", "in a fight", f"to a {maker.animal()}", f"in the {maker.spot()}", "in a storm", "in a bet", f"near {maker.place()}", f"to the {beasts}"]),
        "awaited": pick([maker.person(), f"a letter from {maker.person()}", a_or_an(maker.noun_phrase()), "better weather", f"the ship from {maker.place()}", f"news from {maker.place()}", f"the {official}", "spring"]),
        "cure": maker.ware("herbalist").many if maker.chance(0.5) else f"{maker.invented_noun()} {pick(['tea', 'root', 'bark', 'oil', 'leaves', 'salve', 'soup', 'honey'])}",
        "ailment": pick(AILMENTS),
        "word": maker.invented_noun(),
        "service": pick(SERVICES) if maker.chance(0.7) else f"{pick(['repair', 'clean', 'polish', 'paint', 'sharpen', 'carry', 'make'])} {plural(maker.noun_phrase())}",
        "quality": pick(QUALITIES),
        "noise": pick(["too much noise", "everyone ill", "people sad", "the milk sour", "horses nervous"]),
        "whose": pick([maker.first_name(), f"the {official}", f"a {maker.trade()[1]}", f"a man in {maker.place()}", f"a ship from {maker.place()}"]),
    }
    return slots


def _where(maker: Maker) -> str:
    return maker.pick(
        [
            f"in the {maker.spot()}",
            f"near {maker.place()}",
            f"under {maker.building()}",
            f"behind {maker.building()}",
            f"on the road to {maker.place()}",
            f"above {maker.building()}",
            maker.pick(["on the volcano", "under the wagon", "in the river", "on the roof", "by the river", "under the bed", "behind the house", "on the hill", "in the sky", "under the floor", "in the garden", "on the mountain", "in a barrel", "by the lake", "under the bridge", "in the chimney"]),
        ]
    )


BODY_PARTS = words._words("""
    two fingers/your fingers, an eye/your eye, your left eye/your left eye, a tooth/your tooth, your left ear/your left ear, three toes/your toes, one hand/your hand, your right leg/your right leg, your voice/your voice,
    your hair/your hair, your sense of smell/your sense of smell, your nose/your nose
""".replace("your left eye/your", "the left eye/your").replace("your left ear/your", "the left ear/your").replace("your right leg/your", "the right leg/your").replace("your voice/your", "the voice/your").replace("your hair/your", "all hair/your").replace("your sense of smell/your", "the sense of smell/your").replace("your nose/your", "the tip of the nose/your"))
WORKS = words._words("writing/ballad, writing/song, writing/book, writing/poem, writing/play, writing/letter, painting/picture, copying/chronicle, carving/statue, drawing/map, telling/story, composing/hymn, reading/book, studying/scroll, making/puppet show")
EVENTS = words._words("the eruption, the great fire, the flood, the war, the plague, the hunger winter, the big storm, the strike, the feast, the siege, the earthquake, the battle, the fall of the tower, the long winter, the revolt, the drought, the avalanche")
AILMENTS = words._words("a headache, fever, a cough, toothache, bad dreams, a cold, a burn, a broken heart, sore feet, a snake bite, back pain, pain, a hangover, warts, a rash, sleepless nights, hiccups, a sore throat, stomach ache, seasickness, worms, gout, bad luck, old age")
SERVICES = words._words("run errands, tell fortunes, cut hair, carry letters, write letters, shoe horses, pull teeth, sharpen knives, repair boots, sweep chimneys, catch rats, read palms, carry bags, mend nets, sing at weddings, dig graves, draw portraits, guard caravans, wash clothes, guide travellers, patch sails, teach reading, row people across the river, find lost things")
DOES = words._words("ring the bell, lock the gate, light the lamps, open the market, sweep the floor, bake the bread, count the coins, pray, go to bed, get up, feed the hens, wind the clock, walk the dog, milk the goats, close the shutters, go fishing, water the flowers, take a bath, read the stars, eat soup")
QUALITIES = words._words("brittle, dangerous, beautiful, too expensive, falling apart, a waste of money, too far away, haunted, the best in the land, badly built, full of rats, too small, too loud, a good place, ugly, fine, older than the town, cursed, quiet, damp, cold, not worth the trouble, rotten, crooked, far too dark, safe, empty")
